/* Copies between the program's arrays and memory that it shares with the daemon. */
#ifndef ADTOPK_CLIENT_COPY_H
#define ADTOPK_CLIENT_COPY_H

#include <stddef.h>
#include <stdint.h>

/** memcpy(). Large arrays go past the caches, in which little of them would stay. */
void client_copy(void *to, const void *from, size_t bytes);

/** Writes `numel` elements: each entry's value at its index, and 0 elsewhere. Each index once, in
 * any order. Fastest where they ascend. */
void client_copy_list(
    float *to, size_t numel, const uint32_t *index, const float *value, size_t count);

#endif
