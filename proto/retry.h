/*
 * System calls that a signal ended are made again. Where the caller waits, it decides by itself.
 */
#ifndef ADTOPK_RETRY_H
#define ADTOPK_RETRY_H

#include <errno.h>

/** result = call, again as long as the call fails with EINTR. */
#define RETRY(result, call)                                                                        \
    do {                                                                                           \
        (result) = (call);                                                                         \
    } while ((result) < 0 && errno == EINTR)

#endif
