/*
 * The places of all memory of a job: gradients, residuals (residual.c), and the records that go
 * with them. results.c has the updates, layout_plan.c what a plan keeps.
 *
 * The places of residuals, and what a plan keeps, depend on the policy. Everything else is a
 * function of the registrations and the local ranks. So it does not move when the policy changes,
 * and a restarted daemon finds it again.
 */
#include "daemon/compute/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/results.h"
#include "daemon/compute/spread.h"
#include "daemon/compute/work_job.h"
#include "daemon/engine/shards.h"
#include "daemon/job/hash.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/register.h"
#include "daemon/job/store.h"
#include "proto/local.h"

/* Lays out the updates of a rank that sees them on its GPU, behind all of them their lists, and
 * behind these what the updates lack. */
static void lay_shown(struct job *job, unsigned batch, uint64_t offset)
{
    for (uint32_t t = register_first(job, batch); t < register_end(job, batch); t++) {
        struct tensor *tensor = register_at(job, t);
        tensor->layout.shown_offset = offset;
        offset += local_shown_size(tensor->numel, tensor->spec.forms);
    }
    for (uint32_t t = register_first(job, batch); t < register_end(job, batch); t++) {
        struct tensor *tensor = register_at(job, t);
        tensor->layout.list_offset = offset;
        offset += local_list_size(tensor->numel);
    }
    for (uint32_t t = register_first(job, batch); t < register_end(job, batch); t++) {
        struct tensor *tensor = register_at(job, t);
        tensor->layout.pending_offset = offset;
        tensor->layout.pending = true; /* the rank's process may have brought some */
        offset += local_pending_size(tensor->numel, tensor->spec.forms);
    }
}

uint64_t layout_pending(const struct job *job, const struct rank *rank, uint32_t tensor)
{
    const struct tensor_layout *own = &job->tensor[tensor].layout;
    const struct tensor_layout *first = &job->tensor[job->layout.batch[own->batch].first].layout;

    return own->pending_offset - (rank->shown_on_gpu == CORE_SHOWN_LISTS
                                         ? 0
                                         : first->pending_offset - first->list_offset);
}

static uint64_t gradient_size(const struct tensor *tensor)
{
    return layout_align(tensor->numel * dtype_size(tensor->spec.dtype));
}

static uint64_t first_gradient(unsigned batch)
{
    return batch == 0 ? CORE_OP_GRADIENTS + CORE_OP_SIZE : 0;
}

enum adtopk_status layout_gradients_size(const struct job *job, unsigned batch,
    const struct rank *rank, uint64_t *size, struct error *err)
{
    *size = first_gradient(batch);
    for (uint32_t t = register_first(job, batch); t < register_end(job, batch); t++) {
        const struct tensor *tensor = register_at(job, t);
        const uint64_t bytes = gradient_size(tensor);

        if (*size + bytes > UINT64_MAX / 4) {
            return error_set(
                err, ADTOPK_ERR_MEMORY, "the gradients of job '%s' are too large", job->key.name);
        }
        *size += bytes;
        if (rank->shown_on_gpu != CORE_SHOWN_NOT) {
            *size += local_shown_size(tensor->numel, tensor->spec.forms) +
                     local_pending_size(tensor->numel, tensor->spec.forms);
        }
        *size += rank->shown_on_gpu == CORE_SHOWN_LISTS ? local_list_size(tensor->numel) : 0;
    }
    return ADTOPK_OK;
}

enum adtopk_status layout_gradients(
    struct job *job, unsigned batch, const struct rank *rank, uint64_t *size, struct error *err)
{
    uint64_t offset = first_gradient(batch);

    if (layout_gradients_size(job, batch, rank, size, err) != ADTOPK_OK) {
        return err->code;
    }
    for (uint32_t t = register_first(job, batch); t < register_end(job, batch); t++) {
        struct tensor *tensor = register_at(job, t);
        tensor->layout.gradient_offset = offset;
        offset += gradient_size(tensor);
    }
    lay_shown(job, batch, offset);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ residuals */

/* The room of a residual in a slot, in floats. */
static uint64_t padded(const struct job *job, const struct tensor *tensor)
{
    return layout_pad(job, tensor->numel * sizeof(float)) / sizeof(float);
}

static uint64_t states_offset(const struct tensor *tensor)
{
    return layout_align(progress_size(tensor->numel)) / sizeof(float);
}

/* The size of a slot, in floats: the progress of the passes over a residual, then states. */
static uint64_t slot(const struct tensor *tensor)
{
    return states_offset(tensor) + layout_align(sizeof(struct store_states)) / sizeof(float);
}

/* The slot of a rank but the first begins with its residual. */
uint64_t layout_rank_slot(const struct job *job, const struct tensor *tensor)
{
    return padded(job, tensor) + layout_pad(job, slot(tensor) * sizeof(float)) / sizeof(float);
}

static uint64_t all_slots(const struct job *job, const struct batch *batch)
{
    uint64_t elements = 0;

    for (uint32_t t = batch->first; t < batch->end; t++) {
        elements += slot(&job->tensor[t]);
    }
    return elements;
}

/* What a batch's part of the store is for: its tensors, the ranks' policy and the local ranks. */
static uint64_t digest(const struct job *job, const struct batch *batch)
{
    uint64_t hash = hash_bytes(HASH_EMPTY, &job->history.brought, sizeof(job->history.brought));

    for (uint32_t t = batch->first; t < batch->end; t++) {
        hash = hash_bytes(hash, &job->tensor[t].hash, sizeof(job->tensor[t].hash));
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        hash = hash_bytes(hash, &job->rank[r]->number, sizeof(job->rank[r]->number));
    }
    return hash;
}

uint64_t layout_digest(const struct job *job)
{
    return digest(job, &job->layout.batch[0]);
}

/* Points the tensors of a batch to their records and slots, and finds whether the batch's residuals
 * are shown. */
static void point_tensors(
    struct job *job, struct batch *batch, struct store_tensor *record, float *slots)
{
    const bool near = engine_is_near(job->core->config.engine); /* else ranks can map nothing */
    uint64_t rank_slots = 0;

    for (uint32_t t = batch->first; t < batch->end; t++) {
        struct tensor *tensor = &job->tensor[t];
        job->figures.counters.elements += tensor->numel;
        tensor->store = &record[t - batch->first];
        tensor->slot = slots;
        tensor->rank_slots = rank_slots;
        slots += slot(tensor);
        batch->shown |= near && (tensor->spec.forms & LOCAL_FORM_PENDING) != 0;
        rank_slots += layout_rank_slot(job, tensor);
    }
}

/* Lists the arenas for the engine, and shares out tensors to devices, where stores follow them. */
static enum adtopk_status open_arenas(struct job *job, struct error *err)
{
    const uint8_t **gradients =
        calloc((size_t)(CORE_MAX_BATCHES + 1) * job->ranks, sizeof(*job->layout.arenas.gradients));

    if (gradients == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
    }
    job->layout.arenas = (struct engine_memory){
        .job = job->number, .range = job->core->config.range, .gradients = gradients};
    return spread_batch(job, &job->layout.batch[0], err);
}

static void point_gradients(struct job *job, unsigned batch)
{
    for (unsigned r = 0; r < job->ranks; r++) {
        job->layout.arenas.gradients[batch * job->ranks + r] = job->rank[r]->gradients[batch];
    }
}

/* Parts the tensors that the store has in force from others. If ranks bring fewer, opening it will
 * tell. */
static enum adtopk_status layout_part(struct job *job, struct error *err)
{
    const struct layout *layout = &job->layout;
    struct error ignored;
    const bool known =
        !layout->fresh && store_check(layout->found, job->run.id, &ignored) == ADTOPK_OK;
    const unsigned batches = known ? store_batches(layout->found) : 1;
    const unsigned brought = job->registering.fixed;

    if (job->registering.parted) {
        return ADTOPK_OK; /* another store was found before, and dropped */
    }
    return register_part(job, batches < brought ? batches : brought) == ADTOPK_OK
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
}

enum adtopk_status layout_find(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct layout *layout = &job->layout;
    uint64_t size;
    bool existing;

    if (layout->found != NULL) {
        return ADTOPK_OK;
    }
    layout->batch[0] = (struct batch){.end = register_end(job, 0)};
    layout->batches = 1;
    size = layout_align(store_size(layout->batch[0].end, all_slots(job, &layout->batch[0])));
    if (memory->open_job != NULL) {
        memory->open_job(memory->context, job->number, &job->key,
            job->run.id != 0 || job->agreement.comeback.run != 0);
    }
    layout->found = memory->store(memory->context, job->number, 0,
        size + job->core->config.threads * sizeof(struct journal), false, &existing, err);
    if (layout->found == NULL) {
        return err->code;
    }
    layout->journal = (struct journal *)(void *)((uint8_t *)layout->found + size);
    layout->fresh = !existing || layout->found->magic == 0; /* a daemon was killed as it began */
    return layout_part(job, err);
}

/* Whether each rank returns with the batches that the store has in force, and at most one more,
 * which it was committing. */
static enum adtopk_status check_batches(const struct job *job, struct error *err)
{
    const unsigned batches = store_batches(job->store);

    for (unsigned r = 0; r < job->ranks; r++) {
        const struct rank *rank = job->rank[r];
        if ((!job->layout.fresh && rank->mapped < batches) || rank->mapped > batches + 1) {
            return error_set(err, ADTOPK_ERR_MISMATCH,
                "rank %u returns to job '%s' after %u commits of tensors, but the store on this "
                "node is of %u",
                rank->number, job->key.name, rank->mapped, batches);
        }
    }
    return ADTOPK_OK;
}

/* Opens the parts of later batches that are in force. */
static enum adtopk_status layout_later(struct job *job, struct error *err)
{
    const unsigned batches = store_batches(job->store);

    for (unsigned b = 1; b < batches; b++) {
        if (layout_batch(job, register_end(job, b), err) != ADTOPK_OK) {
            return err->code;
        }
    }
    job->batches = batches;
    return ADTOPK_OK;
}

uint64_t layout_run(const struct job *job)
{
    return job->run.id != 0 ? job->run.id : job->agreement.comeback.run;
}

enum adtopk_status layout_store(struct job *job, struct error *err)
{
    uint64_t own;

    if (layout_find(job, err) != ADTOPK_OK || open_arenas(job, err) != ADTOPK_OK) {
        return err->code;
    }
    own = digest(job, &job->layout.batch[0]);
    job->store = job->layout.found;
    job->layout.arenas.store[STORE_MAIN] = (uint8_t *)job->store;
    point_gradients(job, 0);
    if (store_open(job->store, !job->layout.fresh, layout_run(job), own, job->layout.batch[0].end,
            err) != ADTOPK_OK ||
        check_batches(job, err) != ADTOPK_OK) {
        return err->code;
    }
    views_merge(&job->store->views, job->agreement.views);
    free(job->agreement.views);
    job->agreement.views = &job->store->views;
    job->figures.counters.elements = 0;
    point_tensors(job, &job->layout.batch[0], job->store->tensor, store_slots(job->store));
    job->layout.arenas.journal = job->core->config.threads > 0 ? job->layout.journal : NULL;
    if (job->store->more != 0 && layout_more(job, err) != ADTOPK_OK) {
        return err->code;
    }
    return layout_later(job, err);
}

/* Opens a batch's STORE_RANKS. */
static enum adtopk_status open_more(struct job *job, unsigned number, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    const unsigned part = store_part(STORE_RANKS, number);
    struct batch *batch = &job->layout.batch[number];
    uint64_t size = 0;
    bool existing = false;

    for (uint32_t t = batch->first; t < batch->end; t++) {
        shards_mark(&job->layout.arenas, part, t, size);
        size += layout_rank_slot(job, &job->tensor[t]) * (job->ranks - 1) * sizeof(float);
    }
    shards_mark(&job->layout.arenas, part, batch->end, size);
    if (batch->more != NULL || job->ranks < 2) {
        return ADTOPK_OK;
    }
    if (job->store->more == 0) { /* otherwise an earlier daemon opened it and did no more */
        memory->drop_store(memory->context, job->number, part);
    }
    batch->more =
        memory->store(memory->context, job->number, part, size, batch->shown, &existing, err);
    if (batch->more == NULL) {
        return err->code;
    }
    job->layout.arenas.store[part] = batch->more;
    if (!existing && job->store->more != 0 && number < store_batches(job->store)) {
        return error_set(
            err, ADTOPK_ERR_LOST, "the residuals of the ranks of job '%s' are gone", job->key.name);
    }
    return ADTOPK_OK;
}

/* Opens the main part of a later batch: the one that an earlier daemon left, if the batch is in
 * force already. */
static enum adtopk_status open_records(struct job *job, unsigned number, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    const unsigned part = store_part(STORE_MAIN, number);
    const bool stored = number < store_batches(job->store);
    struct batch *batch = &job->layout.batch[number];
    const uint64_t records = layout_align(
        sizeof(struct store_batch) + (batch->end - batch->first) * sizeof(struct store_tensor));
    const uint64_t own = digest(job, batch);
    struct store_batch *header;
    bool existing;

    if (!stored) {
        memory->drop_store(memory->context, job->number, part);
    }
    header = memory->store(memory->context, job->number, part,
        records + all_slots(job, batch) * sizeof(float), false, &existing, err);
    if (header == NULL) {
        return err->code;
    }
    if (stored && (!existing || header->digest != own)) {
        return error_set(err, existing ? ADTOPK_ERR_MISMATCH : ADTOPK_ERR_LOST,
            "job '%s' had other tensors than those from '%s' on, or their records are gone",
            job->key.name, job->tensor[batch->first].spec.name);
    }
    header->digest = own;
    job->layout.arenas.store[part] = (uint8_t *)header;
    point_tensors(job, batch, (struct store_tensor *)(void *)(header + 1),
        (float *)(void *)((uint8_t *)header + records));
    return ADTOPK_OK;
}

enum adtopk_status layout_batch(struct job *job, uint32_t end, struct error *err)
{
    const unsigned number = job->layout.batches;
    struct batch *batch = &job->layout.batch[number];

    *batch = (struct batch){.first = job->layout.batch[number - 1].end, .end = end};
    if (spread_batch(job, batch, err) != ADTOPK_OK || open_records(job, number, err) != ADTOPK_OK) {
        return err->code;
    }
    job->layout.batches++;
    point_gradients(job, number);
    if (job->store->more != 0 && open_more(job, number, err) != ADTOPK_OK) {
        return err->code;
    }
    return results_open(job, number, err);
}

enum adtopk_status layout_more(struct job *job, struct error *err)
{
    for (unsigned b = 0; b < job->layout.batches; b++) {
        if (open_more(job, b, err) != ADTOPK_OK) {
            return err->code;
        }
    }
    if (job->ranks > 1) {
        store_publish(&job->store->more, 1);
    }
    return ADTOPK_OK;
}

void layout_drop_more(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    if (job->store->more == 0 || plan_by_rank(job->plan)) {
        return;
    }
    store_publish(&job->store->more, 0);
    for (unsigned b = 0; b < job->layout.batches; b++) {
        memory->drop_store(memory->context, job->number, store_part(STORE_RANKS, b));
        job->layout.batch[b].more = NULL;
    }
}

/* The slot of a rank but the first. */
static float *rank_slot_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct tensor *tensor = &job->tensor[t];

    return (float *)(void *)job->layout.batch[tensor->layout.batch].more +
           tensor->rank_slots * (job->ranks - 1) + (rank - 1) * layout_rank_slot(job, tensor);
}

float *layout_residual(const struct job *job, uint32_t t, unsigned rank)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    if (rank > 0) {
        return rank_slot_of(job, t, rank);
    }
    return planned->rounded ? NULL : planned->residual;
}

static float *slot_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct tensor *tensor = &job->tensor[t];

    return rank == 0 ? tensor->slot : rank_slot_of(job, t, rank) + padded(job, tensor);
}

struct progress *layout_progress(const struct job *job, uint32_t t, unsigned rank)
{
    return (struct progress *)(void *)slot_of(job, t, rank);
}

struct store_states *layout_states(const struct job *job, uint32_t t, unsigned rank)
{
    return (struct store_states *)(void *)(slot_of(job, t, rank) + states_offset(&job->tensor[t]));
}

/* ------------------------------------------------------------------ after a kill */

/* The momentum of a residual that a pass may have been changing. */
static float *momentum_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    return planned->policy.params.momentum <= 0 || rank >= plan_residuals(job, planned)
               ? NULL
               : planned->selection[rank].momentum;
}

/* Restores memory that was being changed. */
static bool recover_chunk(struct job *job, struct journal *journal, uint32_t t, unsigned rank)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    uint64_t numel = job->tensor[t].numel;

    if (rank == 0 && planned->rounded) {
        const struct rounded rounded = rounded_at(planned->residual, numel);
        return rounded_recover(journal, &rounded, numel, layout_progress(job, t, 0));
    }
    return journal_recover(journal, layout_residual(job, t, rank), momentum_of(job, t, rank), numel,
        layout_progress(job, t, rank));
}

static void rejoined(struct work *work)
{
    (void)work; /* when nothing computes any more, the node can answer with its state */
}

enum adtopk_status layout_recover(struct job *job, struct error *err)
{
    for (unsigned j = 0; j < job->core->config.threads; j++) {
        uint64_t number;
        uint32_t t;
        unsigned rank;
        if (!journal_pending(&job->layout.journal[j], &number)) {
            continue;
        }
        t = (uint32_t)(number >> 32);
        rank = (unsigned)(number & UINT32_MAX);
        if (t >= job->tensors || rank >= (job->store->more != 0 ? job->ranks : 1) ||
            !recover_chunk(job, &job->layout.journal[j], t, rank)) {
            return error_set(
                err, ADTOPK_ERR_LOST, "the store of job '%s' is damaged", job->key.name);
        }
    }
    if (job->store->joining != 0 && job->store->more != 0) {
        core_work(&job->lending.work, &work_rejoin, rejoined,
            job->figures.counters.elements * job->ranks * sizeof(float));
    } else {
        store_publish(&job->store->joining, 0);
    }
    return ADTOPK_OK;
}
