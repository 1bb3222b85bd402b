/*
 * Nodes that the job went on without, for the time when they come back (policy "grow").
 *
 * When a view without a node begins, every member notes which step was open, and which rounds of it
 * some member had delivered. These are complete, with the node's contributions. All others are made
 * again without it. A coordinator that takes the node in again tells it this (PeerAbsent). By it
 * the node finds which of its gradients have become part of updates (compute/comeback.h). If it
 * keeps its residuals, the commit says so, and the members withdraw the loss that they declared.
 *
 * Where the answer is not known, the node begins without residuals and the loss stays declared: the
 * coordinator's daemon has restarted since, or one of the steps was withdrawn. No node is taken in
 * during the step in which another one was lost, because that step may still be withdrawn.
 *
 * Of a node that is lost again while it only watches, nothing is known any more.
 */
#ifndef ADTOPK_JOB_ABSENT_H
#define ADTOPK_JOB_ABSENT_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* A view is about to replace the one in force: notes the nodes that it leaves out. Without memory
 * for a note, its node comes back without residuals. */
void absent_note(struct job *job, const Adtopk__PeerCommit *commit);
/* A step is closed. It may have been withdrawn. */
void absent_step_closed(struct job *job);
/* Whether a node was lost in the open step. */
bool absent_in_step(const struct job *job);

/* As coordinator: adds what is known of the proposed newcomers. absent_drop_message() frees it,
 * also after an error. False without memory. */
bool absent_fill(
    const struct job *job, const struct membership *joined, Adtopk__PeerPrepare *prepare);
void absent_drop_message(Adtopk__PeerPrepare *prepare);

/* The note about a node; NULL: there is none. */
struct absent *absent_find(const struct job *job, uint16_t node);
/* Frees all notes, and what this node heard of such a one. */
void absent_free(struct job *job);

#endif
