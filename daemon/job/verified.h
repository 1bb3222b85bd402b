/*
 * What a verification found of a job's residuals, and how large they are.
 */
#ifndef ADTOPK_VERIFIED_H
#define ADTOPK_VERIFIED_H

#include "daemon/job/model.h"

/** Takes over tensor.found of all tensors, while `step` is open: reports show whole ones only. */
void verified_take(struct job *job, uint64_t step);

/** The job's residual as it was read last, and its losses. */
struct residual_info verified_residual(const struct job *job);

#endif
