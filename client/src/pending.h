/*
 * The residuals that the daemon shows, so that a rank can look ahead.
 *
 * Happy path: the results have a record per tensor. It says in which part of the job's store the
 * tensor's residual lies, and since which change of the policy. Only tensors with
 * ADTOPK_FORM_PENDING have a residual there. The rank asks for a descriptor of
 * each part that it has not mapped since then. It maps the part for reading, and keeps the mapping
 * until the policy changes. If the daemon no longer shows a part that is no error: the rank then
 * does not look ahead.
 */
#ifndef ADTOPK_CLIENT_PENDING_H
#define ADTOPK_CLIENT_PENDING_H

#include "client/src/context.h"

/** Fills in `pending` and the fields that go with it, if the daemon shows the tensor's residual.
 * Call it between two steps, with the context's lock. Errors: INTERRUPTED, and what ends the
 * context. */
enum adtopk_status client_pending_find(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update);

/** Unmaps everything. */
void client_pending_drop(struct client_pending *pending);

#endif
