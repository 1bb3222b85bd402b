/*
 * Makes an engine's orders for a tensor, in plain numbers (daemon/engine/engine.h), from the plan
 * and the store. Each function adds one or several orders to the batch.
 */
#ifndef ADTOPK_COMPUTE_ORDERS_H
#define ADTOPK_COMPUTE_ORDERS_H

#include "daemon/job/model.h"

/* The most orders and parts that one tensor takes, for any work. */
unsigned orders_per_tensor(const struct job *job);
unsigned orders_parts(const struct job *job);

/* Adds the step's gradients to each residual of the tensor, unless they are in already, and
 * selects. */
void orders_add(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* The sparsifier's state of a residual, after the last turn that counted. */
struct sparsifier_state orders_state(const struct job *job, uint32_t tensor, unsigned rank);
/* Subtracts the step's gradients again. */
void orders_withdraw(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Checks the gradients of a dense tensor whose residual is empty and stays so. Writes their scaled
 * sum to `sum` unless that is NULL. */
void orders_direct(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, float *sum, float scale);
/* Asks for the ledger's sums of the gradients of orders_direct(). */
void orders_passed(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Subtracts the sent values of a dense tensor, and adds the rests that come back. Adds no order if
 * the tensor is unpushed here and no rest comes back. */
void orders_take(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Subtracts the entries that were sent and accepted, then adds those that come back. The entries
 * are given by a bit each (planned->accepted, planned->rests_accepted); NULL: all of them. */
void orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, const uint8_t *accepted);
void orders_return(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct rest_list *returned);
/* Reads the node's residual at the list's positions, into `value`. */
void orders_gather(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct sparse *list, float *value);
/* A stretch of a residual: `first` is a multiple of ENGINE_READ_STEP. */
struct orders_part {
    uint64_t first, count;
    float *out;
};

/* Reads a stretch of a residual, in f32. */
void orders_read_part(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    unsigned rank, const struct orders_part *part);
/* Reads all of a residual, in f32. */
void orders_read(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, unsigned rank, float *out);
/* Brings this node's values of a dense tensor to a place in a device's vector, for an operation of
 * a carrier. Then makes the update of the sum there: in the results and, with `shows`, where ranks
 * see it on their GPUs. */
void orders_give(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct exchange_tensor *entry, struct engine_place place);
void orders_summed(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    struct engine_place place, float factor, bool shows);
/* The places of a tensor's results that an update is written to; NULL: not there. */
struct orders_written {
    float *dense, *value;
    uint32_t *index;
};

/* Converts the positions of the exchange's update to the forms that ranks see. */
void orders_update(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct exchange_tensor *entry, const struct orders_written *to);
/* Makes the 16-bit form of the update, if ranks see that. The record says which form it has. */
void orders_narrow(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Writes what updates of the tensor lack to where ranks see it on their GPUs, if any does. Orders
 * that settle it come before. */
void orders_pending(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Whether a rank sees updates on its GPU. */
bool orders_are_shown(const struct job *job);
/* Writes the tensor's update where ranks see it on their GPUs. `list`: its entries, at positions of
 * the view; NULL: it is whole in the results. False: no rank has such a place. */
bool orders_show(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct view *view, const struct sparse *list);
/* A stretch of a residual, or of its velocity, as the engine has it. */
struct orders_image {
    const struct plan *plan; /* whose residual it is; NULL: of the plan in force */
    bool loads;              /* it comes back; false: it is copied out */
    bool velocity;
    uint64_t first, count; /* elements; first: as above */
    void *element;         /* NULL: only carries */
    struct carry *carry;   /* NULL: only elements */
    bool progress;         /* and, in the store, how far passes over all of it have come */
};

void orders_image(const struct job *job, struct engine_batch *batch, uint32_t tensor, unsigned rank,
    const struct orders_image *image);
/* Asks for the ledger's sums of each residual. */
void orders_sums(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Joins the ranks' residuals to the node's. */
void orders_join(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Makes the next plan's residual and velocities from those in force. */
void orders_switch(const struct job *job, struct engine_batch *batch, uint32_t tensor);

#endif
