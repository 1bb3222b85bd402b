#include "daemon/compute/nonfinite.h"

#include <math.h>

#include "daemon/compute/work.h"
#include "daemon/job/job_state.h"
#include "daemon/job/plan_query.h"

/* The local rank behind the result number `residual`, and a gradient of its order. */
static const struct rank *culprit_of(
    const struct job *job, uint32_t t, unsigned residual, unsigned part)
{
    return job->rank[job->plan->tensor[t].by_rank ? residual : part];
}

static enum adtopk_status nonfinite_refuse(
    struct work *work, uint32_t t, unsigned residual, const struct engine_fault *fault)
{
    const struct job *job = work->job;
    const char *name = job->tensor[t].spec.name;
    const unsigned long long step = (unsigned long long)step_number(job);

    if (!fault->found) {
        work->status = error_set(&work->error, ADTOPK_ERR_ARGUMENT,
            "node %u: the sum of its ranks' gradients of tensor '%s' is not finite in step %llu, "
            "and the policy's \"non_finite\" is \"reject\"",
            job->core->config.node, name, step);
    } else {
        work->status = error_set(&work->error, ADTOPK_ERR_ARGUMENT,
            "rank %u pushed %g at element %llu of tensor '%s' in step %llu, and the policy's "
            "\"non_finite\" is \"reject\"",
            culprit_of(job, t, residual, fault->part)->number, (double)fault->value,
            (unsigned long long)fault->element, name, step);
    }
    return work->status;
}

enum adtopk_status nonfinite_check(struct work *work, uint32_t t)
{
    unsigned count;
    const struct engine_result *result = work_results(work, &count);

    for (unsigned r = 0; work->job->plan->policy.non_finite == NON_FINITE_REJECT && r < count;
         r++) {
        if (result[r].nonfinite > 0) {
            return nonfinite_refuse(work, t, r, &result[r].fault);
        }
    }
    return ADTOPK_OK;
}

void nonfinite_spoil(struct exchange_tensor *entry, bool scattered)
{
    struct sparse *list = &entry->update;

    if (list->position == NULL) { /* the dense form is all that there is */
        for (uint64_t i = 0; i < entry->numel; i++) {
            entry->dense[i] = NAN;
        }
        return;
    }
    if (list->count == 0) {
        list->position[0] = 0;
        list->count = 1;
    }
    for (size_t i = 0; i < list->count; i++) {
        list->value[i] = NAN;
        if (scattered) {
            entry->dense[list->position[i]] = NAN;
        }
    }
}

bool nonfinite_withdraws(const struct round *round)
{
    for (unsigned i = 0; i < round->tensors; i++) {
        if (round->exchange.tensor[i].nonfinite) {
            return !plan_propagates(round->job->plan);
        }
    }
    return false;
}
