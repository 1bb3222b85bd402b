#include "daemon/job/verified.h"

#include <math.h>

#include "daemon/job/verdict.h"

static void verified_tensor(struct tensor *tensor, uint64_t step)
{
    double most_magnitude = tensor->verified.most_magnitude;

    tensor->verified = tensor->found;
    tensor->verified.step = step;
    tensor->verified.most_magnitude = isfinite(tensor->found.magnitude)
                                          ? fmax(most_magnitude, tensor->found.magnitude)
                                          : most_magnitude;
}

void verified_take(struct job *job, uint64_t step)
{
    struct residual_info *residual = &job->figures.residual;

    residual->verified = true;
    residual->magnitude = 0;
    residual->elements = 0;
    residual->step = step;
    residual->unbalanced = 0;
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];

        verified_tensor(tensor, step);
        residual->unbalanced += verdict_of(&tensor->verified, tensor->numel).balanced ? 0 : 1;
        if (!job->plan->tensor[t].dense) {
            residual->magnitude += tensor->verified.magnitude;
            residual->elements += tensor->numel;
        }
    }
}
