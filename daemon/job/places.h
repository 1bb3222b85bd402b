/*
 * The lists and tables in which a core finds its jobs: job_index.c.
 */
#ifndef ADTOPK_JOB_PLACES_H
#define ADTOPK_JOB_PLACES_H

#include <stdbool.h>
#include <stdint.h>

struct job;

/* The indexes of jobs. */
enum job_index { BY_NUMBER, BY_KEY, BY_RUN, JOB_INDEXES };
#define JOB_BUCKETS 1024u

/* A job's place in one of the tables. */
struct job_place {
    struct job *next; /* the next job in the same list */
    uint64_t hash;
    bool in;
};

/* The lists that a job is in. */
struct places {
    struct job *next; /* the next job of the core */
    struct job_place in[JOB_INDEXES];
};

#endif
