/*
 * The floor of a hand-over: a word that goes to another process and back through shared memory.
 */
#ifndef PERF_PINGPONG_H
#define PERF_PINGPONG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "tests/bench/perf/series.h"

/**
 * Appends `count` round trips in microseconds. Both sides spin, with a yield now and then; with
 * pause_us > 0 both sleep in a futex and the first one pauses before each trip. Ends early at
 * stop_requested(). Errors: MEMORY, SYSTEM.
 */
enum adtopk_status pingpong_run(
    uint64_t count, uint64_t pause_us, struct series *times, struct error *err);

#endif
