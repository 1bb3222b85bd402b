/*
 * What this node measures of a job, and what the planner made of it, for the files of this folder.
 * Nothing that is computed depends on it.
 */
#ifndef ADTOPK_JOB_MEASURE_H
#define ADTOPK_JOB_MEASURE_H

#include "daemon/job/model.h"
#include "daemon/planner/planner.h"

struct measure {
    struct estimates own;
    uint64_t *pushed_us;   /* a tensor each: of its last push */
    uint64_t link_us;      /* the latest end of an exchange */
    uint32_t retried_view; /* steps that a view change disturbed do not count */
    uint64_t held_step;    /* nor one that waited for a switch of the policy: its number + 1 */
    uint64_t closed_step;  /* replan_step() has looked at the steps before this one */

    /* As coordinator: */
    uint64_t decisions, proposals;
    uint64_t decided_step;      /* steps that were done at the last decision */
    double predicted_us;        /* of the plan that was proposed last; 0: none was */
    uint32_t predicted_for;     /* the policy version that this plan was to become */
    bool told;                  /* the log has said what this plan came to */
    char why[PLANNER_WHY_SIZE]; /* of the last decision */
};

/* All of these do nothing if job->figures.measure is NULL. */
void measure_begin(struct job *job); /* for planning_begin() */
void measure_end(struct job *job);
void measure_push(struct job *job, uint32_t tensor);
void measure_round_begins(struct round *round);
void measure_sent(struct round *round, uint64_t bytes);
void measure_received(struct round *round, uint64_t bytes);
void measure_phase(struct round *round);    /* all frames of a phase are there, or none were due */
void measure_computed(struct round *round); /* before the state changes */
void measure_step(struct job *job);         /* one is accepted */

/* Workers that share computes, as estimates count them. */
unsigned measure_threads(const struct job *job);

#endif
