/*
 * A job whose ranks only push their tensors and wait, step after step, and note the times.
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
    bool spread;        /* rank r on node r, else all on node 0 */
    char job[32];       /* its name: one job each, or the daemon would know it */
    double density;     /* 1: the dense sparsifier */
    const char *values; /* their type on the way between nodes; NULL: the policy's default */
    uint64_t count;     /* elements of a tensor, f32; training_shape() rounds it */
    unsigned tensors;
    unsigned ranks;
    uint64_t warmup; /* steps that are not noted */
    uint64_t steps;
    uint64_t pause_us; /* before every push */
};

/* When a rank began to push, and when adtopk_step_wait() returned; 0: not yet. */
struct stamp {
    uint64_t pushed, done;
};

/* Shared by the ranks: stamp[step * ranks + rank]. */
struct diary {
    char problem[ERROR_TEXT_SIZE]; /* of the rank that failed */
    atomic_flag told;
    atomic_uint_least64_t cpu_ns; /* of the noted steps: all ranks, and all daemons that have one */
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

/** The time on cores that a noted step took of all ranks and daemons together, in microseconds. */
double training_cpu_us(const struct training *training, const struct diary *diary);

void training_free(const struct training *training, struct diary *diary);

/**
 * Appends a sample in microseconds for every step that all ranks finished. Time starts with the
 * last rank's push, because the exchange cannot end before it. It ends with each rank's return (a
 * sample each), or with the last one's (`whole`). Returns false without memory.
 */
bool training_times(
    const struct training *training, const struct diary *diary, bool whole, struct series *times);

#endif
