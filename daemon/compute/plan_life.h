/*
 * The life of a plan: it is made, put in force, and freed.
 */
#ifndef ADTOPK_COMPUTE_PLAN_LIFE_H
#define ADTOPK_COMPUTE_PLAN_LIFE_H

#include "daemon/job/model.h"

/* The plan of the policy that a rank brings in its EVENT_RANK_OPEN. That changes the daemon's
 * default. */
struct plan *plan_of_rank(struct core *core, const struct event *event, struct error *err);
/* The hash of a policy that ranks bring, by which a job knows its store. */
uint64_t plan_brought(const struct plan *plan);
/* Makes a plan, on a worker if the tensors are many. Then calls `then`, unless the plan was
 * discarded or the job ended. If the plan could not be made, plan->fault says why: MEMORY, POLICY
 * (names the tensor). The job computes until then. */
void plan_make(
    struct job *job, struct plan *plan, void (*then)(struct job *job, struct plan *plan));
/* Frees a plan that the job no longer needs, on a worker if its tensors are many. It may be NULL.
 */
void plan_discard(struct job *job, struct plan *plan);
/* Whether too many unwanted plans are still being made or freed for another one to be made. Each
 * takes memory and a worker's time, however soon it is called off. */
bool plan_is_crowded(const struct job *job);
/* Makes the plan in force once the local ranks are known and the store is there, and opens all of
 * the job's memory. The job may compute until that is done. */
enum adtopk_status plan_begin(struct job *job, struct error *err);
/* Lets a worker free the plans of a job that has ended, if they are large. The job computes until
 * then. False: there is nothing to wait for. */
bool plan_retire(struct job *job);

#endif
