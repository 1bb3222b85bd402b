/*
 * A job whose ranks only push one tensor and wait, step after step, and note the times.
 */
#ifndef PERF_TRAINING_H
#define PERF_TRAINING_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/bench/perf/nodes.h"
#include "tests/bench/perf/process.h"
#include "tests/bench/perf/series.h"

struct training {
    const struct nodes *nodes;
    bool spread;    /* rank r on node r, else all on node 0 */
    char job[32];   /* its name: one job each, or the daemon would know it */
    double density; /* 1: the dense sparsifier */
    uint64_t count; /* elements, f32; training_shape() rounds it */
    unsigned ranks;
    uint64_t warmup; /* steps that are not noted */
    uint64_t steps;
    uint64_t pause_us; /* before every push */
};

/* When a rank had called adtopk_push_tensor() and when adtopk_step_wait() returned; 0: not yet. */
struct stamp {
    uint64_t pushed, done;
};

/* Shared by the ranks: stamp[step * ranks + rank]. */
struct diary {
    char problem[ERROR_TEXT_SIZE]; /* of the rank that failed */
    atomic_flag told;
    struct stamp stamp[];
};

/** Makes count the product of two sides, of which it returns the second: ADTopk wants matrices. */
uint64_t training_shape(uint64_t *count);

/**
 * Runs the job to its end, or to stop_requested(). Free the diary with training_free(). Errors:
 * those that a rank reported, MEMORY, SYSTEM.
 */
enum adtopk_status training_run(
    const struct training *training, struct diary **diary, struct error *err);

void training_free(const struct training *training, struct diary *diary);

/**
 * Appends a sample in microseconds for every step that all ranks finished. Time starts with the
 * last rank's push, because the exchange cannot end before it. It ends with each rank's return (a
 * sample each), or with the last one's (`whole`). Returns false without memory.
 */
bool training_times(
    const struct training *training, const struct diary *diary, bool whole, struct series *times);

#endif
