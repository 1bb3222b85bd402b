/* A rank reads its residual: the node's, or with scope rank its own. */
#ifndef ADTOPK_COMPUTE_READING_H
#define ADTOPK_COMPUTE_READING_H

#include "daemon/compute/orders.h"

/** Handles an EVENT_RANK_READ. A tensor without a residual reads as 0. Errors: ARGUMENT (the
 * tensor, the part), STATE (the rank is within a step), PENDING (a compute is using the residuals).
 */
enum adtopk_status reading_take(
    const struct rank *rank, const struct event_read *read, struct error *err);

/** Whether the rank has begun the open step: its residuals may change at any time. */
bool reading_in_step(const struct rank *rank);

#endif
