#include "daemon/job/verified.h"

#include <math.h>

#include "daemon/job/verdict.h"
#include "daemon/job/views.h"

static void verified_tensor(struct tensor *tensor, uint64_t step)
{
    double most_magnitude = tensor->verified.most_magnitude;

    tensor->verified = tensor->found;
    tensor->verified.step = step;
    tensor->verified.most_magnitude = isfinite(tensor->found.magnitude)
                                          ? fmax(most_magnitude, tensor->found.magnitude)
                                          : most_magnitude;
    tensor->read = (struct residual_read){step, tensor->found.magnitude};
}

void verified_take(struct job *job, uint64_t step)
{
    struct residual_info *residual = &job->figures.residual;

    residual->verified = true;
    residual->unbalanced = 0;
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];

        verified_tensor(tensor, step);
        residual->unbalanced += verdict_of(&tensor->verified, tensor->numel).balanced ? 0 : 1;
    }
}

struct residual_info verified_residual(const struct job *job)
{
    struct residual_info residual = job->figures.residual;
    const uint32_t tensors = job->plan->rounds > 0 ? job->tensors : 0; /* a plan has them all */

    residual.lost_nodes = declared_total(views_declared(job->agreement.views));
    residual.read = true;
    residual.step = UINT64_MAX;
    for (uint32_t t = 0; t < tensors; t++) {
        const struct residual_read *read = &job->tensor[t].read;

        if (!job->plan->tensor[t].dense) {
            residual.read = residual.read && read->step != UINT64_MAX;
            residual.step = read->step < residual.step ? read->step : residual.step;
            residual.magnitude += read->magnitude;
            residual.elements += job->tensor[t].numel;
        }
    }
    residual.read = residual.read && residual.elements > 0;
    return residual;
}
