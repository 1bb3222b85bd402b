/*
 * A node that was lost comes back with its residuals, under the policy "grow".
 *
 * Happy path: the other nodes have gone on without this one. Its part of the job ends when it hears
 * that, and its store stays (BEGUN_LEFT), for at most residual_ttl_s. Its ranks start anew and
 * join. The proposal tells which step was open when the others went on, and which of its rounds
 * were complete (PeerAbsent). What this node sent in those has been applied, so it leaves the
 * residuals now, as when a step is settled. All else stays in them, also gradients of rounds that
 * the others made again without this node. Then the node answers the proposal, and says that it has
 * its residuals. The commit puts it where the others are (grow.c), and tells them so. They withdraw
 * the loss that they declared.
 *
 * Velocities stay, too, and so do residuals of ranks. Thresholds of sparsifiers are found anew, as
 * they are by any node that joins.
 *
 * The steps n that this node had done when it was lost, against the step B of the others:
 *   n = B - 1: all of that step is complete.
 *   n = B:     the rounds that the proposal names are complete.
 *   n = B + 1: this node got what it lacked, and the others did not. It goes on only if all that it
 *              has subtracted was of rounds that are complete.
 *
 * What can go wrong: this node cannot know what of its residuals was applied. Then it begins
 * without any, as a node that is new does, and the loss stays declared. The log says why:
 * - The store is of other tensors, ranks or policies, or of another run; or there is none.
 * - The daemon was killed, so a pass over the residuals may have been under way.
 * - The others have changed the policy in the step in question, or know no more of it.
 * - A round is complete, this node never saw its update, and only that says which entries were
 *   taken, or how sums were rounded.
 * - It has subtracted what nobody applied.
 * - A GPU has the residuals.
 */
#ifndef ADTOPK_COMPUTE_COMEBACK_H
#define ADTOPK_COMPUTE_COMEBACK_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* The job has ended: whether its store stays because its ranks may join the others again. */
bool comeback_leave(const struct job *job);

/* Hears what the first proposal says about this node, and finds the store. If the residuals in it
 * cannot be kept, drops it: the job begins with a new one. */
void comeback_hear(struct job *job, const Adtopk__PeerPrepare *prepare);
/* The plan of the store is made, and its memory is not open yet: marks in the store what leaves the
 * residuals. Drops the residuals if that is not known. */
void comeback_mark(struct job *job);
/* Nothing computes: has it leave, unless it has left. True: the job computes for that now. */
bool comeback_settle(struct job *job);
/* This node joins: forgets everything of its last step that is not residuals, velocities or
 * ledgers. */
void comeback_adopt(struct job *job);

#endif
