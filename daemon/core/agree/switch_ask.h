/*
 * Requests for another policy, and the time at which it is proposed.
 */
#ifndef ADTOPK_CORE_SWITCH_ASK_H
#define ADTOPK_CORE_SWITCH_ASK_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

void switch_asked(struct job *job, uint16_t from, const Adtopk__PeerPolicyAsk *ask);
/* Proposes the same policy for a later step, because a node got the proposal of this version too
 * late. False: this was tried often enough. */
bool switch_again(struct job *job, uint32_t version);
/* Proposes the change that waits, if the last change is done on all nodes. */
bool switch_take_postponed(struct job *job);
/* Whether this node coordinates, and no change is under way, requested here, or unfinished. */
bool switch_is_quiet(const struct job *job);
/* Proposes this policy, as POLICY_PLANNER; only while switch_is_quiet(). Errors: MEMORY. */
enum adtopk_status switch_replan(struct job *job, const struct policy *policy, struct error *err);

void switch_drop_postponed(struct job *job); /* drops the change that waits */

enum adtopk_status switch_request(struct core *core, const struct event *event, struct error *err);

#endif
