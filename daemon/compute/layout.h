/*
 * The places of a job's gradients and residuals. results.h has the updates.
 */
#ifndef ADTOPK_COMPUTE_LAYOUT_H
#define ADTOPK_COMPUTE_LAYOUT_H

#include "daemon/compute/results.h"
#include "daemon/job/model.h"

#define LAYOUT_ALIGNMENT 64u /* of everything in an arena, in bytes */

/* The size of a rank's arena for a batch. Behind the gradients are the updates that the rank sees
 * on its GPU, their lists, and what they lack. */
enum adtopk_status layout_gradients_size(const struct job *job, unsigned batch,
    const struct rank *rank, uint64_t *size, struct error *err);
/* The same, and lays the batch out. No compute may read it yet. */
enum adtopk_status layout_gradients(
    struct job *job, unsigned batch, const struct rank *rank, uint64_t *size, struct error *err);
/* The offset in a rank's arena of what its updates of a tensor lack. The rank sees updates on its
 * GPU, with lists or without. */
uint64_t layout_pending(const struct job *job, const struct rank *rank, uint32_t tensor);
/* Maps the store, once: job->layout.found. An earlier daemon may have left its content. */
enum adtopk_status layout_find(struct job *job, struct error *err);
/* The run of which the store must be, if an earlier daemon or job left it; and what it must have
 * been made for: the policy, first tensors and local ranks. */
uint64_t layout_run(const struct job *job);
uint64_t layout_digest(const struct job *job);
/* Opens the store, with all batches that are in force. All local ranks must be there. */
enum adtopk_status layout_store(struct job *job, struct error *err);
/* Makes room for another batch of tensors, up to number `end`. They lie behind the tensors in
 * force. */
enum adtopk_status layout_batch(struct job *job, uint32_t end, struct error *err);
/* Opens STORE_RANKS. */
enum adtopk_status layout_more(struct job *job, struct error *err);
/* Frees STORE_RANKS if the plan in force does not use it. */
void layout_drop_more(struct job *job);
/* Restores memory that computes were changing when the daemon was killed, and ends the joining of
 * residuals. The job computes for that. Then the residuals fit either plan. */
enum adtopk_status layout_recover(struct job *job, struct error *err);
static inline uint64_t layout_align(uint64_t size)
{
    return (size + LAYOUT_ALIGNMENT - 1) / LAYOUT_ALIGNMENT * LAYOUT_ALIGNMENT;
}
/* Floats that each rank but the first has of a tensor in STORE_RANKS. */
uint64_t layout_rank_slot(const struct job *job, const struct tensor *tensor);
/* Bytes of a residual with the padding that the engine wants behind it. */
static inline uint64_t layout_pad(const struct job *job, uint64_t bytes)
{
    const uint64_t wanted = job->core->config.engine->alignment;
    const uint64_t step = wanted > LAYOUT_ALIGNMENT ? wanted : LAYOUT_ALIGNMENT;

    return (bytes + step - 1) / step * step;
}
/* A residual of a tensor. The node's is also the first local rank's. NULL if it is in bf16. */
float *layout_residual(const struct job *job, uint32_t tensor, unsigned rank);
/* The progress of the passes over a residual. */
struct progress *layout_progress(const struct job *job, uint32_t tensor, unsigned rank);
/* The sparsifier's state of a residual. */
struct store_states *layout_states(const struct job *job, uint32_t tensor, unsigned rank);
/* The number of a residual in journals. */
static inline uint64_t layout_number(uint32_t tensor, unsigned rank)
{
    return (uint64_t)tensor << 32 | rank;
}

#endif
