/* The clock of the transport: how old tokens and requests are. */
#ifndef ADTOPK_TRANSPORT_CLOCK_H
#define ADTOPK_TRANSPORT_CLOCK_H

#include <stdint.h>
#include <time.h>

/** Microseconds since some fixed moment. */
static inline uint64_t transport_now_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

#endif
