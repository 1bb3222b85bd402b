/*
 * What a policy makes of gradients that have NaN or Inf. The passes leave such elements out of the
 * residual and count them; frames tell which tensors had some.
 *
 *   revoke     the step is withdrawn on all nodes (step.c)
 *   propagate  the tensor's update is NaN for all ranks, and its gradients stay in the residuals,
 *              but for the elements that were left out (settle.c); the step is accepted
 *   reject     the job ends with the name of the rank, before anything of the round is sent
 */
#ifndef ADTOPK_WORK_NONFINITE_H
#define ADTOPK_WORK_NONFINITE_H

#include "daemon/job/model.h"

/* For a stage of a round that has the results of its tensor's pass: under "reject" it sets the
 * work's error to who pushed what, and returns its code. */
enum adtopk_status nonfinite_check(struct work *work, uint32_t tensor);
/* Makes all of an update NaN. A list has at least one entry then. */
void nonfinite_spoil(struct exchange_tensor *entry, bool dense);
/* Whether the step of a round that was exchanged is to be withdrawn. */
bool nonfinite_withdraws(const struct round *round);

#endif
