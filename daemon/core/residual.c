/*
 * The nodes' residuals, in f32 or bf16 as the plan says of each tensor.
 *
 * All of a plan's are in one part of the store. Happy path of a policy with other types: when it is
 * proposed, the store's other part is reserved for them, or the policy is refused; while the step
 * is held, every residual is converted into it; the store says which part is in use in the record
 * that puts the policy in force; the old part is given back. Killed before that record: the old
 * part is unchanged, and the other one is filled again, or dropped.
 */
#include <math.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/residual.h"

#define ALIGNMENT 64u

static uint64_t size_of(const struct job *job, const struct plan *plan, uint32_t t)
{
    uint64_t numel = job->tensor[t].numel;
    uint64_t size = plan->tensor[t].rounded ? rounded_size(numel) : numel * sizeof(float);

    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Takes the plan's part; NULL and an error without memory. */
static uint8_t *open_part(struct job *job, struct plan *plan, uint32_t part, uint64_t *size,
    bool *existing, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint8_t *bytes, *next;

    *size = ALIGNMENT; /* of no tensors, too */
    for (uint32_t t = 0; t < plan->tensors; t++) {
        *size += size_of(job, plan, t);
    }
    *existing = false;
    bytes =
        memory->store(memory->context, job->number, STORE_RESIDUALS + part, *size, existing, err);
    next = bytes;
    for (uint32_t t = 0; bytes != NULL && t < plan->tensors; t++) {
        plan->tensor[t].residual = next;
        next += size_of(job, plan, t);
    }
    plan->residuals = part;
    return bytes;
}

/* Of the plan in force, when the job begins or its daemon has restarted. */
static enum adtopk_status find(struct job *job, struct plan *plan, struct error *err)
{
    struct store_header *store = job->store;
    uint32_t part = store->policies > 0 ? store->policy[store->policies % 2].residuals % 2 : 0;
    uint64_t size;
    bool existing;
    uint8_t *bytes = open_part(job, plan, part, &size, &existing, err);

    if (bytes == NULL) {
        return err->code;
    }
    if (!existing && store->begun != 0) {
        return error_set(err, ADTOPK_ERR_LOST, "the residuals of job '%s' are gone", job->key.name);
    }
    if (existing && store->begun == 0) {
        (void)memset(bytes, 0, (size_t)size); /* left by a daemon that got no further */
    }
    store_publish(&store->begun, 1);
    return ADTOPK_OK;
}

static bool same_types(const struct plan *a, const struct plan *b)
{
    for (uint32_t t = 0; t < a->tensors; t++) {
        if (a->tensor[t].rounded != b->tensor[t].rounded) {
            return false;
        }
    }
    return true;
}

enum adtopk_status residual_open(struct job *job, struct plan *plan, struct error *err)
{
    const struct plan *now = job->plan;
    uint64_t size;
    bool existing;

    if (plan == now) {
        return find(job, plan, err);
    }
    if (!same_types(plan, now)) {
        return open_part(job, plan, 1 - now->residuals, &size, &existing, err) != NULL ? ADTOPK_OK
                                                                                       : err->code;
    }
    plan->residuals = now->residuals;
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan->tensor[t].residual = now->tensor[t].residual;
    }
    return ADTOPK_OK;
}

void residual_drop_other(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    memory->drop_store(memory->context, job->number, STORE_RESIDUALS + 1 - job->plan->residuals);
}

void residual_convert(const struct job *job, uint32_t t)
{
    const struct planned *next = &job->next_plan->tensor[t];
    uint64_t numel = job->tensor[t].numel;
    struct rounded rounded = layout_rounded(job, t);

    if (next->residual == job->plan->tensor[t].residual) {
        return;
    }
    if (rounded.element != NULL && next->rounded) {
        (void)memcpy(next->residual, rounded.element, rounded_size(numel));
    } else if (rounded.element != NULL) {
        rounded_to(&rounded, numel, next->residual);
    } else if (next->rounded) {
        rounded = layout_rounded_in(job, t, next->residual);
        rounded_from(&rounded, layout_residual(job, t, 0), numel);
    } else {
        (void)memcpy(next->residual, layout_residual(job, t, 0), numel * sizeof(float));
    }
}

void residual_copy(const struct job *job, uint32_t t, unsigned rank, float *out)
{
    uint64_t numel = job->tensor[t].numel;
    struct rounded rounded = layout_rounded(job, t);

    if (rank == 0 && rounded.element != NULL) {
        rounded_to(&rounded, numel, out);
    } else {
        (void)memcpy(out, layout_residual(job, t, rank), numel * sizeof(float));
    }
}

double residual_sums(const struct job *job, uint32_t t, unsigned rank, double sums[2])
{
    const float *residual = layout_residual(job, t, rank);
    uint64_t numel = job->tensor[t].numel;
    struct rounded rounded = layout_rounded(job, t);
    double magnitude = 0;

    if (residual != NULL) {
        ledger_sums(residual, numel, sums);
    } else {
        rounded_sums(&rounded, numel, sums);
    }
    for (uint64_t i = 0; i < numel; i++) {
        magnitude +=
            fabs((double)(residual != NULL ? residual[i] : bf16_to_f32(rounded.element[i])));
    }
    return magnitude;
}
