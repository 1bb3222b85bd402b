/*
 * Values rounded to what travels.
 *
 * bf16 and f16 round each value to its nearest neighbour. int8 works on blocks of values: a block
 * has a step, and each value becomes a whole number of steps, its level (Alistarh et al., "QSGD",
 * 2017, with blocks of 128 and the maximum as norm):
 *
 *     step   the least bf16 >= 0 with 127 * step >= the block's largest magnitude
 *     level  of the first value of that magnitude: 127; of the others: floor(|v| / step + u), all
 *            with the sign of v; u is uniform in [0, 1), so that on average v is kept, or 1/2
 *
 * A step has 8 significant bits and a level 7, so the product is exact in f32, and values that were
 * rounded are not changed by rounding them again, with any u. Magnitudes over QUANTISE_LARGEST,
 * infinity included, become that; NaN becomes 0. A level of 0 is +0.
 *
 * The same input gives the same bits on every machine. All functions are reentrant.
 */
#ifndef ADTOPK_KERNELS_QUANTISE_H
#define ADTOPK_KERNELS_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

#define QUANTISE_BLOCK 128
#define QUANTISE_LEVELS 127
#define QUANTISE_STEP_MAX 0x7c01u      /* as bf16 bits: 127 steps are finite */
#define QUANTISE_LARGEST 0x1.fff8p127f /* 127 of them */

enum quantisation { QUANTISE_F32 = 0, QUANTISE_BF16, QUANTISE_F16, QUANTISE_INT8 };

/**
 * Replaces n values by what will be decoded from them: f32 by themselves, bf16 and f16 by the
 * nearest, int8 stochastically, in blocks from the first value on. The random numbers are a
 * function of seed and place: the same seed repeats them.
 */
void quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);

/** One block of 0 < n <= QUANTISE_BLOCK values as int8, rounded to nearest: returns the step as
 * bf16 bits and writes n levels. */
uint16_t quantise_block(const float *value, size_t n, int8_t *level);

/** value[i] = level[i] * step, exact for what quantise_block() made. */
void quantise_decode(uint16_t step, const int8_t *level, size_t n, float *value);

#endif
