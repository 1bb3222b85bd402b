/*
 * Inline body of the cut among entries that stay in the cache, by bisection between the smallest
 * and the largest key. Every implementation compiles it for its own instructions. Internal to
 * kernels/cpu.
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

/* After so many steps a bisection no longer assumes that keys are evenly spread. */
enum { EVEN_STEPS = 5 };

typedef size_t select_counter(const float *x, size_t n, uint32_t least);

/* Elements divided by a key. */
struct select_split {
    size_t count;   /* keys that reach it */
    uint32_t least; /* the least of those, INT32_MAX if there are none */
    uint32_t most;  /* the largest of the others, 0 if there are none */
};

typedef struct select_split select_splitter(const float *x, size_t n, uint32_t middle);

/* The plain one. Signed and 32 bits wide, as SSE2 compares signed integers only. */
static inline struct select_split select_divide(const float *x, size_t n, uint32_t middle)
{
    uint32_t count = 0;
    int32_t least = INT32_MAX;
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t key = (int32_t)select_key(x[i]);
        const bool reached = key >= (int32_t)middle;
        const int32_t upper = reached ? key : INT32_MAX;
        const int32_t lower = reached ? 0 : key;
        count += reached;
        least = upper < least ? upper : least;
        most = lower > most ? lower : most;
    }
    return (struct select_split){.count = count, .least = (uint32_t)least, .most = (uint32_t)most};
}

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

/* A key in low + 1..high, low < high: where the rank-th largest of `count` keys ends if they lie
 * evenly, or the middle. */
static inline uint32_t select_middle(
    uint32_t low, uint32_t high, size_t rank, size_t count, bool evenly)
{
    const uint64_t width = high - low;
    return high - (uint32_t)(evenly ? width * rank / (count + 1) : width / 2);
}

/* The cut for 0 < k <= n. Both ends are always keys that occur, so that few different keys, ties
 * above all, are found in few steps. The first steps take the keys to lie evenly, and every other
 * one after them. */
static inline struct select_cut select_bisect(
    const float *x, size_t n, size_t k, select_splitter *split)
{
    uint32_t high;
    uint32_t low;
    size_t count = n; /* that reach low, at least k */
    size_t above = 0; /* that exceed high, fewer than k */
    select_extremes(x, n, &high, &low);
    for (unsigned step = 1; count != k && low < high; step++) {
        const struct select_split at = split(x, n,
            select_middle(
                low, high, k - above, count - above, step <= EVEN_STEPS || step % 2 != 0));
        const bool reached = at.count >= k;
        low = reached ? at.least : low;
        count = reached ? at.count : count;
        high = reached ? high : at.most;
        above = reached ? above : at.count;
    }
    return (struct select_cut){.key = low, .ties = count == k ? SELECT_ALL : k - above};
}

/* The same where all keys are at least `least` and the cut is probably below `likely`. */
static inline struct select_cut select_bisect_near(const float *x, size_t n, size_t k,
    uint32_t least, uint32_t likely, select_counter *count_from, select_splitter *split)
{
    const size_t above = likely > least && n > k ? count_from(x, n, likely) : n;
    return above < k ? select_halve(x, n, k, least, likely - 1, n, above, count_from)
                     : select_bisect(x, n, k, split);
}

#endif
