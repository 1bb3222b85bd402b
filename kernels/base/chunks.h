/*
 * Chunks: the parts of a residual that a pass completes one by one.
 */
#ifndef ADTOPK_KERNELS_CHUNKS_H
#define ADTOPK_KERNELS_CHUNKS_H

#include <stdint.h>

#include "kernels/base/inline.h"

/* Elements of a chunk. */
enum { CHUNK = 4096 };

/** Chunks of a residual of n elements. */
BASE_INLINE uint64_t chunk_count(uint64_t n)
{
    return n / CHUNK + (n % CHUNK != 0);
}

#endif
