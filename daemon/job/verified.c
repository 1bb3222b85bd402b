#include "daemon/job/verified.h"

#include <math.h>

static void verified_tensor(struct tensor *tensor, uint64_t step)
{
    tensor->verified = tensor->found;
    if (isfinite(tensor->found.magnitude)) {
        tensor->most_magnitude = fmax(tensor->most_magnitude, tensor->found.magnitude);
    }
    tensor->verified_step = step;
}

void verified_take(struct job *job, uint64_t step)
{
    struct residual_info *residual = &job->figures.residual;

    residual->magnitude = 0;
    residual->elements = 0;
    residual->step = step;
    for (uint32_t t = 0; t < job->tensors; t++) {
        verified_tensor(&job->tensor[t], step);
        if (!job->plan->tensor[t].dense) {
            residual->magnitude += job->tensor[t].verified.magnitude;
            residual->elements += job->tensor[t].numel;
        }
    }
}
