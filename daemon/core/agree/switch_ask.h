/*
 * Who asks for another policy, and when it is proposed.
 */
#ifndef ADTOPK_CORE_SWITCH_ASK_H
#define ADTOPK_CORE_SWITCH_ASK_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

void switch_asked(struct job *job, uint16_t from, const Adtopk__PeerPolicyAsk *ask);
/* A node could not take the proposal of this version in time: proposes the same policy for a later
 * step. False: it has been tried often enough. */
bool switch_again(struct job *job, uint32_t version);
/* Proposes what waits for the last change to be done on all nodes, if that is. */
bool switch_take_turn(struct job *job);
/* This node coordinates, the last change is done on all nodes, and no other is under way or asked
 * for here. */
bool switch_is_quiet(const struct job *job);
/* Proposes this policy, as POLICY_PLANNER; only while switch_is_quiet(). Errors: MEMORY. */
enum adtopk_status switch_replan(struct job *job, const struct policy *policy, struct error *err);

void switch_drop_turn(struct job *job); /* what waits its turn is off */

enum adtopk_status switch_request(struct core *core, const struct event *event, struct error *err);

#endif
