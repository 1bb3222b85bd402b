/*
 * What a fused pass adds to a chunk: the sum of the local gradients, scaled, with momentum; or the
 * opposite of it; or, where the pass takes, the opposite of what travels. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_GRADIENT_H
#define ADTOPK_KERNELS_GRADIENT_H

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"

/** For a chunk with its elements, number and journal, which is open: sets chunk->sum to what is to
 * be added to its `length` elements, not filtered yet. It lies in `buffer`, or in the gradient
 * itself where it is the only one; or it is left to chunk_ops.add, which gets the gradients.
 * Journals and moves the chunk's momentum. */
void gradient_sum(
    const struct fused *pass, struct chunk *chunk, unsigned length, float buffer[CHUNK]);

/** The same for at most CHUNK_WORD elements from `first` on, which no pass has reached, and
 * nothing moves. */
void gradient_peek(const struct fused *pass, uint64_t first, unsigned length, float *sum);

/** The chunk's `length` elements are added, its record written but not published: elements beyond
 * the filter's limit travel too. sum: as gradient_sum() left it. */
void gradient_take_rest(const struct fused *pass, uint64_t number, unsigned length,
    const float *sum, struct chunk_record *record);

#endif
