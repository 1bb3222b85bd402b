/*
 * The nodes' residuals, in f32 or bf16 as the plan says for each tensor.
 *
 * All residuals of a plan are in one part of the store, or in one part per batch of tensors. Happy
 * path of a policy with other types: when it is proposed, the store's other part is reserved for
 * them, or the policy is refused. While the step is held, every residual is converted into that
 * part. The record that puts the policy in force says which part is in use. Then the old part is
 * freed. If the daemon is killed before that record, the old part is unchanged, and the other one
 * is filled again, or dropped.
 */
#include "daemon/compute/residual.h"

#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/moving.h"
#include "daemon/engine/shards.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

static uint64_t size_of(const struct job *job, const struct plan *plan, uint32_t t)
{
    uint64_t numel = job->tensor[t].numel;
    uint64_t size = plan->tensor[t].rounded ? rounded_size(numel) : numel * sizeof(float);

    return layout_pad(job, size);
}

uint64_t residual_bytes(const struct job *job, const struct plan *plan, unsigned number)
{
    const struct batch *batch = &job->layout.batch[number];
    uint64_t size = layout_pad(job, 1);

    for (uint32_t t = batch->first; t < batch->end; t++) {
        size += size_of(job, plan, t);
    }
    return size;
}

/* Opens a batch's part for the plan. *existing: it was there already. */
static enum adtopk_status open_batch(struct job *job, struct plan *plan, uint32_t part,
    unsigned number, bool *existing, struct error *err)
{
    const struct batch *batch = &job->layout.batch[number];
    const unsigned place = store_part(STORE_RESIDUALS + part, number);
    const uint64_t size = residual_bytes(job, plan, number);
    uint64_t offset = 0;
    uint8_t *bytes;

    for (uint32_t t = batch->first; t < batch->end; t++) {
        shards_mark(&job->layout.arenas, place, t, offset);
        offset += size_of(job, plan, t);
    }
    shards_mark(&job->layout.arenas, place, batch->end, size);
    *existing = false;
    bytes = moving_part(job, place, size, batch->shown, existing, err);
    job->layout.arenas.store[place] = bytes;
    if (bytes == NULL) {
        return err->code;
    }
    for (uint32_t t = batch->first; t < batch->end; t++) {
        plan->tensor[t].residual = bytes;
        bytes += size_of(job, plan, t);
    }
    plan->residuals = part;
    return ADTOPK_OK;
}

/* Does the same for the batches from `first` on. */
static enum adtopk_status open_part(
    struct job *job, struct plan *plan, uint32_t part, unsigned first, struct error *err)
{
    bool existing;

    for (unsigned b = first; b < job->layout.batches; b++) {
        if (open_batch(job, plan, part, b, &existing, err) != ADTOPK_OK) {
            return err->code;
        }
    }
    return ADTOPK_OK;
}

/* Finds the residuals of the plan in force, when the job begins or its daemon has restarted. */
static enum adtopk_status residual_find(struct job *job, struct plan *plan, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct store_header *store = job->store;
    uint32_t part = store->policies > 0 ? store->policy[store->policies % 2].residuals % 2 : 0;
    bool existing;

    if (store->begun == 0) { /* an earlier daemon may have opened it and done no more */
        memory->drop_store(memory->context, job->number, STORE_RESIDUALS + part);
    }
    for (unsigned b = 0; b < job->layout.batches; b++) {
        if (open_batch(job, plan, part, b, &existing, err) != ADTOPK_OK) {
            return err->code;
        }
        if (!existing && store->begun != 0 && !plan_is_far(job, plan)) {
            return error_set(
                err, ADTOPK_ERR_LOST, "the residuals of job '%s' are gone", job->key.name);
        }
    }
    if (store->begun == BEGUN_NOTHING) {
        store_publish(&store->begun, BEGUN_THERE);
    }
    return ADTOPK_OK;
}

/* Whether the tensors of both plans have residuals of the same types. */
static bool same_types(const struct plan *a, const struct plan *b)
{
    for (uint32_t t = 0; t < a->tensors && t < b->tensors; t++) {
        if (a->tensor[t].rounded != b->tensor[t].rounded) {
            return false;
        }
    }
    return true;
}

static enum adtopk_status residual_open_next(struct job *job, struct plan *plan, struct error *err)
{
    const struct plan *now = job->plan;

    if (!same_types(plan, now)) {
        return open_part(job, plan, 1 - now->residuals, 0, err);
    }
    plan->residuals = now->residuals;
    for (uint32_t t = 0; t < now->tensors; t++) {
        plan->tensor[t].residual = now->tensor[t].residual;
    }
    return open_part(job, plan, now->residuals, job->batches, err);
}

enum adtopk_status residual_open(struct job *job, struct plan *plan, struct error *err)
{
    const struct plan *now = job->plan;

    if (moving_check(job, plan, err) != ADTOPK_OK) {
        return err->code;
    }
    if (plan == now) {
        return residual_find(job, plan, err);
    }
    return residual_open_next(job, plan, err) == ADTOPK_OK ? moving_open(job, plan, err)
                                                           : err->code;
}

void residual_drop_other(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    for (unsigned b = 0; b < job->layout.batches; b++) {
        memory->drop_store(memory->context, job->number,
            store_part(STORE_RESIDUALS + 1 - job->plan->residuals, b));
    }
    moving_forget(job);
}
