/*
 * Writing large arrays that nobody reads soon: past the caches, so that the old contents need not
 * be fetched and nothing else is driven out. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_STREAM_H
#define ADTOPK_KERNELS_STREAM_H

#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Elements of an array that is not worth a place in the caches. */
#define STREAM_LARGE (UINT64_C(1) << 19)

/* to[i] = x[i] * scale, for an array of `whole` elements of which this is a part. */
static inline void stream_scaled(
    float *to, const float *x, unsigned count, float scale, uint64_t whole)
{
    unsigned i = 0;

#if defined(__SSE2__)
    if (whole >= STREAM_LARGE && (uintptr_t)to % sizeof(__m128) == 0) {
        for (; i + 4 <= count; i += 4) {
            _mm_stream_ps(to + i, _mm_mul_ps(_mm_loadu_ps(x + i), _mm_set1_ps(scale)));
        }
        _mm_sfence();
    }
#endif
    (void)whole;
    for (; i < count; i++) {
        to[i] = x[i] * scale;
    }
}

#endif
