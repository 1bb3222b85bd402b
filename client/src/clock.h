/* The monotonic clock, in nanoseconds. */
#ifndef ADTOPK_CLIENT_CLOCK_H
#define ADTOPK_CLIENT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t client_now_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
