/*
 * Newcomers: nodes that join a job while it trains (policy "grow"), with ranks that it has lost.
 *
 * A newcomer has sent its join, and is no member of the known view. It has no say in the job until
 * the coordinator proposes it for the next view. This happens when all missing ranks have come, or
 * `shrink_after` seconds after the last newcomer did, and never in the step in which a node was
 * lost. However long that step takes, a newcomer waits until `push_timeout`, or `join_timeout` if
 * that is longer. compute/grow.c tells what follows.
 *
 * The coordinator refuses a newcomer that does not fit beside those that came before. The other
 * members may have heard first of another one, so they keep both, and refuse only what does not fit
 * the job. Newcomers do not judge each other: whatever contradicts a node that forms a job fails
 * the job only if the node hears from nobody, for a second, that the job trains.
 *
 * A node joins with the ranks that have committed when it gets the proposal. Another one that
 * commits before then makes its node join anew, and the proposal is made again.
 */
#ifndef ADTOPK_JOB_NEWCOMERS_H
#define ADTOPK_JOB_NEWCOMERS_H

#include "daemon/job/job_state.h"
#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* Whether the job takes newcomers. */
bool newcomers_are_welcome(const struct job *job);
/* Whether the node is no member: neither of the known view, nor of the one in force here. */
bool newcomers_have(const struct job *job, uint16_t node);
/* Whether the node is a newcomer that has joined. */
bool newcomers_are_known(const struct job *job, uint16_t node);
/* Whether this node itself waits for the others to take it in. */
bool newcomers_have_self(const struct job *job);
/* How long a job without a view waits: `join_timeout` for missing ranks. Others that are to take
 * this node in may be in a long step, so it is `push_timeout` then, if that is longer. Ranks that
 * are to return to their run may be evaluating: `wait_limit`, as others wait for this node. */
struct policy_limit newcomers_patience(const struct job *job);
/* Whether this node waits for the others to take it in, and the other one is none of those. */
bool newcomers_wait_with(const struct job *job, uint16_t node);
/* The ranks of a member have left: if nobody is left to take this node in, its job fails. */
void newcomers_peer_left(struct job *job);
/* Whether the ranks of this node do not take part in the open step yet. */
static inline bool newcomers_watch(const struct job *job)
{
    return job->in_force.nodes > 0 && job->in_force.since[job->in_force.self] > step_number(job);
}

/* Whether the job can take the ranks of a node's join. Otherwise *err says why not. */
enum adtopk_status newcomers_check(const struct job *job, uint16_t node,
    const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join, struct error *err);
/* Whether a newcomer that is there fits beside the members and the newcomers with lower numbers. A
 * coordinator may have kept others when it was none yet. */
bool newcomers_fit(const struct job *job, const struct member *newcomer);
/* Notes that a newcomer has joined, or has joined anew. */
void newcomers_note(struct job *job, const struct member *member);
/* Tells a newcomer why the job does not take it, and forgets it. */
void newcomers_refuse(struct job *job, uint16_t node, const struct error *error);
/* Forgets a newcomer, which is gone, gives up, or does not fit. This node may be one, too. False:
 * it is none. */
bool newcomers_forget(struct job *job, uint16_t node);

/* Whether others may yet tell this node that they train: then it is for them to judge who fits, and
 * a node that fails does not end the job at once. */
bool newcomers_doubt(const struct job *job);
/* The node does not fit this one, or failed. The job fails, unless others may yet say that they
 * train. Then it forgets the node, and fails later if they do not. */
void newcomers_blame(struct job *job, uint16_t node, const struct error *error, bool tell_peers);
/* Whether the job is about to fail unless others say so. */
static inline bool newcomers_are_in_doubt(const struct job *job)
{
    return job->view == 0 && job->ending.doubt_us != 0;
}

/* Whether the next view is to have the newcomers that are there. */
bool newcomers_are_due(const struct job *job);
/* Has a view proposed if it is time for it, or fails a job that was in doubt. */
void newcomers_look(struct job *job);
/* When to look; UINT64_MAX: not at all. */
uint64_t newcomers_deadline(const struct job *job);

/* Asks nodes outside of the view for their joins: one node, or all. They may have tried to join
 * when the job could not take them. */
void newcomers_invite(struct job *job, uint16_t node);
void newcomers_invite_all(struct job *job);

#endif
