/*
 * Where everything of a job lies: gradients, residuals (residual.c) and updates.
 *
 * But for those a function of the registrations and the local ranks alone, so that nothing moves
 * when the policy changes and a restarted daemon finds everything again.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/hash.h"
#include "daemon/core/model.h"
#include "daemon/core/plan.h"

#define ALIGNMENT 64u
#define PAGE 4096u
/* A gap in the results that is not worth a system call of its own. */
#define CORE_GAP 65536u
#define ALIGNED_FLOATS (ALIGNMENT / sizeof(float))
/* What the rests of dense sums may take beyond a twelfth of the residuals, which is within 3 % of
 * gradients, residuals and updates. */
#define CORE_REST_BYTES (UINT64_C(32) << 20)

static uint64_t align(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

enum adtopk_status layout_gradients(struct job *job, uint64_t *size, struct error *err)
{
    uint64_t offset = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        uint64_t bytes = align(tensor->numel * dtype_size(tensor->spec.dtype));
        tensor->layout.gradient_offset = offset;
        if (offset + bytes > UINT64_MAX / 4) {
            return error_set(
                err, ADTOPK_ERR_MEMORY, "the gradients of job '%s' are too large", job->key.name);
        }
        offset += bytes;
    }
    job->op_gradient_offset = offset;
    *size = offset + CORE_OP_SIZE;
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ residuals */

/* A slot has the progress of the passes over a residual, then states; of ranks but the first, the
 * residual before that. All are counted in floats. */
static uint64_t padded(const struct tensor *tensor)
{
    return align(tensor->numel * sizeof(float)) / sizeof(float);
}

static uint64_t states_offset(const struct tensor *tensor)
{
    return align(progress_size(tensor->numel)) / sizeof(float);
}

static uint64_t slot(const struct tensor *tensor)
{
    return states_offset(tensor) + align(sizeof(struct store_states)) / sizeof(float);
}

static uint64_t rank_slot(const struct tensor *tensor)
{
    return padded(tensor) + slot(tensor);
}

static uint64_t all_slots(const struct job *job)
{
    uint64_t elements = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        elements += slot(&job->tensor[t]);
    }
    return elements;
}

static uint64_t digest(const struct job *job)
{
    uint64_t hash = hash_bytes(HASH_EMPTY, &job->policy_hash, sizeof(job->policy_hash));

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

enum adtopk_status layout_store(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint64_t size = store_size(job->tensors, all_slots(job));
    bool existing;
    uint64_t rank_slots = 0;
    float *next;

    if (memory->open_job != NULL) {
        memory->open_job(memory->context, job->number, &job->key, job->run != 0);
    }
    job->store = memory->store(memory->context, job->number, 0,
        align(size) + job->core->config.threads * sizeof(struct journal), &existing, err);
    if (job->store == NULL) {
        return err->code;
    }
    existing = existing && job->store->magic != 0; /* else: killed before it was filled in */
    job->store_fresh = !existing;
    if (store_open(job->store, existing, job->run, digest(job), job->tensors, err) != ADTOPK_OK) {
        return err->code;
    }
    job->counters.elements = 0;
    next = store_slots(job->store);
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        job->counters.elements += tensor->numel;
        tensor->store = &job->store->tensor[t];
        tensor->slot = next;
        tensor->rank_slots = rank_slots;
        next += slot(tensor);
        rank_slots += rank_slot(tensor);
    }
    job->journal = (struct journal *)(void *)((uint8_t *)job->store + align(size));
    return job->store->more != 0 ? layout_more(job, err) : ADTOPK_OK;
}

enum adtopk_status layout_more(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint64_t size = 0;
    bool existing = false;

    for (uint32_t t = 0; t < job->tensors; t++) {
        size += rank_slot(&job->tensor[t]) * (job->ranks - 1) * sizeof(float);
    }

    if (job->more != NULL || job->ranks < 2) {
        return ADTOPK_OK;
    }
    job->more = memory->store(memory->context, job->number, 1, size, &existing, err);
    if (job->more == NULL) {
        return err->code;
    }
    if (!existing && job->store->more != 0) {
        return error_set(
            err, ADTOPK_ERR_LOST, "the residuals of the ranks of job '%s' are gone", job->key.name);
    }
    if (existing && job->store->more == 0) {
        (void)memset(job->more, 0, (size_t)size); /* left by a daemon that got no further */
    }
    store_publish(&job->store->more, 1);
    return ADTOPK_OK;
}

void layout_drop_more(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    if (job->more != NULL && !plan_by_rank(job->plan)) {
        store_publish(&job->store->more, 0);
        memory->drop_store(memory->context, job->number, 1);
        job->more = NULL;
    }
}

/* The slot of a rank but the first. */
static float *rank_slot_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct tensor *tensor = &job->tensor[t];

    return (float *)(void *)job->more + tensor->rank_slots * (job->ranks - 1) +
           (rank - 1) * rank_slot(tensor);
}

float *layout_residual(const struct job *job, uint32_t t, unsigned rank)
{
    const struct planned *planned = &job->plan->tensor[t];

    if (rank > 0) {
        return rank_slot_of(job, t, rank);
    }
    return planned->rounded ? NULL : planned->residual;
}

struct rounded layout_rounded_in(const struct job *job, uint32_t t, void *memory)
{
    struct rounded rounded = rounded_at(memory, job->tensor[t].numel);

    rounded.salt = (uint64_t)job->core->config.node << 32 | t;
    return rounded;
}

struct rounded layout_rounded(const struct job *job, uint32_t t)
{
    const struct planned *planned = &job->plan->tensor[t];

    return planned->rounded ? layout_rounded_in(job, t, planned->residual)
                            : (struct rounded){.element = NULL};
}

static float *slot_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct tensor *tensor = &job->tensor[t];

    return rank == 0 ? tensor->slot : rank_slot_of(job, t, rank) + padded(tensor);
}

struct progress *layout_progress(const struct job *job, uint32_t t, unsigned rank)
{
    return (struct progress *)(void *)slot_of(job, t, rank);
}

struct store_states *layout_states(const struct job *job, uint32_t t, unsigned rank)
{
    return (struct store_states *)(void *)(slot_of(job, t, rank) + states_offset(&job->tensor[t]));
}

/* ------------------------------------------------------------------ what a plan keeps */

static bool has_momentum(const struct planned *planned)
{
    return planned->policy.params.momentum > 0;
}

/* Points to what is kept of one residual, `offset` behind the part's begin; returns its end. */
static uint64_t lay_kept(const struct planned *planned, uint64_t numel, uint8_t *part,
    uint64_t offset, struct kept *kept)
{
    uint64_t count = planned->dense ? 0 : planned->count;
    uint64_t position = offset + sizeof(struct store_kept);
    uint64_t value = position + align(count * sizeof(uint32_t));
    uint64_t momentum = value + align(count * sizeof(float));

    if (part != NULL) {
        *kept = (struct kept){.header = (struct store_kept *)(void *)(part + offset),
            .list = {.position = (uint32_t *)(void *)(part + position),
                .value = (float *)(void *)(part + value),
                .capacity = count}};
        kept->momentum = has_momentum(planned) ? (float *)(void *)(part + momentum) : NULL;
    }
    return momentum + (has_momentum(planned) ? align(numel * sizeof(float)) : 0);
}

/* The same of the sums that this node rounds. A share that is twice as long as an even one still
 * has room; a longer one travels unrounded. */
static uint64_t lay_returned(
    const struct job *job, uint64_t numel, struct planned *planned, uint8_t *part, uint64_t offset)
{
    uint64_t share = 2 * planned->count * plan_residuals(job, planned) + ALIGNED_FLOATS;
    uint64_t capacity = share < numel ? share : numel;
    uint64_t size = align(capacity * sizeof(float));

    if (planned->dense || planned->known || planned->policy.values == PAYLOAD_VALUE_F32 ||
        !planned->policy.sparse_collective->rounds) {
        return offset;
    }
    if (part != NULL) {
        uint8_t *lists = part + offset + sizeof(struct store_returned);
        planned->returned = (struct returned){.header = (void *)(part + offset),
            .list = {.position = (void *)lists,
                .value = (void *)(lists + size),
                .capacity = capacity},
            .kept = (void *)(lists + 2 * size)};
    }
    return offset + sizeof(struct store_returned) + 3 * size;
}

/* How many sums of a dense tensor this node rounds at most. */
static uint64_t rests_of(const struct job *job, uint32_t t, const struct planned *planned)
{
    unsigned nodes = plan_nodes(job);
    bool rounds = planned->dense && planned->policy.dense_values != PAYLOAD_VALUE_F32 &&
                  planned->policy.dense_collective->rests != NULL;

    return rounds ? planned->policy.dense_collective->rests(nodes, job->tensor[t].numel) : 0;
}

/* Gives a bucket's tensors room for the rests of their sums, one behind the other, so that it is
 * also the bucket's; none of them if that is more than `most` places in all. */
static uint64_t lay_bucket_rests(const struct job *job, struct plan *plan,
    const struct round *round, uint64_t place, uint64_t most)
{
    uint64_t room = 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        room += rests_of(job, round->tensor[i], &plan->tensor[round->tensor[i]]);
    }
    for (unsigned i = 0; room <= most - place && i < round->tensors; i++) {
        struct planned *planned = &plan->tensor[round->tensor[i]];
        planned->rest_place = place;
        planned->rest_room = rests_of(job, round->tensor[i], planned);
        place += planned->rest_room;
    }
    return place;
}

/* The rests come last: a store that was made for another number of nodes has all else in its place.
 */
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

/* Lays out all of a plan; part NULL: only for the size. */
static uint64_t lay_plan(const struct job *job, struct plan *plan, uint8_t *part)
{
    uint64_t offset = 0;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        struct planned *planned = &plan->tensor[t];
        bool keeps = !planned->dense || has_momentum(planned);
        for (unsigned r = 0; keeps && r < plan_residuals(job, planned); r++) {
            offset = lay_kept(planned, job->tensor[t].numel, part, offset, &planned->kept[r]);
        }
        offset = lay_returned(job, job->tensor[t].numel, planned, part, offset);
        if (!planned->dense && part != NULL) {
            const struct sparse *list = &planned->kept[0].list;
            planned->sent.position =
                planned->positions != NULL ? planned->positions : list->position;
            planned->sent.value = planned->values != NULL ? planned->values : list->value;
        }
    }
    return lay_rests(job, plan, part, offset);
}

static unsigned kept_part(uint32_t switches)
{
    return STORE_PLAN + switches % 2;
}

enum adtopk_status layout_kept(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint64_t size = lay_plan(job, plan, NULL);
    bool existing = false;

    if (size == 0) {
        return ADTOPK_OK;
    }
    plan->store =
        memory->store(memory->context, job->number, kept_part(switches), size, &existing, err);
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

void layout_drop_kept(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    memory->drop_store(memory->context, job->number, kept_part(job->store->policies + 1));
}

/* The momentum of a residual that a pass may have been changing. */
static float *momentum_of(const struct job *job, uint32_t t, unsigned rank)
{
    const struct planned *planned = &job->plan->tensor[t];

    return !has_momentum(planned) || rank >= plan_residuals(job, planned)
               ? NULL
               : planned->kept[rank].momentum;
}

/* Puts back what was being changed. */
static bool recover_chunk(struct job *job, struct journal *journal, uint32_t t, unsigned rank)
{
    struct rounded rounded = layout_rounded(job, t);
    uint64_t numel = job->tensor[t].numel;

    return rank == 0 && rounded.element != NULL
               ? rounded_recover(journal, &rounded, numel, layout_progress(job, t, 0))
               : journal_recover(journal, layout_residual(job, t, rank), momentum_of(job, t, rank),
                     numel, layout_progress(job, t, rank));
}

enum adtopk_status layout_recover(struct job *job, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned j = 0; j < job->core->config.threads; j++) {
        uint64_t number;
        uint32_t t;
        unsigned rank;
        if (!journal_pending(&job->journal[j], &number)) {
            continue;
        }
        t = (uint32_t)(number >> 32);
        rank = (unsigned)(number & UINT32_MAX);
        if (t >= job->tensors || rank >= (job->more != NULL ? job->ranks : 1) ||
            !recover_chunk(job, &job->journal[j], t, rank)) {
            return error_set(
                err, ADTOPK_ERR_LOST, "the store of job '%s' is damaged", job->key.name);
        }
    }
    for (uint32_t t = 0; job->store->joining != 0 && job->more != NULL && t < job->tensors; t++) {
        if (status == ADTOPK_OK && job->plan->tensor[t].by_rank) {
            status = settle_join(&job->settle, t);
        }
    }
    store_publish(&job->store->joining, 0);
    return status == ADTOPK_OK
               ? ADTOPK_OK
               : error_set(err, status, "no memory for the residuals of job '%s'", job->key.name);
}

/* ------------------------------------------------------------------ updates */

/* Lays out one update after `offset` and returns its end. There is always room for the dense form,
 * because any policy may let the tensor travel dense; a list of more than half the elements is
 * longer than that and comes dense too. Where only the list was asked for, both share the room. */
static uint64_t lay_update(
    const struct tensor *tensor, uint64_t offset, struct local_update *update)
{
    unsigned forms = tensor->spec.forms != 0 ? tensor->spec.forms : LOCAL_FORM_DENSE;
    uint64_t half = (tensor->numel + 2 * ALIGNED_FLOATS - 1) / (2 * ALIGNED_FLOATS);
    uint64_t capacity = (forms & LOCAL_FORM_LIST) != 0 ? half * ALIGNED_FLOATS : 0;

    *update = (struct local_update){.numel = tensor->numel, .capacity = capacity};
    offset += align(sizeof(*update));
    update->dense_offset = offset;
    if ((forms & LOCAL_FORM_DENSE) != 0) {
        offset += align(tensor->numel * sizeof(float));
    }
    if (capacity > 0) {
        update->index_offset = offset;
        offset += capacity * sizeof(uint32_t);
        update->value_offset = offset;
        offset += capacity * sizeof(float);
    }
    return offset;
}

struct local_update *layout_update(const struct job *job, uint32_t tensor)
{
    return (struct local_update *)(void *)(job->results + job->tensor[tensor].layout.update_offset);
}

/* Pieces of the results that are to be reserved: neighbours are put together. */
struct pieces {
    struct core_piece *piece;
    unsigned count, capacity;
    bool out_of_memory;
};

static void add_piece(struct pieces *pieces, uint64_t offset, uint64_t size)
{
    struct core_piece *last = pieces->count > 0 ? &pieces->piece[pieces->count - 1] : NULL;

    if (last != NULL && offset <= last->offset + last->size + CORE_GAP) {
        last->size =
            offset + size > last->offset + last->size ? offset + size - last->offset : last->size;
        return;
    }
    if (pieces->count == pieces->capacity) {
        unsigned capacity = pieces->capacity > 0 ? 2 * pieces->capacity : 16;
        struct core_piece *grown = realloc(pieces->piece, capacity * sizeof(*grown));
        if (grown == NULL) {
            pieces->out_of_memory = true;
            return;
        }
        pieces->piece = grown;
        pieces->capacity = capacity;
    }
    pieces->piece[pieces->count++] = (struct core_piece){.offset = offset, .size = size};
}

/* While computes of the plan in force read the tensor. */
static void add_update(
    struct pieces *pieces, const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct tensor *tensor = &job->tensor[t];
    struct local_update update;
    uint64_t count = plan_update_count(job, plan, t);
    bool fits = count <= tensor->list_capacity;
    unsigned forms = tensor->spec.forms != 0 ? tensor->spec.forms : LOCAL_FORM_DENSE;

    add_piece(pieces, tensor->layout.update_offset, sizeof(update));
    (void)lay_update(tensor, tensor->layout.update_offset, &update);
    if (plan->tensor[t].dense || (forms & LOCAL_FORM_DENSE) != 0 || !fits) {
        add_piece(pieces, update.dense_offset, tensor->numel * sizeof(float));
    }
    if (!plan->tensor[t].dense && update.capacity > 0) {
        count = fits ? count : tensor->list_capacity;
        add_piece(pieces, update.index_offset, count * sizeof(uint32_t));
        add_piece(pieces, update.value_offset, count * sizeof(float));
    }
}

enum adtopk_status layout_reserve(struct job *job, const struct plan *plan,
    void (*then)(struct job *job, const struct error *error), struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct pieces pieces = {.piece = NULL};
    enum adtopk_status status = ADTOPK_OK;
    bool later = false;

    if (memory->reserve_results != NULL) {
        add_piece(&pieces, 0, job->op_result_offset + CORE_OP_SIZE);
        for (uint32_t t = 0; !pieces.out_of_memory && t < job->tensors; t++) {
            add_update(&pieces, job, plan, t);
        }
        status = pieces.out_of_memory
                     ? error_set(err, ADTOPK_ERR_MEMORY, "no memory to lay out the results")
                     : memory->reserve_results(
                           memory->context, job->number, pieces.piece, pieces.count, &later, err);
        free(pieces.piece);
    }
    job->reserved = later ? then : NULL;
    job->reserving += later ? 1 : 0;
    job->computing += later ? 1 : 0;
    if (status == ADTOPK_OK && !later) {
        then(job, NULL);
    }
    return status;
}

void layout_reserved(struct core *core, uint64_t id, const struct error *error)
{
    struct job *job = core->jobs;

    while (job != NULL && (job->number != id || job->reserving == 0)) {
        job = job->next;
    }
    assert(job != NULL); /* it is not freed while it reserves */
    job->computing--;
    job->reserving--;
    if (!job_ended(job) && job->reserving == 0 && job->reserved != NULL) {
        job->reserved(job, error);
    }
    if (!job_ended(job)) {
        view_try_answer(job);
        verify_try(job);
    }
}

/* Also where it is there already: who made it may have been killed before it was complete. What it
 * says of the last update stays. */
static void write_table(const struct job *job)
{
    struct local_results *table = (struct local_results *)(void *)job->results;

    table->tensors = job->tensors;
    table->op_gradient_offset = job->op_gradient_offset;
    table->op_result_offset = job->op_result_offset;
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct local_update *update = layout_update(job, t), fresh;
        table->tensor[t].gradient_offset = job->tensor[t].layout.gradient_offset;
        table->tensor[t].update_offset = job->tensor[t].layout.update_offset;
        (void)lay_update(&job->tensor[t], job->tensor[t].layout.update_offset, &fresh);
        fresh.count = update->count;
        fresh.step = update->step;
        fresh.forms = update->forms;
        fresh.turn = update->turn;
        *update = fresh;
    }
}

static void work_table(struct compute *compute)
{
    write_table(((struct work *)compute)->job);
}

/* Now the view's state can be told: core.c sees to that when nothing computes any more. */
static void table_written(struct work *work)
{
    (void)work;
}

static void results_reserved(struct job *job, const struct error *error)
{
    bool begun = job->table_begun;

    job->table_begun = true;
    if (error != NULL) {
        job_fail(job, error, true);
    } else if (begun) {
        return; /* for a view of fewer nodes: the table is the same */
    } else if (job->tensors <= job->core->config.inline_tensors) {
        write_table(job); /* which may touch a page of each */
    } else {
        core_compute(&job->settle, work_table, table_written, (uint64_t)job->tensors * PAGE);
    }
}

static enum adtopk_status open_results(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint64_t size = align(sizeof(struct local_results) +
                          (uint64_t)job->tensors * sizeof(((struct local_results *)0)->tensor[0]));
    struct local_update update;
    bool existing;

    job->op_result_offset = size;
    size += CORE_OP_SIZE;
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->tensor[t].layout.update_offset = size;
        size = lay_update(&job->tensor[t], size, &update);
        job->tensor[t].list_capacity = update.capacity;
    }
    job->results = memory->results(memory->context, job->number, size, &existing, err);
    if (job->results == NULL) {
        return err->code;
    }
    if (!existing && job->store->steps_done + job->store->ops_done > 0) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the updates of job '%s' that belong to its residuals are gone", job->key.name);
    }
    return ADTOPK_OK;
}

enum adtopk_status layout_results(struct job *job, struct error *err)
{
    if (job->results == NULL && open_results(job, err) != ADTOPK_OK) {
        return err->code;
    }
    if (job->reserved_nodes >= plan_nodes(job)) {
        return ADTOPK_OK;
    }
    job->reserved_nodes = plan_nodes(job);
    return layout_reserve(job, job->plan, results_reserved, err);
}
