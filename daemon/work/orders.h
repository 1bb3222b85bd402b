/*
 * What an engine is told to do with a tensor: its orders, in plain numbers
 * (daemon/engine/engine.h), made of what the plan and the store say. Each function adds one order
 * to the batch, or several.
 */
#ifndef ADTOPK_WORK_ORDERS_H
#define ADTOPK_WORK_ORDERS_H

#include "daemon/job/model.h"

/* How many orders and parts one tensor takes at most, whatever is done with it. */
unsigned orders_per_tensor(const struct job *job);
unsigned orders_parts(const struct job *job);

/* Adds the step's gradients to each residual of the tensor, unless they are in, and selects. */
void orders_add(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* What the sparsifier remembers of a residual, as of the last turn that counted. */
struct sparsifier_state orders_state(const struct job *job, uint32_t tensor, unsigned rank);
/* Takes them out again. */
void orders_withdraw(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Looks at the gradients of a dense tensor whose residual is empty, and stays so, and writes their
 * sum, scaled, to `sum` unless that is NULL. */
void orders_direct(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, float *sum, float scale);
/* Asks for the ledger's sums of what orders_direct() looked at. */
void orders_passed(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Takes out what was sent of a dense tensor, and adds the rests that come back. There is no order
 * if the tensor is unpushed here and nothing comes back. */
void orders_take(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Takes out the entries that were sent and accepted; then adds those that come back. A bit per
 * entry says which (planned->accepted, planned->taken): NULL means all of them. */
void orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, const uint8_t *accepted);
void orders_return(const struct job *job, struct engine_batch *batch, uint32_t tensor,
    const struct returned *returned);
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
/* Asks for the ledger's sums of each residual. */
void orders_sums(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* The ranks' residuals become the node's. */
void orders_join(const struct job *job, struct engine_batch *batch, uint32_t tensor);
/* Makes the next plan's residual and velocities of those in force. */
void orders_switch(const struct job *job, struct engine_batch *batch, uint32_t tensor);

#endif
