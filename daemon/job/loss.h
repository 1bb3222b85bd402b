/*
 * Nodes that are lost, and when a job goes on without them (policy on_peer_loss "shrink").
 *
 * A node is lost if it does not answer, if its daemon restarted and not all of its ranks return, or
 * if it says that its part of the job has ended. It has `shrink_after` seconds to come back, unless
 * it can never come back. Then this node *drops* it: the job may go on without it, if views.h
 * allows that. compute/shrink.c tells the whole story.
 */
#ifndef ADTOPK_JOB_LOSS_H
#define ADTOPK_JOB_LOSS_H

#include "daemon/job/model.h"

/* What happened to a peer of a job. SILENT: it does not answer, and the job waits if the policy
 * says so. RESTARTED: its daemon was restarted. GONE: it is gone for good. */
enum peer_loss { PEER_SILENT, PEER_RESTARTED, PEER_GONE };

/* A node is lost. True: the job waits for it, or goes on without it. False: `shrink` is not in
 * force, or too few nodes are left for ever. */
bool loss_note(struct job *job, uint16_t node, enum peer_loss loss);
/* The node has ended its part of the job, or has lost what it had. True as above. */
bool loss_for_ever(struct job *job, uint16_t node);
/* The node answers again. If all of its ranks are there nothing was lost. */
void loss_back(struct job *job, uint16_t node);
/* The node has joined. A member that has joined again is back when all of its ranks are. */
void loss_joined(const struct job *job, struct member *member);
/* A view is in force: whoever is in it is not dropped any more, and may be lost again. */
void loss_begin_anew(struct job *job);
/* Waits for every member of the known view, also for those that this daemon has not met. False: it
 * has no memory for them, and the job has failed. */
bool loss_expect(struct job *job);

/* Whether the two below may find anything. They do not if the job has a policy by which it waits
 * for all nodes. */
static inline bool loss_may_matter(const struct job *job)
{
    return job->store == NULL || job->ending.doubt_us != 0 ||
           job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK;
}

/* Drops the nodes that had enough time to come back, and touches the job. */
void loss_look(struct job *job);
uint64_t loss_deadline(const struct job *job); /* when that is next; UINT64_MAX: never */

#endif
