/*
 * Writes large arrays that are not read soon past the caches. So the old contents need not be
 * fetched, and other data stays in the caches. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_STREAM_H
#define ADTOPK_KERNELS_STREAM_H

#include <stdint.h>

/* Elements of an array that is not worth a place in the caches. */
#define STREAM_LEAST (UINT64_C(1) << 19)

/** to[i] = x[i] * scale, for an array of `whole` elements of which this is a part. Small ones go
 * through the caches. */
void stream_scaled(float *to, const float *x, unsigned count, float scale, uint64_t whole);

/** The same, after which x is zeros. */
void stream_taken(float *to, float *x, unsigned count, float scale, uint64_t whole);

#endif
