/*
 * The life of a job: find, make, fail, end, free.
 */
#ifndef ADTOPK_CORE_JOB_H
#define ADTOPK_CORE_JOB_H

#include "daemon/job/loss.h"
#include "daemon/job/model.h"

struct job *job_create(struct core *core, const struct event *event, struct error *err);
void job_stop(struct job *job); /* ends it, unless a step or operation is under way, or it stays */
void job_peer_lost(struct job *job, uint16_t node, enum peer_loss loss);
void job_tell_leave(struct job *job);
void job_reap(struct job *job); /* frees it if it has ended and no compute of it runs */
void job_free(struct job *job);
/* Tells the others when all local ranks have left. True: theirs have left too, the job ends. */
bool job_try_leave(struct job *job);
/* ops_done: as in PeerLeave, operations plus 1; 0: the node does not tell. */
void job_peer_left(struct job *job, uint16_t node, uint64_t steps_done, uint64_t ops_done);

#endif
