/*
 * The floor of a hand-over: a word that goes to another process and back through shared memory.
 */
#ifndef PERF_PINGPONG_H
#define PERF_PINGPONG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "tests/bench/perf/series.h"

/** How both sides wait for the word. */
enum pingpong_wait {
    PINGPONG_SPIN, /* pauses, with a yield now and then */
    PINGPONG_FUTEX /* asleep */
};

/**
 * Appends `count` round trips in microseconds; the first side pauses before each. Ends early at
 * stop_requested(). Errors: MEMORY, SYSTEM.
 */
enum adtopk_status pingpong_run(uint64_t count, enum pingpong_wait wait, uint64_t pause_us,
    struct series *times, struct error *err);

#endif
