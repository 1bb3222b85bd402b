/*
 * Queries about a plan.
 */
#ifndef ADTOPK_JOB_PLAN_QUERY_H
#define ADTOPK_JOB_PLAN_QUERY_H

#include "daemon/job/model.h"

/* The number of nodes of the first view, also while that is being prepared. A plan has room for so
 * many, also when the job has gone on without some of them. */
unsigned plan_nodes(const struct job *job);
/* The number of tensors of the next plan: those in force, and those of a batch that comes into
 * force. */
uint32_t plan_tensors(const struct job *job);
/* Most entries of an update that is not sent dense. */
uint64_t plan_update_count(const struct job *job, const struct plan *plan, uint32_t tensor);
/* The engine that has the job's residuals, and whether a plan leaves them with a far one. */
const struct engine_ops *plan_engine(const struct job *job);
bool plan_is_far(const struct job *job, const struct plan *plan);
/* Whether its collective selects for all nodes. */
bool plan_is_whole(const struct plan_tensor *planned);
/* The number of the tensor's residuals on this node: one, or one per rank. */
unsigned plan_residuals(const struct job *job, const struct plan_tensor *planned);
/* Whether its residual is empty at the end of a step: the tensor is sent whole, and neither it nor
 * its update is rounded. */
bool plan_leaves_nothing(const struct plan_tensor *planned);
/* Whether momentum or clipping changes its gradients, however it is sent. */
bool plan_is_corrected(const struct plan_tensor *planned);
/* The seed of the job's random choices, the same on all nodes. */
uint64_t plan_seed(const struct job *job);
/* The tensor's turn: what it selects from, and the form of its contribution for a decoder. */
struct sparsifier_turn plan_turn(const struct job *job, uint32_t tensor);
struct sparsifier_choice plan_choice(const struct job *job, uint32_t tensor);
struct payload_shape plan_shape(
    const struct job *job, uint32_t tensor, const struct sparsifier_choice *choice);
/* Fills in the tensors' choices, after choices_init(). */
void plan_choices(const struct plan *plan, struct choices *choices);
bool plan_by_rank(const struct plan *plan); /* some tensor is */
/* Whether updates pass on NaN and Inf of gradients, so that steps are final. */
bool plan_propagates(const struct plan *plan);

/* Most entries that this node contributes if each residual selects planned->count. */
uint64_t plan_contribution_count(
    const struct job *job, const struct plan_tensor *planned, uint64_t numel);
/* The entries from which one of the tensor's turns selects. */
struct sparsifier_choice plan_choice_of(const struct tensor *tensor,
    const struct tensor_policy *policy, const struct sparsifier_agreed *agreed, uint64_t turn);

/* The index-th rule that matches no tensor, as its pattern; NULL: there are no more, or the tensors
 * are not known. */
const char *plan_unmatched_rule(const struct plan *plan, uint32_t index);

#endif
