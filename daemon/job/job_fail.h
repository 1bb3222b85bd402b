/*
 * The end of a job: which nodes and ranks learn of it, and what they are told.
 */
#ifndef ADTOPK_JOB_JOB_FAIL_H
#define ADTOPK_JOB_JOB_FAIL_H

#include "daemon/job/model.h"

void job_drop_failure(struct failure *failure);
void job_end(struct job *job);
void job_tell_failure(struct job *job);
void job_fail(struct job *job, const struct error *error, bool tell_peers);
/* Fails the job when this many steps are done, or at once if that can never be. The peers know
 * already. */
void job_fail_later(struct job *job, const struct error *error, uint64_t steps);
/* Fails the job if a message to other nodes is too long, or there was no memory for it. */
void job_fail_unsent(struct job *job);
void job_fail_due(struct job *job); /* a step is done, or never will be */
/* Whether only this node's part ended, and its ranks may join the others again. */
bool job_goes_on_elsewhere(const struct job *job);

/* Fails the job on all nodes: all ranks of a node left before a step, or an operation, of which
 * others are part. err gets the sentence. */
void job_fail_left(
    struct job *job, unsigned node, const char *before, uint64_t number, struct error *err);

/* Fails the job on all nodes, with this sentence. */
void job_fail_with(struct job *job, enum adtopk_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
