/*
 * Values of 1 to 4 bits, in blocks.
 *
 * A block has one or two scales and some bits of each value. The bits lie in planes: plane p has
 * bit p of every value's code, bit i % 8 of its byte i / 8 being that of value i. Plane 0 is the
 * sign, the others are the magnitude from its lowest bit on.
 *
 *     type   scales     planes  magnitude
 *     sign   mean       1       the mean magnitude of the block
 *     two    low, high  2       `low` or `high`
 *     int3   step       3       0 to 3 steps
 *     int4   step       4       0 to 7 steps
 *
 * Scales are bf16 without a sign. Magnitudes over the largest finite one count as that; NaN counts
 * as 0. A mean is a sum in double precision over the number of values, rounded to f32 and then to
 * bf16, but never from a positive number to 0. The sum has 8 lanes, value i in lane i % 8.
 *
 * two: the values whose magnitude is over 1.15 times the mean magnitude of the block, as f32, form
 * the upper group. `high` is its mean magnitude, `low` that of the others. (Means of groups were
 * sent by Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.) There are two
 * exceptions:
 *
 *   - if a value is 0, all values that are not 0 form the upper group, and `low` is 0;
 *   - if the magnitudes are at most two numbers, which bf16 can hold, they are the groups.
 *
 * If the upper group is empty, or has the same mean, there is one group, and `high` is 0. sign
 * sends 0 as the mean.
 *
 * int3 and int4 round to the nearest level of quantise.h.
 *
 * Encoding what was decoded gives the same block again. All implementations give the same bits.
 * Reentrant.
 */
#ifndef ADTOPK_KERNELS_PACKED_H
#define ADTOPK_KERNELS_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/quantise.h"

#define PACKED_PLANES_MAX 4
#define PACKED_PLANE_SIZE (QUANTISE_BLOCK / 8)
#define PACKED_SCALE_MAX 0x7f7fu /* the largest finite bf16 */

struct packed_block {
    uint16_t scale[2]; /* as bf16 bits; low before high */
    uint8_t plane[PACKED_PLANES_MAX][PACKED_PLANE_SIZE];
};

enum { PACKED_LANES = 8, PACKED_GROUP = 16 };

/* Magnitudes of a block, as bits of f32. */
struct packed_measure {
    double sum[PACKED_LANES];
    uint32_t least, most;
};

/* A block parted at a magnitude. */
struct packed_split {
    double below[PACKED_LANES], above[PACKED_LANES]; /* sums of the magnitudes of both groups */
    uint8_t sign[PACKED_PLANE_SIZE];                 /* one bit per value; none for 0 and NaN */
    uint8_t over[PACKED_PLANE_SIZE];                 /* those above */
};

/* An implementation of the inner loops. `n` is a multiple of PACKED_GROUP, except for `plain`. */
struct packed_ops {
    const char *name;
    bool (*supported)(void);
    void (*measure)(const float *value, size_t n, struct packed_measure *measure);
    void (*split)(const float *value, size_t n, uint32_t threshold, struct packed_split *split);
    /* The same without sums. Returns whether every magnitude is `threshold` or `most`. */
    bool (*mark)(const float *value, size_t n, uint32_t threshold, uint32_t most,
        uint8_t sign[PACKED_PLANE_SIZE], uint8_t over[PACKED_PLANE_SIZE]);
    /* table: the magnitudes by code, as bits of f32. planes: how many, including the sign. */
    void (*expand)(const struct packed_block *block, unsigned planes, const uint32_t table[8],
        size_t n, float *value);
};

extern const struct packed_ops *const packed_table[]; /* NULL-terminated, the best one last */
extern const struct packed_ops packed_plain, packed_avx2, packed_avx512;

/** The best implementation for this processor. */
const struct packed_ops *packed_best(void);

/** Whether values of this type are packed. */
static inline bool packed_is(enum quantisation type)
{
    return type >= QUANTISE_TWO && type <= QUANTISE_INT3;
}

/** How many planes and scales a block has. */
unsigned packed_planes(enum quantisation type);
unsigned packed_scales(enum quantisation type);

/** Encodes 0 < n <= QUANTISE_BLOCK values. Bits and planes that are not used become 0. */
void packed_encode(const struct packed_ops *ops, const float *value, size_t n,
    enum quantisation type, struct packed_block *block);

/** Decodes them. Any bits are allowed, and give some values. */
void packed_decode(const struct packed_ops *ops, const struct packed_block *block, size_t n,
    enum quantisation type, float *value);

/** What is wrong with a block that packed_encode() never makes, as part of a sentence; NULL if
 * it may be one of its blocks. */
const char *packed_fault(const struct packed_block *block, size_t n, enum quantisation type);

#endif
