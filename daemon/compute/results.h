/*
 * The places of a job's updates.
 */
#ifndef ADTOPK_COMPUTE_RESULTS_H
#define ADTOPK_COMPUTE_RESULTS_H

#include "daemon/job/model.h"

/* Opens a batch's results. */
enum adtopk_status results_open(struct job *job, unsigned batch, struct error *err);
/* Opens the results before the first view, and reserves what a view of the prepared nodes needs of
 * them. The job computes until that is done. */
enum adtopk_status results_begin(struct job *job, struct error *err);
/* Writes the table of the places of the last batch's updates, once its results are reserved. False:
 * a list that an earlier daemon left there is damaged. */
bool results_table(const struct job *job);
/* The error of such a list. */
enum adtopk_status results_damaged(const struct job *job, struct error *err);
/* The bytes that this touches: a page per tensor. */
uint64_t results_table_bytes(const struct job *job);
/* Reserves the parts of the results that updates need under this plan. Calls `then` when that is
 * done or has failed, unless another call for the job comes first, or the job ends. The job
 * computes until then. */
enum adtopk_status results_reserve(struct job *job, const struct plan *plan,
    void (*then)(struct job *job, const struct error *error), struct error *err);
/* Calls off the wait for a reservation whose `then` is this one. Its memory is reserved all the
 * same.
 */
void results_forget_reserved(
    struct job *job, void (*then)(struct job *job, const struct error *error));
void results_reserved(
    struct core *core, uint64_t id, const struct error *error); /* EVENT_RESERVED */
/* The memory at an offset of the results in which the tensor's update is. */
void *results_at(const struct job *job, uint32_t tensor, uint64_t offset);
/* Whether a list that an earlier daemon wrote has room, and names elements of its tensor only.
 * Memory may have changed since. */
bool results_list_fits(const uint32_t *place, uint64_t count, uint64_t room, uint64_t numel);
/* A tensor's update: its record, its dense form, its list. */
struct local_update *results_update(const struct job *job, uint32_t tensor);
float *results_dense(const struct job *job, uint32_t tensor);
uint32_t *results_index(const struct job *job, uint32_t tensor);
float *results_value(const struct job *job, uint32_t tensor);
/* Writes to a tensor's update where the ranks find the residual for looking ahead under this plan.
 * The plan is in force or about to be, after this many switches. */
void results_pending(const struct job *job, const struct plan *plan, uint32_t switches, uint32_t t);
/* The factor that makes of the tensor's residual what ranks know that its updates lack; 0: they may
 * not look ahead, or have no residual. */
float results_pending_scale(const struct job *job, const struct plan *plan, uint32_t tensor);
/* Tells ranks how their residuals compare with updates, since the view has other ranks. */
void results_rescale(const struct job *job);
/* Tells a rank that the tensor's update of this step is there. */
void results_tell(const struct rank *rank, uint32_t tensor, uint64_t step);
/* Whether ranks see the tensor's updates in 16 bits. Then the forms in f32 that the daemon keeps
 * have the values before rounding (proto/local.h). */
bool results_is_narrow(const struct tensor *tensor);
unsigned results_forms(const struct tensor *tensor);
/* The 16-bit form of an update, and the values of the list that goes with it; NULL: it has none. */
uint16_t *results_half(const struct job *job, uint32_t tensor);
float *results_shown(const struct job *job, uint32_t tensor);

#endif
