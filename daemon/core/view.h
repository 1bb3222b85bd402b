/*
 * Forming and changing views, for the files of this folder that take part in it.
 *
 *   join.c        who is there: joins, and whether nodes agree on the job
 *   coordinate.c  the coordinator's side: propose, collect the states, decide
 *   view.c        every member's side: prepare, answer, commit; it tells the whole story
 *   fetch.c       copies of rounds that only some nodes delivered
 *   peer.c        the messages of all of them, on their way out
 *   dispatch.c    messages from other nodes: who may say what
 */
#ifndef ADTOPK_CORE_VIEW_H
#define ADTOPK_CORE_VIEW_H

#include "daemon/core/model.h"
#include "peer.pb-c.h"

#define ALL_ROUNDS UINT32_MAX /* in a commit: every round of the step */

/* join.c */
struct member *join_self(const struct job *job); /* this node's own entry; NULL before commit */
void join_message(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join);
bool join_in_view(const struct member *member); /* its join is current and names ranks */
bool join_complete(struct job *job);            /* the current joins name every rank once */

/* coordinate.c */
void coordinate(
    struct job *job); /* proposes a view if it is this node's turn and there is reason */
void coordinate_above(struct job *job, uint32_t view); /* proposes one with a higher number */
void coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state);

/* view.c */
/* Whether the node is one of the view in force, else of the one that is prepared; before there is
 * either, whether it has joined. */
bool view_is_member(const struct job *job, uint16_t node);
void view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);
void view_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit);
void view_learn_splits(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps);
/* Fails the job on all nodes. */
void view_fail(struct job *job, enum adtopk_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* switch.c */
void switch_propose(struct job *job, uint16_t from, const Adtopk__PeerPolicyPropose *proposal);
void switch_answer(struct job *job, uint16_t from, const Adtopk__PeerPolicyAnswer *answer);
void switch_end(struct job *job, uint16_t from, const Adtopk__PeerPolicyEnd *end);
/* Fills in a message; its text is borrowed. */
void switch_fill(const struct plan *plan, Adtopk__PeerPolicy *policy);
void switch_fill_change(
    const struct policy_change *change, const char *text, Adtopk__PeerPolicy *policy);
struct policy_change switch_change(const Adtopk__PeerPolicy *policy);
/* What the commit of a view says of the policy (NULL: nothing). True: the step opens later, when
 * the residuals fit the new plan. The job may have failed. */
bool switch_commit(struct job *job, const Adtopk__PeerPolicy *policy);

/* Whether this node proposes changes. */
bool switch_coordinates(const struct job *job);
/* ... then: nothing comes of one. version 0: it was never proposed, so only the node that asked is
 * told. */
void switch_call_off(struct job *job, uint32_t version, uint16_t asker, const struct error *error);

/* switch_ask.c */
void switch_asked(struct job *job, uint16_t from, const Adtopk__PeerPolicyAsk *ask);
/* A node could not take the proposal of this version in time: proposes the same policy for a later
 * step. False: it has been tried often enough. */
bool switch_again(struct job *job, uint32_t version);
/* Proposes what waits for the last change to be done on all nodes, if that is. */
void switch_take_turn(struct job *job);
/* This node coordinates, the last change is done on all nodes, and no other is under way or asked
 * for here. */
bool switch_is_quiet(const struct job *job);
/* ... then: proposes this policy, as POLICY_PLANNER. Errors: MEMORY. */
enum adtopk_status switch_replan(struct job *job, const struct policy *policy, struct error *err);

/* replan.c */
void replan_estimates(struct job *job, uint16_t from, const Adtopk__PeerEstimates *message);

/* fetch.c */
void fetch_message(struct job *job, uint16_t from, const Adtopk__PeerFetch *message);
void fetch_delivered(struct job *job, const Adtopk__PeerCommit *commit);
void fetch_answer(struct job *job);

/* peer.c */
void peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
/* Answers one node, whose message was about `asked`, that it has no part in such a job here. */
void peer_refuse(
    struct core *core, uint16_t node, const Adtopk__PeerAbout *asked, const struct error *error);
/* Sends a message that may be lost for want of memory. */
void peer_offer(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
void peer_send_all(struct job *job, Adtopk__PeerMessage *message);

#endif
