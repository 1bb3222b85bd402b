/*
 * Jobs by number, key and run.
 */
#ifndef ADTOPK_JOB_JOB_INDEX_H
#define ADTOPK_JOB_JOB_INDEX_H

#include "daemon/job/model.h"

/* Enters the job under this hash, in place of the one before. */
void job_index_put(struct job *job, enum job_index index, uint64_t hash);
void job_index_drop(struct job *job); /* from all */
/* The jobs under a hash, those that ended and are not freed yet too; NULL: no more. */
struct job *job_index_first(const struct core *core, enum job_index index, uint64_t hash);
struct job *job_index_next(const struct job *job, enum job_index index);

/* The job of this key that was opened last, or NULL. One whose ranks have left may still be there
 * beside it. */
struct job *job_find(struct core *core, const struct job_key *key);
struct job *job_by_number(struct core *core, uint64_t number);
/* The job whose frames carry this number; NULL: none. */
struct job *job_find_run(struct core *core, uint64_t run);
/* The job's run, or the one that is proposed for its first view, has become another one. */
void job_note_run(struct job *job);
/* Whether a job of this key has ended but still computes. */
bool job_is_ending(const struct core *core, const struct job_key *key);

/* A new job: by number, by key, and by run if it has one. */
void job_index_enter(struct job *job);
uint64_t job_seed(const struct job_key *key);

#endif
