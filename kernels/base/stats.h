/*
 * Statistics of some elements: the parts of kernels/cpu/stats.h that device code calls too.
 */
#ifndef ADTOPK_KERNELS_BASE_STATS_H
#define ADTOPK_KERNELS_BASE_STATS_H

#include <stdint.h>
#include <string.h>

#include "kernels/base/inline.h"

enum { STATS_LANES = 16 };

/* A double's exponent of 0 is stored as this. */
enum { STATS_BIAS = 1023 };

/* Of one chunk, or of several together. */
struct stats {
    uint64_t count;
    double sum;
    double sum_abs;
    double sum_squares;
    double mantissa; /* the product of all magnitudes is mantissa, in [1, 2), times 2^exponent */
    int64_t exponent;
    uint32_t most;
    uint32_t least;
};

/** The statistics of nothing. */
BASE_INLINE struct stats stats_none(void)
{
    const struct stats none = {0, 0, 0, 0, 1, 0, 0, UINT32_MAX};
    return none;
}

/* A positive number of at least 1 as one in [1, 2) times a power of two. */
BASE_INLINE double stats_mantissa(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&number, &bits, sizeof bits);
    return number;
}

/* The exponent as a double has it. */
BASE_INLINE uint64_t stats_exponent(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 52 & 0x7ff;
}

/* Moves the exponent of a positive number of at least 1 out of it. */
BASE_INLINE void stats_normalise(double *mantissa, int64_t *exponent)
{
    *exponent += (int64_t)stats_exponent(*mantissa) - STATS_BIAS;
    *mantissa = stats_mantissa(*mantissa);
}

/** total, of the chunks before, grows by the next one. */
BASE_INLINE void stats_join(struct stats *total, const struct stats *next)
{
    total->count += next->count;
    total->sum += next->sum;
    total->sum_abs += next->sum_abs;
    total->sum_squares += next->sum_squares;
    total->mantissa *= next->mantissa;
    total->exponent += next->exponent;
    stats_normalise(&total->mantissa, &total->exponent);
    total->most = next->most > total->most ? next->most : total->most;
    total->least = next->least < total->least ? next->least : total->least;
}

#endif
