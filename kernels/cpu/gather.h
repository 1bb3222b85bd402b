/*
 * The gradients of the local ranks, and the plain definition of their sum. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_GATHER_H
#define ADTOPK_KERNELS_GATHER_H

#include "kernels/base/convert.h"
#include "kernels/cpu/plain.h"

/* As accumulate() takes them. */
struct gradients {
    const void *const *each;
    unsigned count;
    enum dtype dtype;
    bool ahead; /* memory is fetched ahead of its use, theirs and that of the residual (ahead.h) */
};

static inline void gather_one(
    float *sum, const void *gradient, enum dtype dtype, uint64_t first, unsigned length)
{
    if (dtype == DTYPE_F32) {
        const float *g = (const float *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += g[i];
        }
    } else if (dtype == DTYPE_F16) {
        const uint16_t *g = (const uint16_t *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += convert_f16(g[i]);
        }
    } else if (dtype == DTYPE_BF16) {
        const uint16_t *g = (const uint16_t *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += convert_bf16(g[i]);
        }
    }
}

/* -0.0 + x is x for every x. So the sum of one gradient is that gradient, and adding the sum of
 * none changes no element. */
static inline void gather_all(
    const struct gradients *gradients, uint64_t first, unsigned length, float *sum)
{
    for (unsigned i = 0; i < length; i++) {
        sum[i] = -0.0f;
    }
    for (unsigned r = 0; r < gradients->count; r++) {
        if (gradients->each[r] != NULL) {
            gather_one(sum, gradients->each[r], gradients->dtype, first, length);
        }
    }
}

#endif
