/*
 * System calls that a signal ended are made again. Where the caller waits, it decides by itself.
 */
#ifndef ADTOPK_RETRY_H
#define ADTOPK_RETRY_H

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

/** result = call, again as long as the call fails with EINTR. */
#define RETRY(result, call)                                                                        \
    do {                                                                                           \
        (result) = (call);                                                                         \
    } while ((result) < 0 && errno == EINTR)

/** Makes an event descriptor readable, for a thread that sleeps on it. It fails only if that is
 * readable already. */
static inline void retry_wake(int descriptor)
{
    const uint64_t one = 1;
    ssize_t written;

    RETRY(written, write(descriptor, &one, sizeof(one)));
    (void)written;
}

#endif
