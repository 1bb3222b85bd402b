/*
 * The life of a plan: it is made, put in force, and freed.
 */
#ifndef ADTOPK_WORK_PLAN_LIFE_H
#define ADTOPK_WORK_PLAN_LIFE_H

#include "daemon/job/model.h"

/* Finds out what the plan means for the job's tensors, on a worker if these are many, and then
 * calls `then`, unless the plan was discarded or the job ended. plan->fault says why it could not
 * be made: MEMORY, POLICY (names the tensor). The job computes until then. */
void plan_make(
    struct job *job, struct plan *plan, void (*then)(struct job *job, struct plan *plan));
/* Frees a plan that the job needs no more, on a worker if its tensors are many. It may be NULL. */
void plan_discard(struct job *job, struct plan *plan);
/* Whether so many plans that nobody needs any more are still being made or freed that no other
 * should be made: each takes memory and a worker's time, however soon it is called off. */
bool plan_is_crowded(const struct job *job);
/* Makes the plan in force once the local ranks are known and the store is there, and opens all of
 * the job's memory. The job may compute until that is done. */
enum adtopk_status plan_begin(struct job *job, struct error *err);
/* Has a worker free what the plans of a job that has ended hold, if that is much. The job computes
 * until then. False: there is nothing to wait for. */
bool plan_retire(struct job *job);

#endif
