/*
 * Nodes that join a job while it trains.
 */
#ifndef ADTOPK_COMPUTE_GROW_H
#define ADTOPK_COMPUTE_GROW_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* This node is about to be taken in. Ranks that have not committed by now come too late: they hear
 * that, and the job goes on without them. False without memory, and then the job has failed. */
bool grow_drop_late(struct job *job);

/* Adds to this member's answer whether it has come back with its residuals. If nodes join with the
 * proposed view, adds what they must know. The caller frees state->newcomer.data. False without
 * memory. */
bool grow_tell(const struct job *job, Adtopk__PeerState *state);
/* As coordinator: keeps that of a member's answer. False without memory. */
bool grow_hear(struct member *member, const Adtopk__PeerState *state);
/* As coordinator: adds it to the commit, which borrows it. steps: of the furthest member. kept:
 * room for the numbers of all members. */
void grow_decide(const struct job *job, uint64_t steps, uint32_t *kept, Adtopk__PeerCommit *commit);

/* Takes over what was decided: notes in the prepared members from which step on the new ones take
 * part. If this node joins, it takes over the state of the job. False: the commit does not have
 * what it needs, or the job has failed. */
bool grow_take(struct job *job, const Adtopk__PeerCommit *commit);

/* Counts the ranks that take part in the next step, and the places of the local ones among them. */
void grow_count(struct job *job);
/* The step is closed: ranks may take part from now on. */
void grow_step_closed(struct job *job);
/* The step opens: ranks that watch have ended it. */
void grow_step_opens(struct job *job);
/* While this node watches: it takes part in an operation that others have begun. */
void grow_try_op(struct job *job);

#endif
