/*
 * The rests that come back to the residuals when ranks see an update in 16 bits
 * (LOCAL_FORM_DENSE16).
 *
 * All nodes have the update before it was rounded, and so its rests, with the same bits. Each rest
 * goes to the residual of one node, and each node takes the same share of every update, as long as
 * the view has the same members. So a node that gets its update as a copy, or is restarted, takes
 * back the same rests. A rest is in the units of the update.
 */
#ifndef ADTOPK_COMPUTE_RESTS_H
#define ADTOPK_COMPUTE_RESTS_H

#include "daemon/job/model.h"

/* Does what orders_narrow() orders, at once: for an update that came as a copy. */
void rests_narrow(const struct job *job, uint32_t tensor);

/* The factor of a rest before it is added to a residual. It takes the loss scale of the step off,
 * and undoes the mean. */
float rests_shrink(const struct job *job, uint32_t tensor);
float rests_unscale(const struct job *job, uint32_t t);

/* Notes this node's share of the rests of an update: the members of the view in which it is summed
 * divide them. Call it whenever this node contributes to a sum. The last time was in the view of
 * the sum, even if the update comes as a copy, some views later. */
void rests_note_share(const struct job *job, struct store_tensor *store);

/* The elements of a dense update whose rests come back to this node: none if it did not contribute.
 */
void rests_share(
    const struct job *job, uint32_t tensor, uint64_t numel, uint64_t *first, uint64_t *count);

/* For a tensor that is sent sparse: fills planned->update_rests.list with this node's share. To
 * this it adds the entries of planned->sum_rests that `accepted` marks (one bit each; NULL: all).
 */
void rests_collect(const struct job *job, uint32_t tensor, const uint8_t *accepted);

#endif
