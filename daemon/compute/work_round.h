/*
 * Computations of a round: this node's contribution, the frames of each phase, the update.
 */
#ifndef ADTOPK_COMPUTE_WORK_ROUND_H
#define ADTOPK_COMPUTE_WORK_ROUND_H

#include "daemon/compute/work.h"

extern const struct work_kind work_select;  /* add the gradients, select, make the first frames */
extern const struct work_kind work_combine; /* the frames of the next phase */
extern const struct work_kind work_reduce;  /* the sum, and the update that ranks see */

/* For settling too. Orders the passes that add and select, and takes over their results. The step's
 * gradients are in the residuals, or `stage` of the tensor is REST. It can be repeated. */
void work_order_selection(struct work *work, uint32_t tensor);
void work_take_selection(struct work *work, uint32_t tensor);
/* Makes this node's contribution from the selections of its residuals. */
enum adtopk_status work_form_sent(const struct work *work, uint32_t tensor);

#endif
