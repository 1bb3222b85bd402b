/*
 * How much is lost with a node, as a number.
 *
 * Each node tells the others about once a second what its residuals sum up to. The ledger gives
 * that without a pass: input - applied - lost. The compute that closes a step adds it up, because
 * the loop's other jobs would wait. When the others go on without a node, they declare what it told
 * last, with the step. Where the job ends instead, its ranks' error says that. What the node took
 * in after that step is lost, too, if no update had it: at most the gradients of about a second.
 *
 * Sums may cancel, so nodes also tell the sum of magnitudes. That needs the elements. The same
 * compute reads some tensors' residuals, at most 32 MiB per second, or one tensor. Those of the
 * others count as they were when they were read last: 1 GiB of residuals takes half a minute.
 * Before all were read once, the magnitude is unknown. Statistics show each tensor's, so jobs that
 * declare nothing read, too, at most 8 MiB per second.
 *
 * If the node comes back with its residuals, the commit of its view says so. Then the others
 * withdraw the loss, and what they declared is what it has until it tells more. What is declared
 * lies in the store and changes with the view (declared.h, views.h). So a restarted daemon knows
 * it. Two things it cannot know. The others may have gone on without a node while this one was
 * away: it does not count that node. A node may be lost before it tells its sums to the new daemon:
 * its loss counts as unknown.
 *
 * What could go wrong: a node is lost before it told anything. It counts as lost, and how much it
 * had as unknown. A node may lie about its own sums. Passes leave NaN and Inf out of residuals, so
 * sums that are not finite, or larger than residuals can be, are a lie, and are counted as a bad
 * message.
 */
#ifndef ADTOPK_JOB_DECLARE_H
#define ADTOPK_JOB_DECLARE_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* A step is about to be closed: decides whether that tells the others, and which residuals it
 * reads. Returns their bytes. */
uint64_t declare_begin(struct job *job);
/* A step is closed, and no residual changes: notes what was read, and tells the others, if that was
 * decided. */
void declare_tell(struct job *job);
void declare_hear(struct job *job, uint16_t from, const Adtopk__PeerResidual *residual);
/* Adds to an error about residuals that are lost with the node (LOST) what it told last of them. */
void declare_add_to(struct error *err, struct job *job, uint16_t node);
/* A view is about to begin, and `declared` will be in force with it. Nodes that come back with
 * their residuals have lost nothing. If nodes join without residuals, what they had before is lost
 * for good. False: a node that comes back is no member. */
bool declare_returns(
    const struct job *job, const Adtopk__PeerCommit *commit, struct declared *declared);
/* The nodes of the view in force that are not in the next one are lost. */
void declare_lost(struct job *job, struct declared *declared);

#endif
