/*
 * The places of all memory of a job: gradients, residuals (residual.c), and the records that go
 * with them. results.c has the updates.
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
#include "daemon/job/actions.h"
#include "daemon/job/hash.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/register.h"
#include "daemon/job/store.h"
#include "proto/local.h"

#define ALIGNMENT LAYOUT_ALIGNMENT
#define ALIGNED_FLOATS (ALIGNMENT / sizeof(float))
/* Limit of the rests of dense sums beyond a twelfth of the residuals. Together that is within 3% of
 * gradients, residuals and updates. */
#define CORE_REST_BYTES (UINT64_C(32) << 20)

static uint64_t align(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Lays out the updates of a rank that sees them on its GPU. */
static uint64_t lay_shown(struct job *job, uint64_t offset)
{
    for (uint32_t t = job->batches == 0 ? 0 : job->tensors; t < register_count(job); t++) {
        struct tensor *tensor = register_at(job, t);
        tensor->layout.shown_offset = offset;
        offset += local_shown_size(tensor->numel, tensor->spec.forms);
    }
    return offset;
}

enum adtopk_status layout_gradients(struct job *job, bool shown, uint64_t *size, struct error *err)
{
    uint64_t end;

    const bool first = job->batches == 0;
    uint64_t offset = first ? CORE_OP_GRADIENTS + CORE_OP_SIZE : 0;

    for (uint32_t t = first ? 0 : job->tensors; t < register_count(job); t++) {
        struct tensor *tensor = register_at(job, t);
        uint64_t bytes = align(tensor->numel * dtype_size(tensor->spec.dtype));
        tensor->layout.gradient_offset = offset;
        if (offset + bytes > UINT64_MAX / 4) {
            return error_set(
                err, ADTOPK_ERR_MEMORY, "the gradients of job '%s' are too large", job->key.name);
        }
        offset += bytes;
    }
    end = lay_shown(job, offset);
    *size = shown ? end : offset;
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ residuals */

/* The size of a slot, in floats. A slot has the progress of the passes over a residual, then
 * states. For ranks but the first it begins with the residual. */
static uint64_t padded(const struct job *job, const struct tensor *tensor)
{
    return layout_pad(job, tensor->numel * sizeof(float)) / sizeof(float);
}

static uint64_t states_offset(const struct tensor *tensor)
{
    return align(progress_size(tensor->numel)) / sizeof(float);
}

static uint64_t slot(const struct tensor *tensor)
{
    return states_offset(tensor) + align(sizeof(struct store_states)) / sizeof(float);
}

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

static uint64_t digest(const struct job *job)
{
    uint64_t hash = hash_bytes(HASH_EMPTY, &job->history.brought, sizeof(job->history.brought));

    for (uint32_t t = 0; t < job->tensors; t++) {
        hash = hash_bytes(hash, &job->tensor[t].hash, sizeof(job->tensor[t].hash));
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        hash = hash_bytes(hash, &job->rank[r]->number, sizeof(job->rank[r]->number));
    }
    return hash;
}

uint64_t layout_number(uint32_t t, unsigned rank)
{
    return (uint64_t)t << 32 | rank;
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
    return spread_batch(job, &(struct batch){.end = job->tensors}, err);
}

static void point_gradients(struct job *job, unsigned batch)
{
    for (unsigned r = 0; r < job->ranks; r++) {
        job->layout.arenas.gradients[batch * job->ranks + r] = job->rank[r]->gradients[batch];
    }
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
    layout->batch[0] = (struct batch){.end = job->tensors};
    layout->batches = 1;
    size = align(store_size(job->tensors, all_slots(job, &layout->batch[0])));
    if (memory->open_job != NULL) {
        memory->open_job(memory->context, job->number, &job->key, job->run.id != 0);
    }
    layout->found = memory->store(memory->context, job->number, 0,
        size + job->core->config.threads * sizeof(struct journal), false, &existing, err);
    if (layout->found == NULL) {
        return err->code;
    }
    layout->journal = (struct journal *)(void *)((uint8_t *)layout->found + size);
    layout->fresh = !existing || layout->found->magic == 0; /* a daemon was killed as it began */
    return ADTOPK_OK;
}

enum adtopk_status layout_store(struct job *job, struct error *err)
{
    if (open_arenas(job, err) != ADTOPK_OK || layout_find(job, err) != ADTOPK_OK) {
        return err->code;
    }
    job->store = job->layout.found;
    job->layout.arenas.store[STORE_MAIN] = (uint8_t *)job->store;
    point_gradients(job, 0);
    if (store_open(job->store, !job->layout.fresh, job->run.id, digest(job), job->tensors, err) !=
        ADTOPK_OK) {
        return err->code;
    }
    views_merge(&job->store->views, job->agreement.views);
    free(job->agreement.views);
    job->agreement.views = &job->store->views;
    job->figures.counters.elements = 0;
    point_tensors(job, &job->layout.batch[0], job->store->tensor, store_slots(job->store));
    job->layout.arenas.journal = job->core->config.threads > 0 ? job->layout.journal : NULL;
    return job->store->more != 0 ? layout_more(job, err) : ADTOPK_OK;
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
    if (!existing && job->store->more != 0 && number == 0) {
        return error_set(
            err, ADTOPK_ERR_LOST, "the residuals of the ranks of job '%s' are gone", job->key.name);
    }
    return ADTOPK_OK;
}

enum adtopk_status layout_batch(struct job *job, uint32_t end, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    const unsigned number = job->layout.batches;
    const unsigned part = store_part(STORE_MAIN, number);
    struct batch *batch = &job->layout.batch[number];
    uint64_t records;
    uint8_t *bytes;
    bool existing;

    *batch = (struct batch){.first = job->layout.batch[number - 1].end, .end = end};
    if (spread_batch(job, batch, err) != ADTOPK_OK) {
        return err->code;
    }
    records = align((end - batch->first) * sizeof(struct store_tensor));
    memory->drop_store(memory->context, job->number, part);
    bytes = memory->store(memory->context, job->number, part,
        records + all_slots(job, batch) * sizeof(float), false, &existing, err);
    if (bytes == NULL) {
        return err->code;
    }
    job->layout.batches++;
    job->layout.arenas.store[part] = bytes;
    point_gradients(job, number);
    point_tensors(
        job, batch, (struct store_tensor *)(void *)bytes, (float *)(void *)(bytes + records));
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

/* ------------------------------------------------------------------ records of a plan */

static bool has_momentum(const struct plan_tensor *planned)
{
    return planned->policy.params.momentum > 0;
}

/* Points to a plan's record of one residual, at `offset` in the part. Returns its end. */
static uint64_t lay_selection(
    const struct plan_tensor *planned, uint8_t *part, uint64_t offset, struct selection *selection)
{
    uint64_t count = planned->count;
    uint64_t position = offset + sizeof(struct store_selection);
    uint64_t value = position + align(count * sizeof(uint32_t));

    if (part != NULL) {
        *selection = (struct selection){.header = (struct store_selection *)(void *)(part + offset),
            .list = {.position = (uint32_t *)(void *)(part + position),
                .value = (float *)(void *)(part + value),
                .capacity = count}};
    }
    return value + align(count * sizeof(float));
}

/* How many of the sums that this node rounds may come back. A share up to twice as long as an even
 * one has room. A longer one is sent unrounded. */
static uint64_t sum_rests_capacity(
    const struct job *job, uint64_t numel, const struct plan_tensor *planned)
{
    uint64_t share = 2 * planned->count * plan_residuals(job, planned) + ALIGNED_FLOATS;
    bool rounds = !planned->dense && !planned->known &&
                  planned->policy.values != PAYLOAD_VALUE_F32 &&
                  planned->policy.sparse_collective->traits.rerounds;

    return !rounds ? 0 : share < numel ? share : numel;
}

/* As above, with this node's share of an update's rests. An update has at most as many entries as
 * all contributions, and of these this node has a node's share. */
static uint64_t rests_capacity(
    const struct job *job, uint64_t numel, const struct plan_tensor *planned)
{
    uint64_t all =
        sum_rests_capacity(job, numel, planned) + plan_contribution_count(job, planned, numel) + 1;

    return planned->dense || !planned->narrow ? 0 : all < numel ? all : numel;
}

/* Points to a list of entries that come back, if it has room for any. */
static uint64_t lay_rest_list(
    uint64_t capacity, uint8_t *part, uint64_t offset, struct rest_list *rests)
{
    uint64_t size = align(capacity * sizeof(float));

    if (capacity == 0) {
        return offset;
    }
    if (part != NULL) {
        uint8_t *lists = part + offset + sizeof(struct store_rest_list);
        *rests = (struct rest_list){.header = (void *)(part + offset),
            .list = {.position = (void *)lists,
                .value = (void *)(lists + size),
                .capacity = capacity},
            .before = (void *)(lists + 2 * size)};
    }
    return offset + sizeof(struct store_rest_list) + 3 * size;
}

/* How many sums of a dense tensor this node rounds at most. */
static uint64_t rests_of(const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct plan_tensor *planned = &plan->tensor[t];
    bool rounds = planned->dense && planned->policy.dense_values != PAYLOAD_VALUE_F32 &&
                  planned->policy.dense_collective->traits.rests != NULL;

    return rounds
               ? planned->policy.dense_collective->traits.rests(plan->nodes, job->tensor[t].numel)
               : 0;
}

/* Gives a bucket's tensors room for the rests of their sums, one after the other, so that the room
 * is also the bucket's. Gives them none if that takes more than `most` places together. */
static uint64_t lay_bucket_rests(const struct job *job, struct plan *plan,
    const struct round *round, uint64_t place, uint64_t most)
{
    uint64_t room = 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        room += rests_of(job, plan, round->tensor[i]);
    }
    for (unsigned i = 0; room <= most - place && i < round->tensors; i++) {
        struct plan_tensor *planned = &plan->tensor[round->tensor[i]];
        planned->rest_place = place;
        planned->rest_room = rests_of(job, plan, round->tensor[i]);
        place += planned->rest_room;
    }
    return place;
}

/* The rests come last. A store that was made for another number of nodes then has everything else
 * in its place. */
static uint64_t lay_rests(const struct job *job, struct plan *plan, uint8_t *part, uint64_t offset)
{
    uint64_t elements = 0, place = 0, most;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        elements += job->tensor[t].numel;
    }
    most = (CORE_REST_BYTES + elements / 3) / sizeof(int16_t);
    for (uint32_t b = 0; b < plan->buckets; b++) {
        place = lay_bucket_rests(job, plan, &plan->round[b], place, most);
    }
    plan->rests = place;
    plan->rest = part != NULL && place > 0 ? (int16_t *)(void *)(part + offset) : NULL;
    return offset + align(place * sizeof(int16_t));
}

/* Lays out all of a plan. part NULL: computes only the size. */
static uint64_t lay_plan(const struct job *job, struct plan *plan, uint8_t *part)
{
    uint64_t offset = 0;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        struct plan_tensor *planned = &plan->tensor[t];
        for (unsigned r = 0; !planned->dense && r < plan_residuals(job, planned); r++) {
            offset = lay_selection(planned, part, offset, &planned->selection[r]);
        }
        offset = lay_rest_list(sum_rests_capacity(job, job->tensor[t].numel, planned), part, offset,
            &planned->sum_rests);
        offset = lay_rest_list(rests_capacity(job, job->tensor[t].numel, planned), part, offset,
            &planned->update_rests);
        if (!planned->dense && part != NULL) {
            const struct sparse *list = &planned->selection[0].list;
            planned->sent.position =
                planned->positions != NULL ? planned->positions : list->position;
            planned->sent.value = planned->values != NULL ? planned->values : list->value;
        }
    }
    return lay_rests(job, plan, part, offset);
}

static unsigned velocities_of(const struct job *job, const struct plan_tensor *planned)
{
    return has_momentum(planned) ? plan_residuals(job, planned) : 0;
}

static uint64_t velocities_size(const struct job *job, const struct plan *plan, uint32_t t)
{
    return velocities_of(job, &plan->tensor[t]) * padded(job, &job->tensor[t]) * sizeof(float);
}

/* Lays out the velocities of a tensor at `offset` of the part. */
static void lay_velocities_of(
    const struct job *job, const struct plan *plan, uint32_t t, uint8_t *part, uint64_t offset)
{
    const struct plan_tensor *planned = &plan->tensor[t];

    for (unsigned r = 0; part != NULL && r < velocities_of(job, planned); r++) {
        planned->selection[r].momentum = (float *)(void *)(part + offset);
        offset += padded(job, &job->tensor[t]) * sizeof(float);
    }
}

/* Lays out the velocities of a plan, which is for all batches: those of a shard lie together. part
 * NULL: tells only where the shards end. */
static void lay_velocities(struct job *job, const struct plan *plan, uint8_t *part)
{
    struct engine_memory *arenas = &job->layout.arenas;
    uint64_t offset = 0;
    unsigned shard = 0;

    do {
        for (uint32_t t = 0; t < plan->tensors; t++) {
            if (shards_of(arenas, t) == shard) {
                lay_velocities_of(job, plan, t, part, offset);
                offset += velocities_size(job, plan, t);
            }
        }
        shards_cut(arenas, plan->velocity_part, shard, offset);
    } while (++shard < arenas->shards);
}

/* The parts that a plan uses after this many switches. */
static unsigned plan_part(uint32_t switches)
{
    return STORE_PLAN + switches % 2;
}

static unsigned velocity_part(uint32_t switches)
{
    return STORE_VELOCITIES + switches % 2;
}

void layout_measure(const struct job *job, struct plan *plan)
{
    plan->store_bytes = lay_plan(job, plan, NULL);
    plan->velocity_bytes = 0;
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan->velocity_bytes += velocities_size(job, plan, t);
    }
}

/* Opens a part of what the plan keeps. *existing: it was there already. */
static uint8_t *open_kept(
    struct job *job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint8_t *bytes = memory->store(memory->context, job->number, part, size, false, existing, err);

    if (bytes != NULL) {
        job->layout.arenas.store[part] = bytes;
    }
    return bytes;
}

/* A plan's lists may be new unless they say which entries have left the residuals. */
static enum adtopk_status open_lists(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    bool existing = false;

    if (plan->store_bytes == 0) {
        return ADTOPK_OK;
    }
    plan->store_part = plan_part(switches);
    plan->store = open_kept(job, plan->store_part, plan->store_bytes, &existing, err);
    if (plan->store == NULL) {
        return err->code;
    }
    for (uint32_t t = 0; !existing && switches == job->store->policies && t < job->tensors; t++) {
        if (job->tensor[t].store->stage == STAGE_SETTLING) {
            return error_set(err, ADTOPK_ERR_LOST,
                "what job '%s' was taking out of its residuals is gone", job->key.name);
        }
    }
    (void)lay_plan(job, plan, plan->store);
    return ADTOPK_OK;
}

/* Velocities may be new until the job's residuals are there. */
static enum adtopk_status open_velocities(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    bool existing = false;
    uint8_t *bytes;

    if (plan->velocity_bytes == 0) {
        return ADTOPK_OK;
    }
    plan->velocity_part = velocity_part(switches);
    lay_velocities(job, plan, NULL);
    bytes = open_kept(job, plan->velocity_part, plan->velocity_bytes, &existing, err);
    if (bytes == NULL) {
        return err->code;
    }
    if (!existing && switches == job->store->policies && job->store->begun != 0 &&
        engine_is_near(job->core->config.engine)) {
        return error_set(
            err, ADTOPK_ERR_LOST, "the velocities of job '%s' are gone", job->key.name);
    }
    lay_velocities(job, plan, bytes);
    return ADTOPK_OK;
}

enum adtopk_status layout_kept(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    enum adtopk_status status;

    if (plan->nodes != plan_nodes(job)) { /* the nodes have changed since it was made */
        plan->nodes = plan_nodes(job);
        layout_measure(job, plan);
    }
    status = open_lists(job, plan, switches, err);
    return status == ADTOPK_OK ? open_velocities(job, plan, switches, err) : status;
}

void layout_drop_kept(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    memory->drop_store(memory->context, job->number, plan_part(job->store->policies + 1));
    memory->drop_store(memory->context, job->number, velocity_part(job->store->policies + 1));
}

/* The momentum of a residual that a pass may have been changing. */
static float *momentum_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    return !has_momentum(planned) || rank >= plan_residuals(job, planned)
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
        core_work(&job->verification.work, &work_rejoin, rejoined,
            job->figures.counters.elements * job->ranks * sizeof(float));
    } else {
        store_publish(&job->store->joining, 0);
    }
    return ADTOPK_OK;
}
