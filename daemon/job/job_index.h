/*
 * Jobs by number, key and run.
 */
#ifndef ADTOPK_JOB_JOB_INDEX_H
#define ADTOPK_JOB_JOB_INDEX_H

#include "daemon/job/model.h"

/* Enters the job under this hash, in place of its earlier one. */
void job_index_put(struct job *job, enum job_index index, uint64_t hash);
void job_index_drop(struct job *job); /* from all indexes */
/* The jobs under a hash, one after the other, also ended ones that are not freed yet; NULL: no
 * more. */
struct job *job_index_first(const struct core *core, enum job_index index, uint64_t hash);
struct job *job_index_next(const struct job *job, enum job_index index);

/* The job of this key that was opened last, or NULL. An older one whose ranks have left may still
 * exist. */
struct job *job_find(struct core *core, const struct job_key *key);
struct job *job_by_number(struct core *core, uint64_t number);
/* The job whose frames carry this run; NULL: none. */
struct job *job_find_run(struct core *core, uint64_t run);
/* Call it when the job's run, or the run proposed for its first view, has changed. */
void job_note_run(struct job *job);
/* Whether a job of this key has ended and still computes. */
bool job_is_ending(const struct core *core, const struct job_key *key);

/* Enters a new job: by number, by key, and by run if it has one. */
void job_index_enter(struct job *job);
uint64_t job_seed(const struct job_key *key);

#endif
