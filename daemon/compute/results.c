/*
 * The places of updates: the results, an arena per batch of tensors, with a table in front.
 *
 * An arena has room for each tensor's update in every form that a policy may give it, and nothing
 * in it moves. Memory is reserved for what the policy in force needs.
 */
#include "daemon/compute/results.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/compute/layout.h"
#include "daemon/job/actions.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

#define PAGE 4096u
/* A gap in the results that is not worth a system call of its own. */
#define CORE_GAP 65536u
#define ALIGNED_FLOATS (LAYOUT_ALIGNMENT / sizeof(float))

/* The table in front of a batch's results. */
static uint64_t table_size(const struct batch *batch)
{
    const uint64_t entry = sizeof(((struct local_results *)0)->tensor[0]);

    return layout_align(sizeof(struct local_results) + (batch->end - batch->first) * entry);
}

bool results_is_narrow(const struct tensor *tensor)
{
    return (tensor->spec.forms & LOCAL_FORM_DENSE16) != 0;
}

unsigned results_forms(const struct tensor *tensor)
{
    const unsigned forms = tensor->spec.forms & (LOCAL_FORM_LIST | LOCAL_FORM_DENSE);

    if (results_is_narrow(tensor)) {
        return LOCAL_FORM_LIST;
    }
    return forms != 0 ? forms : LOCAL_FORM_DENSE;
}

/* Lays out the 16-bit form, and the list that ranks see beside it. */
static uint64_t lay_narrow(
    const struct tensor *tensor, uint64_t offset, struct local_update *update)
{
    if (results_is_narrow(tensor)) {
        update->half_offset = offset;
        offset += layout_align(tensor->numel * sizeof(uint16_t));
    }
    if (results_is_narrow(tensor) && (tensor->spec.forms & LOCAL_FORM_LIST) != 0) {
        update->shown_offset = offset;
        offset += update->capacity * sizeof(float);
    }
    return offset;
}

/* Lays out one update after `offset` and returns its end. There is always room for the dense form,
 * because any policy may have the tensor sent dense. A list of more than half the elements is
 * longer than the dense form, and is replaced by it. If ranks want only the list, both share the
 * room. */
static uint64_t lay_update(
    const struct tensor *tensor, uint64_t offset, struct local_update *update)
{
    unsigned forms = results_forms(tensor);
    uint64_t half = (tensor->numel + 2 * ALIGNED_FLOATS - 1) / (2 * ALIGNED_FLOATS);
    uint64_t capacity = (forms & LOCAL_FORM_LIST) != 0 ? half * ALIGNED_FLOATS : 0;

    *update = (struct local_update){.numel = tensor->numel, .capacity = capacity};
    offset += layout_align(sizeof(*update));
    update->dense_offset = offset;
    if ((forms & LOCAL_FORM_DENSE) != 0) {
        offset += layout_align(tensor->numel * sizeof(float));
    }
    if (capacity > 0) {
        update->index_offset = offset;
        offset += capacity * sizeof(uint32_t);
        update->value_offset = offset;
        offset += capacity * sizeof(float);
    }
    return lay_narrow(tensor, offset, update);
}

_Static_assert(CORE_STORE_PARTS == LOCAL_PARTS, "clients map parts by their numbers");

/* A rank knows only its node's residual. It assumes that the unsent gradients of other nodes are
 * similar. */
float results_pending_scale(const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct plan_tensor *planned = &plan->tensor[t];
    const float summed = planned->by_rank ? 1 : (float)job->ranks;
    const bool looks = planned->policy.lookahead > 0 && !planned->dense;

    return !looks || planned->residual == NULL
               ? 0
               : (plan->policy.reduce == REDUCE_MEAN ? 1 : (float)job->run.ranks) / summed;
}

void results_rescale(const struct job *job)
{
    for (uint32_t t = 0; job->layout.batch[0].results != NULL && t < job->tensors; t++) {
        struct local_pending *pending = &results_update(job, t)->pending;
        if (pending->part != LOCAL_PARTS) {
            pending->scale = results_pending_scale(job, job->plan, t);
        }
    }
}

void results_pending(const struct job *job, const struct plan *plan, uint32_t switches, uint32_t t)
{
    const struct plan_tensor *planned = &plan->tensor[t];
    const unsigned batch = job->tensor[t].layout.batch;
    const unsigned part = store_part(STORE_RESIDUALS + plan->residuals, batch);
    const uint8_t *base = job->layout.arenas.store[part];
    struct local_pending *pending = &results_update(job, t)->pending;

    const uint8_t corrected = planned->policy.params.momentum > 0;

    const float scale = results_pending_scale(job, plan, t);

    *pending = (struct local_pending){.part = LOCAL_PARTS,
        .since = switches + 1,
        .lookahead = scale > 0 ? (float)planned->policy.lookahead : 0,
        .corrected = corrected};
    if (!(scale > 0) || !job->layout.batch[batch].shown ||
        (job->tensor[t].spec.forms & LOCAL_FORM_PENDING) == 0) {
        return;
    }
    *pending = (struct local_pending){.offset = (uint64_t)((uint8_t *)planned->residual - base),
        .part = (uint8_t)part,
        .since = switches + 1,
        .dtype = planned->rounded ? DTYPE_BF16 : DTYPE_F32,
        .scale = scale,
        .lookahead = (float)planned->policy.lookahead,
        .corrected = corrected};
    if (planned->by_rank && job->ranks > 1) {
        pending->rank_part = (uint8_t)store_part(STORE_RANKS, batch);
        pending->rank_offset = job->tensor[t].rank_slots * (job->ranks - 1) * sizeof(float);
        pending->rank_size = layout_rank_slot(job, &job->tensor[t]) * sizeof(float);
    }
}

void *results_at(const struct job *job, uint32_t tensor, uint64_t offset)
{
    return job->layout.batch[job->tensor[tensor].layout.batch].results + offset;
}

struct local_update *results_update(const struct job *job, uint32_t tensor)
{
    return (struct local_update *)results_at(job, tensor, job->tensor[tensor].layout.update_offset);
}

float *results_dense(const struct job *job, uint32_t tensor)
{
    return results_at(job, tensor, results_update(job, tensor)->dense_offset);
}

uint32_t *results_index(const struct job *job, uint32_t tensor)
{
    return results_at(job, tensor, results_update(job, tensor)->index_offset);
}

float *results_value(const struct job *job, uint32_t tensor)
{
    return results_at(job, tensor, results_update(job, tensor)->value_offset);
}

static void *update_part(const struct job *job, uint32_t tensor, uint64_t offset)
{
    return offset != 0 ? results_at(job, tensor, offset) : NULL;
}

uint16_t *results_half(const struct job *job, uint32_t tensor)
{
    return update_part(job, tensor, results_update(job, tensor)->half_offset);
}

float *results_shown(const struct job *job, uint32_t tensor)
{
    return update_part(job, tensor, results_update(job, tensor)->shown_offset);
}

/* Pieces of the results to reserve. Neighbours are joined. */
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

/* Adds a tensor's update to the pieces, while computes of the plan in force may read the tensor. */
static void add_update(
    struct pieces *pieces, const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct tensor *tensor = &job->tensor[t];
    struct local_update update;
    uint64_t count = plan_update_count(job, plan, t);
    bool fits = count <= tensor->list_capacity;
    unsigned forms = results_forms(tensor);

    add_piece(pieces, tensor->layout.update_offset, sizeof(update));
    (void)lay_update(tensor, tensor->layout.update_offset, &update);
    if (plan->tensor[t].dense || (forms & LOCAL_FORM_DENSE) != 0 || !fits) {
        add_piece(pieces, update.dense_offset, tensor->numel * sizeof(float));
    }
    if (!plan->tensor[t].dense && update.capacity > 0) {
        count = fits ? count : tensor->list_capacity;
        add_piece(pieces, update.index_offset, count * sizeof(uint32_t));
        add_piece(pieces, update.value_offset, count * sizeof(float));
        add_piece(
            pieces, update.shown_offset, update.shown_offset != 0 ? count * sizeof(float) : 0);
    }
    add_piece(
        pieces, update.half_offset, update.half_offset != 0 ? tensor->numel * sizeof(uint16_t) : 0);
}

/* Reserves what the plan needs of a batch's results. */
static enum adtopk_status reserve_batch(
    struct job *job, const struct plan *plan, unsigned number, bool *later, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    const struct batch *batch = &job->layout.batch[number];
    struct pieces pieces = {.piece = NULL};
    enum adtopk_status status;

    add_piece(&pieces, 0, table_size(batch) + (number == 0 ? CORE_OP_SIZE : 0));
    for (uint32_t t = batch->first; !pieces.out_of_memory && t < batch->end; t++) {
        add_update(&pieces, job, plan, t);
    }
    status = pieces.out_of_memory
                 ? error_set(err, ADTOPK_ERR_MEMORY, "no memory to lay out the results")
                 : memory->reserve_results(memory->context, job->number, number, pieces.piece,
                       pieces.count, later, err);
    free(pieces.piece);
    return status;
}

enum adtopk_status results_reserve(struct job *job, const struct plan *plan,
    void (*then)(struct job *job, const struct error *error), struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    unsigned reserving = 0;

    job->layout.stale = job->layout.reserving;
    for (unsigned b = 0; status == ADTOPK_OK && b < job->layout.batches &&
                         job->core->config.memory.reserve_results != NULL;
         b++) {
        bool later = false;
        status = reserve_batch(job, plan, b, &later, err);
        reserving += later ? 1 : 0;
    }
    job->layout.reserved = reserving > 0 && status == ADTOPK_OK ? then : NULL;
    job->layout.unreserved.code = ADTOPK_OK;
    job->layout.reserving += reserving;
    job->advance.computing += reserving;
    if (status == ADTOPK_OK && reserving == 0) {
        then(job, NULL);
    }
    return status;
}

void results_forget_reserved(
    struct job *job, void (*then)(struct job *job, const struct error *error))
{
    if (job->layout.reserved == then) {
        job->layout.reserved = NULL;
    }
}

void results_reserved(struct core *core, uint64_t id, const struct error *error)
{
    struct job *job = job_index_first(core, BY_NUMBER, id);

    assert(job != NULL && job->layout.reserving > 0); /* the job is not freed while it reserves */
    job->advance.computing--;
    job->layout.reserving--;
    if (job->layout.stale > 0) {
        job->layout.stale--;
    } else if (error != NULL && job->layout.unreserved.code == ADTOPK_OK) {
        job->layout.unreserved = *error;
    }
    if (!job_ended(job) && job->layout.reserving == 0 && job->layout.reserved != NULL) {
        const struct error first = job->layout.unreserved;
        job->layout.reserved(job, first.code != ADTOPK_OK ? &first : NULL);
    }
    job_touch(job);
}

bool results_list_fits(const uint32_t *place, uint64_t count, uint64_t room, uint64_t numel)
{
    uint64_t i = 0;

    while (i < count && count <= room && place[i] < numel) {
        i++;
    }
    return i == count;
}

/* Whether the last update's list can be read. While gradients are in the residual and the sum is
 * not delivered, a part of the next list may be in its place: nobody reads it any more. */
static bool table_list_fits(const struct job *job, uint32_t t, const struct local_update *update)
{
    const bool replaced = job->tensor[t].store->stage == STAGE_ACCUMULATED;

    return update->count <= update->capacity &&
           (replaced || results_list_fits(results_at(job, t, update->index_offset), update->count,
                            update->capacity, update->numel));
}

/* Writes the table even if it exists, because its writer may have been killed before it was
 * complete. Entries about the last update stay. False: the list of one is damaged. */
static bool write_table(
    const struct job *job, unsigned number, const struct plan *plan, uint32_t switches)
{
    const struct batch *batch = &job->layout.batch[number];
    struct local_results *table = (struct local_results *)(void *)batch->results;
    bool fits = true;

    table->tensors = batch->end - batch->first;
    table->op_gradient_offset = CORE_OP_GRADIENTS;
    table->op_result_offset = number == 0 ? job->layout.op_result_offset : 0;
    for (uint32_t t = batch->first; t < batch->end; t++) {
        struct local_update *update = results_update(job, t), fresh;
        table->tensor[t - batch->first].gradient_offset = job->tensor[t].layout.gradient_offset;
        table->tensor[t - batch->first].update_offset = job->tensor[t].layout.update_offset;
        (void)lay_update(&job->tensor[t], job->tensor[t].layout.update_offset, &fresh);
        fresh.count = update->count;
        fresh.step = update->step;
        fresh.forms = update->forms;
        fresh.turn = update->turn;
        fresh.unpushed = update->unpushed;
        fresh.nonfinite = update->nonfinite;
        fresh.final = update->final;
        if (!table_list_fits(job, t, &fresh)) {
            fresh.count = 0; /* other nodes may ask for it before the job has ended */
            fits = false;
        }
        *update = fresh;
        results_pending(job, plan, switches, t);
    }
    return fits;
}

bool results_table(const struct job *job)
{
    const bool next = job->registering.moving > 0;
    bool fits = true;

    for (unsigned b = next ? job->layout.batches - 1 : 0; b < job->layout.batches; b++) {
        fits = write_table(job, b, next ? job->switching.next : job->plan,
                   job->store->policies + (next ? 1 : 0)) &&
               fits;
    }
    return fits;
}

uint64_t results_table_bytes(const struct job *job)
{
    const uint32_t moving = job->registering.moving;

    return (uint64_t)(moving > 0 ? moving : job->tensors) * PAGE;
}

enum adtopk_status results_damaged(const struct job *job, struct error *err)
{
    return error_set(err, ADTOPK_ERR_LOST,
        "the store of job '%s' is damaged: a list in it names elements that no tensor has",
        job->key.name);
}

static void work_refuse(struct compute *compute)
{
    struct work *work = (struct work *)compute;

    work->status = results_damaged(work->job, &work->error);
}

static void work_table(struct compute *compute)
{
    if (!results_table(((struct work *)compute)->job)) {
        work_refuse(compute);
    }
}

/* Now the node can answer with the view's state. core/advance.c does that when nothing computes any
 * more. */
static void table_written(struct work *work)
{
    (void)work;
}

static void results_begun(struct job *job, const struct error *error)
{
    bool begun = job->layout.table_begun;

    job->layout.table_begun = true;
    if (error != NULL) {
        job_fail(job, error, true);
    } else if (begun) {
        return; /* it was reserved for fewer nodes: the table is the same */
    } else if (job->tensors <= job->core->config.inline_tensors) {
        if (!results_table(job)) { /* may touch a page of each; the job is being prepared */
            core_compute(&job->step.settle, work_refuse, table_written, 0);
        }
    } else {
        core_compute(&job->step.settle, work_table, table_written, results_table_bytes(job));
    }
}

enum adtopk_status results_open(struct job *job, unsigned number, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct batch *batch = &job->layout.batch[number];
    uint64_t size = table_size(batch);
    struct local_update update;
    bool existing;

    if (number == 0) {
        job->layout.op_result_offset = size;
        size += CORE_OP_SIZE;
    }
    for (uint32_t t = batch->first; t < batch->end; t++) {
        job->tensor[t].layout.update_offset = size;
        size = lay_update(&job->tensor[t], size, &update);
        job->tensor[t].list_capacity = update.capacity;
    }
    batch->results = memory->results(memory->context, job->number, number, size, &existing, err);
    if (batch->results == NULL) {
        return err->code;
    }
    job->layout.arenas.results[number] = batch->results;
    if (!existing && number < store_batches(job->store) &&
        job->store->steps_done + job->store->ops_done > 0) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the updates of job '%s' that belong to its residuals are gone", job->key.name);
    }
    return ADTOPK_OK;
}

enum adtopk_status results_begin(struct job *job, struct error *err)
{
    if (job->layout.batch[0].results == NULL && results_open(job, 0, err) != ADTOPK_OK) {
        return err->code;
    }
    if (job->layout.reserved_nodes >= plan_nodes(job)) {
        return ADTOPK_OK;
    }
    job->layout.reserved_nodes = plan_nodes(job);
    return results_reserve(job, job->plan, results_begun, err);
}

void results_tell(const struct rank *rank, uint32_t tensor, uint64_t step)
{
    const struct job *job = rank->job;
    const bool nonfinite = job->tensor[tensor].store->round_nonfinite != 0;

    core_act(job->core,
        &(struct action){.type = ACTION_DELIVERED,
            .session = rank->session,
            .tensor = tensor,
            .number = step,
            .shown =
                (results_update(job, tensor)->forms & LOCAL_FORM_SHOWN) != 0 && !rank->succeeds,
            .status = nonfinite && !plan_propagates(job->plan) ? ADTOPK_NONFINITE : ADTOPK_OK});
}
