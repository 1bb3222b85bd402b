/*
 * What a policy means for the tensors of a job.
 */
#ifndef ADTOPK_PLAN_H
#define ADTOPK_PLAN_H

#include "daemon/core/model.h"

struct plan *plan_create(const struct policy *policy);
void plan_free(struct plan *plan);
/* What it means for the job's tensors. Errors: MEMORY, POLICY (names the tensor). The plan is to be
 * freed then. */
enum adtopk_status plan_make(struct job *job, struct plan *plan, struct error *err);
/* Whether the plan in force goes with the nodes of the view. Errors: POLICY. */
enum adtopk_status plan_check(const struct job *job, struct error *err);
bool plan_by_rank(const struct plan *plan); /* some tensor is */
/* Its choices, for choices_init() of its tensors. */
void plan_choices(const struct plan *plan, struct choices *choices);
/* Makes the plan in force once the local ranks are known and the store is there, and opens all of
 * the job's memory. The job may compute until that is done. */
enum adtopk_status plan_begin(struct job *job, struct error *err);
/* Nodes of the view in force, or of the first one that is being prepared. */
unsigned plan_nodes(const struct job *job);
/* Most entries of an update that does not travel dense. */
uint64_t plan_update_count(const struct job *job, const struct plan *plan, uint32_t tensor);
/* Its collective selects for all nodes. */
bool plan_is_whole(const struct planned *planned);
/* It travels whole and is not rounded: its residual is empty at the end of a step. */
bool plan_leaves_nothing(const struct planned *planned);
/* Momentum or clipping changes its gradients, however it is sent. */
bool plan_is_corrected(const struct planned *planned);
/* Residuals that a tensor has on this node: one, or one a rank. */
unsigned plan_residuals(const struct job *job, const struct planned *planned);
/* The tensor's turn; what it selects from, and how its contribution looks to a decoder. */
struct sparsifier_turn plan_turn(const struct job *job, uint32_t tensor);
struct sparsifier_choice plan_choice(const struct job *job, uint32_t tensor);
struct payload_shape plan_shape(const struct job *job, uint32_t tensor);

#endif
