/*
 * The time, the same for all processes of the machine.
 */
#ifndef PERF_CLOCK_H
#define PERF_CLOCK_H

#include <stdint.h>
#include <time.h>

/** Nanoseconds of CLOCK_MONOTONIC, which every Linux has. */
static inline uint64_t clock_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/** Microseconds from `from` to `to`, both of clock_ns(). */
static inline double clock_us_between(uint64_t from, uint64_t to)
{
    return (double)(int64_t)(to - from) * 1e-3;
}

#endif
