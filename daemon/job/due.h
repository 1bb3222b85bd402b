/*
 * The checkpoint that an operator asks for, and the step after which the ranks save it.
 *
 * The happy path: a node gets the request, and asks the coordinator for a view. Every member's
 * state says that it wants a checkpoint, and how many steps it has done. No member can end a step
 * before it has the commit. So the commit names a step that no rank has begun, and every node knows
 * it in time. The store counts that step together with a mark, and the ranks read it before they
 * begin the next one: all of them at the same step.
 *
 * What can go wrong:
 * - A node or the coordinator restarts, or a view is formed for another reason: every state and
 *   every commit has the request and the step, so any view will do.
 * - The commit of a view whose states were sent before the request: the node asks again.
 * - All nodes restart before the step has ended anywhere: nobody knows the request any more, and
 *   none of its clients was answered. If it has ended on one node, that node's store tells the
 *   others.
 * - A second request: it is one with the first, unless all ranks may have begun the step after it.
 */
#ifndef ADTOPK_JOB_DUE_H
#define ADTOPK_JOB_DUE_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

#define DUE_ASKING_MAX 8u /* requests that may wait for one checkpoint */

/* Steps after which the ranks save the last checkpoint that this node knows of; 0: none. */
uint64_t due_step(const struct job *job);
/* The same with the steps of the runs before, as the checkpoint has it. */
uint64_t due_saved_as(const struct job *job);

/* An operator asks for a checkpoint. ACTION_CHECKPOINT follows, when the ranks of this node hear of
 * it. Errors: STATE (the job does not run, or too many requests wait), MEMORY. */
enum adtopk_status due_request(struct core *core, const struct event *event, struct error *err);

/* Fills in this node's state. */
void due_tell(const struct job *job, Adtopk__PeerState *state);
/* Keeps that of a member. False: it cannot be. */
bool due_hear(struct member *member, const Adtopk__PeerState *state);
/* As coordinator: the step for the commit. steps: done by the furthest member. */
uint64_t due_decide(const struct job *job, uint64_t steps);
/* The commit has this step. */
void due_take(struct job *job, uint64_t step);

/* Answers those who wait, if the ranks of this node hear of the checkpoint now. */
void due_answer(struct job *job);

#endif
