/*
 * What can be asked of a plan.
 */
#ifndef ADTOPK_JOB_PLAN_QUERY_H
#define ADTOPK_JOB_PLAN_QUERY_H

#include "daemon/job/model.h"

/* Nodes of the view in force, or of the first one that is being prepared. */
unsigned plan_nodes(const struct job *job);
/* The tensors of the next plan: those in force, and those of a batch that comes into force. */
uint32_t plan_tensors(const struct job *job);
/* Most entries of an update that does not travel dense. */
uint64_t plan_update_count(const struct job *job, const struct plan *plan, uint32_t tensor);
/* Its collective selects for all nodes. */
bool plan_is_whole(const struct plan_tensor *planned);
/* Residuals that a tensor has on this node: one, or one a rank. */
unsigned plan_residuals(const struct job *job, const struct plan_tensor *planned);
/* It travels whole and is not rounded, nor is its update: its residual is empty at the end of a
 * step. */
bool plan_leaves_nothing(const struct plan_tensor *planned);
/* Momentum or clipping changes its gradients, however it is sent. */
bool plan_is_corrected(const struct plan_tensor *planned);
/* The tensor's turn; what it selects from, and how its contribution looks to a decoder. */
struct sparsifier_turn plan_turn(const struct job *job, uint32_t tensor);
struct sparsifier_choice plan_choice(const struct job *job, uint32_t tensor);
struct payload_shape plan_shape(const struct job *job, uint32_t tensor);
/* Its choices, for choices_init() of its tensors. */
void plan_choices(const struct plan *plan, struct choices *choices);
bool plan_by_rank(const struct plan *plan); /* some tensor is */
/* Its updates pass on that a gradient had NaN or Inf, and its steps are final. */
bool plan_propagates(const struct plan *plan);

/* Most entries that this node contributes, given that each residual selects planned->count. */
uint64_t plan_contribution_count(
    const struct job *job, const struct plan_tensor *planned, uint64_t numel);
/* What one of the tensor's turns selects from. */
struct sparsifier_choice plan_choice_of(const struct tensor *tensor,
    const struct tensor_policy *policy, const struct sparsifier_agreed *agreed, uint64_t turn);

#endif
