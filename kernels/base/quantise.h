/*
 * Rounds values to the types in which they are sent.
 *
 * bf16 and f16 round each value to its nearest neighbour. int8 works on blocks of values: a block
 * has a step, and each value becomes a whole number of steps, its level. This is QSGD (Alistarh et
 * al., 2017), with blocks of 128 and the maximum as norm:
 *
 *     step   the least bf16 >= 0 with 127 * step >= the block's largest magnitude
 *     level  127 for the first value of that magnitude; floor(|v| / step + u) for the others; all
 *            with the sign of v. u is uniform in [0, 1), so that v is kept on average, or it is 1/2
 *
 * int4 and int3 do the same with 7 and 3 in place of 127, and u is always 1/2.
 *
 * A step has 8 significant bits and a level 7, so their product is exact in f32. Rounding rounded
 * values again, with any u, does not change them. Magnitudes over those of the largest level and
 * the largest step, infinity included, become that; NaN becomes 0. A level of 0 is +0.
 *
 * two and sign send means of groups of a block's values; packed.h has their rules.
 *
 * The same input gives the same bits on every machine. All functions are reentrant.
 */
#ifndef ADTOPK_KERNELS_QUANTISE_H
#define ADTOPK_KERNELS_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

#define QUANTISE_BLOCK 128
#define QUANTISE_LEVELS 127 /* of int8 */

enum quantisation {
    QUANTISE_F32 = 0,
    QUANTISE_BF16,
    QUANTISE_F16,
    QUANTISE_INT8,
    QUANTISE_TWO, /* from here on packed.h */
    QUANTISE_SIGN,
    QUANTISE_INT4,
    QUANTISE_INT3
};

/**
 * Replaces n values by the values that a receiver will decode. f32 changes nothing, bf16 and f16
 * round to nearest, and the others work in blocks from the first value on. Only int8 rounds
 * stochastically. Its random numbers are a function of seed and place: the same seed repeats them.
 */
void quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);

/** The largest step of `levels` levels (127, 7 or 3), as bf16 bits: so many steps are finite. */
uint16_t quantise_step_max(unsigned levels);

/** One block of 0 < n <= QUANTISE_BLOCK values, rounded to the nearest of `levels` levels: returns
 * the step as bf16 bits and writes n levels. */
uint16_t quantise_block(const float *value, size_t n, unsigned levels, int8_t *level);

/** value[i] = level[i] * step; exact for the output of quantise_block(). */
void quantise_decode(uint16_t step, const int8_t *level, size_t n, float *value);

#endif
