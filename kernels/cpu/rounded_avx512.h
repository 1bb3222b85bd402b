/*
 * A step of a pass over a chunk in bf16, with AVX-512. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_ROUNDED_AVX512_H
#define ADTOPK_KERNELS_ROUNDED_AVX512_H

#include "kernels/cpu/chunk.h"

/** Like chunk_ops.add(), for a chunk with a rounding whose bound has no pattern. Only where that
 * implementation is supported. */
void rounded_avx512_add(struct chunk *chunk, unsigned words);

#endif
