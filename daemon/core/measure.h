/*
 * What this node measures of a job, and what the planner made of it, for the files of this folder.
 */
#ifndef ADTOPK_MEASURE_H
#define ADTOPK_MEASURE_H

#include "daemon/core/model.h"
#include "daemon/core/planner.h"

struct measure {
    struct estimates own;
    uint64_t *pushed_us;   /* a tensor each: of its last push */
    uint64_t link_us;      /* the latest end of an exchange */
    uint32_t retried_view; /* steps that a view change disturbed do not count */
    uint64_t held_step;    /* nor one that waited for a switch of the policy: its number + 1 */

    /* As coordinator: */
    struct planner *planner; /* NULL: none yet */
    struct estimates merged; /* of all nodes, when the planner looked last */
    struct choices in_force;
    uint64_t decisions, proposals;
    double predicted_us;        /* of the plan that was proposed last; 0: none was */
    uint32_t predicted_for;     /* ... the policy version that it was to become */
    bool told;                  /* ... what it came to */
    char why[PLANNER_WHY_SIZE]; /* of the last decision */
};

/* Workers that share computes, as estimates count them. */
unsigned measure_threads(const struct job *job);

#endif
