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

/* The cut for 0 < k <= n. count_from: the number of elements whose key is at least `least`. */
static inline struct select_cut select_bisect(const float *x, size_t n, size_t k,
    size_t (*count_from)(const float *x, size_t n, uint32_t least))
{
    uint32_t high;
    uint32_t low;     /* reached by at least k entries */
    size_t above = 0; /* entries that reach high + 1, fewer than k */
    size_t count = n;
    select_extremes(x, n, &high, &low);
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

#endif
