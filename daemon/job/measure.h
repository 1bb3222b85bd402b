/*
 * This node's measurements of a job, and the planner's use of some of them.
 * No result of a computation depends on them.
 */
#ifndef ADTOPK_JOB_MEASURE_H
#define ADTOPK_JOB_MEASURE_H

#include "daemon/job/model.h"
#include "daemon/planner/planner.h"

struct measure {
    struct estimates own;
    uint64_t *pushed_us;   /* time of each tensor's last push */
    uint64_t link_us;      /* the latest end of an exchange */
    uint32_t retried_view; /* a step that a view change disturbed does not count */
    /* Number + 1 of a step that waited for a switch of the policy, which does not count either. */
    uint64_t held_step;
    uint64_t closed_step; /* replan_step() has handled the steps before this one */

    /* As coordinator: */
    uint64_t decisions, proposals;
    uint64_t decided_step;      /* steps done at the last decision */
    double predicted_us;        /* for the plan that was proposed last; 0: none was */
    uint32_t predicted_for;     /* the policy version that this plan was to get */
    bool told;                  /* the log has the result of this plan */
    char why[PLANNER_WHY_SIZE]; /* reason of the last decision */
};

/* Besides the paces of ranks and the bytes of tensors, these note nothing if
 * job->figures.measure is NULL. */
void measure_begin(struct job *job); /* for planning_begin() */
void measure_end(struct job *job);
void measure_push(struct rank *rank, uint32_t tensor);
void measure_round_begins(struct round *round);
void measure_sent(struct round *round, uint64_t bytes);
void measure_received(struct round *round, uint64_t bytes);
void measure_phase(struct round *round);    /* all frames of a phase are there, or none were due */
void measure_computed(struct round *round); /* before the state changes */
void measure_step(struct job *job);         /* it is over */

/* A phase of a round or step is over that took so long. */
void measure_phase_time(struct job *job, enum phase phase, uint64_t us);

/* Adds the measurements and the planner's last decision to what is told of a plan. */
void measure_tell(const struct job *job, struct plan_info *info);

/* Workers that share computes, as estimates count them. */
unsigned measure_threads(const struct job *job);

#endif
