/*
 * The policies for gradients with NaN or Inf. The passes leave such elements out of the residual
 * and count them. Frames say which tensors had some.
 *
 *   revoke     the step is withdrawn on all nodes (core/step.c)
 *   propagate  the tensor's update is NaN for all ranks, and its gradients stay in the residuals,
 *              except the elements that were left out (settle.c); the step is accepted
 *   reject     the job ends with the name of the rank, before anything of the round is sent
 */
#ifndef ADTOPK_COMPUTE_NONFINITE_H
#define ADTOPK_COMPUTE_NONFINITE_H

#include "daemon/job/model.h"

/* For a stage of a round, after its tensor's pass. Under "reject" it sets the work's error, which
 * names the rank and the element, and returns its code. */
enum adtopk_status nonfinite_check(struct work *work, uint32_t tensor);
/* Makes all of an update NaN. A list has at least one entry then. scattered: the dense form is
 * written, too. It is NaN where the list is, or everywhere without one. */
void nonfinite_spoil(struct exchange_tensor *entry, bool scattered);
/* Whether an exchanged round's step must be withdrawn. */
bool nonfinite_withdraws(const struct round *round);

#endif
