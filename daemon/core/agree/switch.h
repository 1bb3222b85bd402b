/*
 * From one policy to another, on all nodes at one step.
 */
#ifndef ADTOPK_CORE_SWITCH_H
#define ADTOPK_CORE_SWITCH_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

bool switch_hold(
    struct job *job); /* whether the step that would open now waits for the next plan */
void switch_propose(struct job *job, uint16_t from, const Adtopk__PeerPolicyPropose *proposal);
void switch_answer(struct job *job, uint16_t from, const Adtopk__PeerPolicyAnswer *answer);
void switch_end(struct job *job, uint16_t from, const Adtopk__PeerPolicyEnd *end);
/* Fills in a message; its text is borrowed. */
void switch_fill(const struct plan *plan, Adtopk__PeerPolicy *policy);
void switch_fill_change(
    const struct policy_change *change, const char *text, Adtopk__PeerPolicy *policy);
struct policy_change switch_change(const Adtopk__PeerPolicy *policy);
/* Handles the policy in the commit of a view (NULL: none). True: the step opens later, when the
 * residuals are converted for the new plan. The job may have failed. */
bool switch_commit(struct job *job, const Adtopk__PeerPolicy *policy);

/* Drops the change that is proposed or held, because the commit of a view decides otherwise. */
void switch_give_way(struct job *job);
/* Calls a change off, for the node that proposes changes. version 0: the change was never proposed,
 * so only the node that asked is told. */
void switch_call_off(struct job *job, uint32_t version, uint16_t asker, const struct error *error);

#endif
