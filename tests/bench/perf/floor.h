/*
 * The floor of everything that compensates: the loop r[i] += g[i], in several ways. It reads the
 * gradient, reads the residual and writes the residual, and no kernel that does more can be faster.
 */
#ifndef PERF_FLOOR_H
#define PERF_FLOOR_H

#include <stdint.h>

#include "kernels/cpu/kernels.h"
#include "tests/bench/perf/perf.h"

#define FLOOR_LOOPS 4

struct floor_loop {
    const char *name; /* "r+=g ..." */
    /* r[i] += g[i] for n elements of g's type */
    void (*add)(float *r, const void *g, enum dtype dtype, uint64_t n);
};

/* plain, avx2, prefetch, prefetchw. Without AVX2 the last three are plain loops that prefetch or
 * not; they then differ in that only. */
extern const struct floor_loop floor_loops[FLOOR_LOOPS];

/* The same work done by every loop, in turns. Zero-initialised it is empty. */
struct floor_race {
    struct series time[FLOOR_LOOPS]; /* microseconds */
};

/** One more sample of every loop. Before each, r is made equal to `start` (NULL: r is left as it
 * is), outside of the time. False without memory. */
bool floor_sample(struct floor_race *race, float *r, const void *g, enum dtype dtype, uint64_t n,
    const float *start);

/** The loop of the smallest median; 0 while there are no samples or without memory. */
unsigned floor_fastest(const struct floor_race *race);

/** Adds a row for the fastest loop itself, like `row` in everything else, and makes it row's floor.
 */
enum adtopk_status floor_report(
    struct perf *perf, struct row *row, const struct floor_race *race, struct error *err);

void floor_free(struct floor_race *race);

#endif
