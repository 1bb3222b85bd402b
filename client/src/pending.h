/*
 * The residuals that the daemon shows, so that a rank can look ahead.
 *
 * Happy path: a tensor's record in the results says in which part of the job's store its residual
 * lies, and since which change of the policy. The rank asks for a descriptor of each part that it
 * has not mapped since then, maps it for reading, and keeps the mapping until the policy changes.
 * A part that the daemon no longer shows is no error: there is nothing to look ahead with.
 */
#ifndef ADTOPK_CLIENT_PENDING_H
#define ADTOPK_CLIENT_PENDING_H

#include "client/src/context.h"

/** Fills in `pending` and what belongs to it, if the daemon shows the tensor's residual. Between
 * two steps, and with the context's lock. Errors: what ends the context. */
enum adtopk_status client_pending_find(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update);

/** Takes all mappings back. */
void client_pending_drop(struct client_pending *pending);

#endif
