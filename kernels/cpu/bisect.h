/*
 * Inline body of the cut among few entries, by bisection between the smallest and the largest key:
 * every implementation compiles it for its own instructions. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_BISECT_H
#define ADTOPK_KERNELS_BISECT_H

#include "kernels/cpu/select.h"

/* The largest and the smallest key of n > 0 elements. */
static inline void select_extremes(const float *x, size_t n, uint32_t *most, uint32_t *least)
{
    int32_t high = 0;
    int32_t low = INT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const int32_t key = (int32_t)select_key(x[i]);
        high = key > high ? key : high;
        low = key < low ? key : low;
    }
    *most = (uint32_t)high;
    *least = (uint32_t)low;
}

typedef size_t select_counter(const float *x, size_t n, uint32_t least);

/* The cut for 0 < k <= n, which lies in low..high: `count` entries, at least k, reach low, and
 * `above`, fewer than k, reach high + 1. */
static inline struct select_cut select_halve(const float *x, size_t n, size_t k, uint32_t low,
    uint32_t high, size_t count, size_t above, select_counter *count_from)
{
    while (count != k && low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        count = count_from(x, n, middle);
        /* Selects, as a branch either way would be mispredicted every other time. */
        const bool reached = count >= k;
        low = reached ? middle : low;
        high = reached ? high : middle - 1;
        above = reached ? above : count;
    }
    return (struct select_cut){.key = low, .ties = count == k ? SELECT_ALL : k - above};
}

/* The cut for 0 < k <= n. count_from: the number of elements whose key is at least `least`. */
static inline struct select_cut select_bisect(
    const float *x, size_t n, size_t k, select_counter *count_from)
{
    uint32_t high;
    uint32_t low;
    select_extremes(x, n, &high, &low);
    return select_halve(x, n, k, low, high, n, 0, count_from);
}

/* The same where all keys are at least `least` and the cut is probably below `likely`. */
static inline struct select_cut select_bisect_near(
    const float *x, size_t n, size_t k, uint32_t least, uint32_t likely, select_counter *count_from)
{
    const size_t above = likely > least && n > k ? count_from(x, n, likely) : n;
    return above < k ? select_halve(x, n, k, least, likely - 1, n, above, count_from)
                     : select_bisect(x, n, k, count_from);
}

#endif
