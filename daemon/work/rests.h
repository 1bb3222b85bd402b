/*
 * What comes back to the residuals when ranks see an update in 16 bits (LOCAL_FORM_DENSE16).
 *
 * All nodes have the update before it was rounded, and thus its rests, to the same bits. Each rest
 * goes into the residual of one node, which takes the same share of every update: a node that gets
 * its update as a copy, or is restarted, takes back the same. A rest is in the units of the update.
 */
#ifndef ADTOPK_WORK_RESTS_H
#define ADTOPK_WORK_RESTS_H

#include "daemon/job/model.h"

/* Adds the order that writes the 16-bit form of the tensor's update, if it has one. The record says
 * which form the update has. */
void rests_order_narrow(const struct job *job, struct engine_batch *batch, uint32_t tensor);

/* The same at once, of an update that came as a copy. */
void rests_narrow(const struct job *job, uint32_t tensor);

/* What a rest is multiplied with before it is added to a residual: first to take the loss scale of
 * the step off, then to undo the mean. */
float rests_shrink(const struct job *job, uint32_t tensor);
float rests_unscale(const struct job *job);

/* Which elements of a dense update's rests come back to this node. */
void rests_share(const struct job *job, uint64_t numel, uint64_t *first, uint64_t *count);

/* Of a tensor that is sent sparse: fills planned->rests.list with this node's share and, of what
 * planned->returned has, the entries that `taken` names (one bit each; NULL: all). */
void rests_collect(const struct job *job, uint32_t tensor, const uint8_t *taken);

#endif
