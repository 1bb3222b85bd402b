/*
 * The floor of everything that compensates: the loop r[i] += g[i], in several ways. It reads the
 * gradients, reads the residual and writes the residual, and no kernel that does more can be
 * faster. Several gradients are summed first, as the pass does: r[i] += g0[i] + g1[i] + ... A
 * residual in bf16 is rounded to the nearest again: the pass does better, the bytes are the same.
 */
#ifndef PERF_FLOOR_H
#define PERF_FLOOR_H

#include <stdint.h>

#include "kernels/cpu/plain.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/team.h"

#define FLOOR_LOOPS 4

/* What a loop works on. */
struct floor_work {
    float *r;
    uint16_t *half;       /* not NULL: the residual is here, in bf16 */
    const void *const *g; /* `count` gradients, at least 1, of `n` elements of `dtype` */
    unsigned count;
    enum dtype dtype;
    uint64_t n;
};

struct floor_loop {
    const char *name; /* "r+=g ..." */
    void (*add)(const struct floor_work *work, uint64_t first, uint64_t end);
};

/* plain, avx2, prefetch, prefetchw. Without AVX2 the last three are plain loops that prefetch or
 * not; they then differ in that only. */
extern const struct floor_loop floor_loops[FLOOR_LOOPS];

/* The same work done by every loop, in turns. Zero-initialised it is empty. */
struct floor_race {
    struct series time[FLOOR_LOOPS]; /* microseconds */
};

/** The microseconds of a loop whose elements are split into so many parts for the team. */
double floor_time(const struct floor_work *work, unsigned loop, struct team *team, unsigned parts);

/** One more sample of every loop on this thread. False without memory. */
bool floor_sample(struct floor_race *race, const struct floor_work *work);

/** The loop of the smallest median; 0 while there are no samples or without memory. */
unsigned floor_fastest(const struct floor_race *race);

/** Adds a row for the fastest loop itself, like `row` in everything else, and makes it row's floor.
 */
enum adtopk_status floor_report(
    struct perf *perf, struct row *row, const struct floor_race *race, struct error *err);

void floor_free(struct floor_race *race);

#endif
