/*
 * What a fused pass adds to a chunk. It is the sum of the local gradients, scaled, with momentum,
 * less what decays of the residual; or the opposite of that for a withdrawal. A pass with `take`
 * adds the opposite of what is sent. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_GRADIENT_H
#define ADTOPK_KERNELS_GRADIENT_H

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"

/** For a chunk with its elements, its number and its open journal: sets chunk->sum to what the pass
 * adds to its `length` elements, before elements that are not finite are left out. The sum lies in
 * `buffer`, or is the gradient itself if there is only one. Or the function leaves summing to
 * chunk_ops.add, which gets the gradients. Journals and changes the chunk's momentum. ahead: memory
 * is fetched ahead of its use. */
void gradient_sum(const struct fused *pass, struct chunk *chunk, unsigned length, bool ahead,
    float buffer[CHUNK]);

/** The same for at most CHUNK_WORD elements from `first` on, which no pass has reached, and
 * nothing moves. */
void gradient_peek(const struct fused *pass, uint64_t first, unsigned length, float *sum);

/** Call it when the chunk's `length` elements are added and its record is written but not
 * published. Takes elements beyond the filter's limit, which are sent too. sum: as gradient_sum()
 * left it. */
void gradient_take_rest(const struct fused *pass, uint64_t number, unsigned length,
    const float *sum, struct chunk_record *record);

#endif
