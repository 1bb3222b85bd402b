/*
 * Plans: the meaning of a policy for the tensors of a job.
 */
#ifndef ADTOPK_COMPUTE_PLAN_H
#define ADTOPK_COMPUTE_PLAN_H

#include "daemon/job/model.h"

struct plan *plan_create(const struct policy *policy);
void plan_free(struct plan *plan);
/* Frees all that the plan holds. */
void plan_empty(struct plan *plan);
/* Finds out what the plan means for the job's tensors. Errors: MEMORY, POLICY (names the tensor).
 */
enum adtopk_status plan_fill(struct job *job, struct plan *plan, struct error *err);
/* Whether the plan in force is compatible with the nodes of the view. Errors: POLICY. */
enum adtopk_status plan_check(const struct job *job, struct error *err);

#endif
