/*
 * Statistics of the elements whose key reaches a bound: those that are not zero, or a tail.
 * Internal to kernels/cpu and its tests.
 *
 * Order of summation. It is part of the definition, so that the doubles depend neither on the
 * compiler, the vector width nor the number of workers. Element i of a chunk belongs to lane i %
 * 16, and a lane adds its elements in their order. At the chunk's end the 16 lanes are added as a
 * tree, each lane of a half to the same lane of the other half, until one is left. The chunks are
 * added one after the other. An element below the bound adds nothing. So a list of the elements
 * that reach it gives the same bits as the array that they are from.
 *
 * Logarithms. A magnitude, as a double, is a mantissa in [1, 2) times a power of two. A lane
 * multiplies its mantissas, at most 256 per chunk and so below 2^256, and adds its exponents as
 * integers. One logarithm, of the product of all mantissas, serves all elements. Each product has a
 * relative error of at most 2^-53, and the sum of logarithms has as much per element.
 */
#ifndef ADTOPK_KERNELS_STATS_H
#define ADTOPK_KERNELS_STATS_H

#include <string.h>

#include "kernels/base/stats.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/survey.h"

/* The running sums of one chunk. */
struct stats_lanes {
    double sum[STATS_LANES];
    double sum_abs[STATS_LANES];
    double sum_squares[STATS_LANES];
    double product[STATS_LANES];    /* of mantissas; 1 at first */
    uint64_t exponent[STATS_LANES]; /* sums of exponents, each with its bias */
    uint64_t count;                 /* elements that reach the bound */
    uint32_t most;                  /* their largest key, 0 at first */
    uint32_t least;                 /* their smallest, UINT32_MAX at first */
};

/* One implementation; all give the same bits. */
struct stats_ops {
    const char *name;
    bool (*supported)(void);

    /* Adds the elements of a chunk's lanes that are not zero. Computes the needed statistics,
     * perhaps more. length: a multiple of STATS_LANES, at most CHUNK. need: enum survey_need. */
    void (*add)(struct stats_lanes *lanes, const float *x, unsigned length, unsigned need);

    /* Adds the elements whose key is at least `least` > 0: count, sum_abs and least, and with
     * `squares` sum_squares; perhaps more. */
    void (*tail)(
        struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool squares);

    /* How many of `length` elements, at most CHUNK, have a key of at least `least` > 0. */
    unsigned (*count)(const float *x, unsigned length, uint32_t least);
};

/** All implementations of this build, the best last, NULL-terminated. */
extern const struct stats_ops *const stats_table[];

/** The best one that this processor supports. */
const struct stats_ops *stats_best(void);

/** The lanes of nothing. */
struct stats_lanes stats_lanes_none(void);

/** A chunk's statistics. */
struct stats stats_fold(const struct stats_lanes *lanes);

/** Adds `length` elements of a chunk, a multiple of STATS_LANES but for its last ones. */
void stats_add(const struct stats_ops *ops, struct stats_lanes *lanes, const float *x,
    unsigned length, unsigned need);

/** What the operation `tail` says of a chunk's elements, at most CHUNK. */
struct stats stats_tail(
    const struct stats_ops *ops, const float *x, unsigned length, uint32_t least, bool squares);

/** The sum of the natural logarithms of all magnitudes. It uses no library's logarithm, so that
 * every machine gives the same bits. Its relative error is below 2^-51, besides the error of the
 * products. */
double stats_log(const struct stats *stats);

/* Adds one element to its lane, i % STATS_LANES. */
static inline void stats_lane(struct stats_lanes *lanes, unsigned lane, float x)
{
    const double value = (double)x;
    const double magnitude = value < 0 ? -value : value;
    const uint32_t key = select_key(x);
    lanes->sum[lane] += value;
    lanes->sum_abs[lane] += magnitude;
    lanes->sum_squares[lane] += value * value;
    lanes->product[lane] *= stats_mantissa(magnitude);
    lanes->exponent[lane] += stats_exponent(magnitude);
    lanes->count++;
    lanes->most = key > lanes->most ? key : lanes->most;
    lanes->least = key < lanes->least ? key : lanes->least;
}

#endif
