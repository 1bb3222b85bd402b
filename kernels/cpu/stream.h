/*
 * Writing large arrays that nobody reads soon: past the caches, so that the old contents need not
 * be fetched and nothing else is driven out. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_STREAM_H
#define ADTOPK_KERNELS_STREAM_H

#include <stdint.h>

/** to[i] = x[i] * scale, for an array of `whole` elements of which this is a part. Small ones go
 * through the caches. */
void stream_scaled(float *to, const float *x, unsigned count, float scale, uint64_t whole);

/** The same, after which x is zeros. */
void stream_taken(float *to, float *x, unsigned count, float scale, uint64_t whole);

#endif
