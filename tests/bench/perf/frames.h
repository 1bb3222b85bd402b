/*
 * The encodings that `encode` and `decode` measure: all that the payload has.
 */
#ifndef PERF_FRAMES_H
#define PERF_FRAMES_H

#include "proto/payload.h"

#define FRAMES_NAMES_MAX 16

_Static_assert(PAYLOAD_INDEX_COUNT < FRAMES_NAMES_MAX && PAYLOAD_VALUE_COUNT < FRAMES_NAMES_MAX,
    "room for all names and the end");

/** Their names in the order of the enums, as a policy writes them; each list ends with NULL. */
void frames_list(const char *indices[FRAMES_NAMES_MAX], const char *values[FRAMES_NAMES_MAX]);

#endif
