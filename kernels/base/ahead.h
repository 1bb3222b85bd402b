/*
 * Whether passes fetch memory ahead of its use.
 *
 * A pass reads the residual and the gradients in order. On some machines it is faster with
 * instructions that fetch what comes next. On others it is slower with them (kernels/README.md has
 * figures): there the processor fetches better undisturbed. No flag of the processor tells which.
 * So a pass over much memory measures: it reads one stretch of chunks one way and the next stretch
 * the other way, and the faster way gains a point. It does so often while few points are known, and
 * later for two stretches in about 64. The results of passes do not depend on it.
 *
 * Happy path: ahead_begin() before a range's first chunk, ahead_next() before each chunk whose
 * elements are added, ahead_end() behind the last one. What could go wrong: another process takes
 * the core away in the middle of a stretch, and the wrong way gains a point. The next pairs make up
 * for it. The first stretch of a range is never measured, because it finds nothing in the caches.
 */
#ifndef ADTOPK_KERNELS_AHEAD_H
#define ADTOPK_KERNELS_AHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Passes that are measured apart: over residuals in f32, in bf16, and over gradients alone, to sum
 * them or for their norm. */
enum ahead_kind { AHEAD_F32, AHEAD_BF16, AHEAD_DIRECT, AHEAD_NORM, AHEAD_KINDS };

/* What passes of one kind have learned so far. */
struct ahead_points {
    _Atomic int points;       /* above 0: fetching ahead is faster */
    _Atomic unsigned choices; /* how often a way was chosen, for a stretch or a measured pair */
};

/* What passes have learned of a machine. Zeros at first, but for the clock. Threads share it. */
struct ahead {
    uint64_t (*now_ns)(void);
    struct ahead_points of[AHEAD_KINDS];
};

/* One range of a pass. */
struct ahead_range {
    uint64_t (*now_ns)(void);
    struct ahead_points *learned; /* or NULL: nothing is fetched ahead, nothing is measured */
    uint64_t left;                /* chunks of the range that are still to come */
    unsigned in_stretch;          /* chunks of this stretch that are still to come */
    unsigned measured;            /* stretches of a pair: 1 this one; 2 the one before, too */
    uint64_t begun_ns;            /* this stretch, if it is measured */
    uint64_t first_ns;            /* how long the first one of the pair took */
    bool begun;                   /* the first stretch has begun */
    bool fetches;
};

/** Begins a range of so many chunks. ahead: NULL where nothing is to be learned. */
struct ahead_range ahead_begin(struct ahead *ahead, enum ahead_kind kind, uint64_t chunks);

/** The next chunk begins. Returns whether memory is to be fetched ahead in it. */
bool ahead_next(struct ahead_range *range);

/** The last chunk is over. */
void ahead_end(struct ahead_range *range);

#endif
