/*
 * The end of a step: entries that were sent and accepted leave the residuals, or the gradients do.
 */
#ifndef ADTOPK_COMPUTE_SETTLE_H
#define ADTOPK_COMPUTE_SETTLE_H

#include "daemon/compute/work.h"

extern const struct work_kind work_settle;   /* the step is accepted */
extern const struct work_kind work_withdraw; /* a gradient of it has NaN or Inf */

#endif
