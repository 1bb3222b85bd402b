/*
 * The sum of the gradients of a tensor, scaled (kernels/cpu/gradient.c).
 */
#ifndef ADTOPK_KERNELS_GRADIENT_CUH
#define ADTOPK_KERNELS_GRADIENT_CUH

#include "kernels/base/dtype.h"
#include "kernels/cuda/stream.cuh"

DEVICE float gradient_convert(uint32_t dtype, uint32_t bits)
{
    return dtype == DTYPE_F16 ? convert_f16((uint16_t)bits) : convert_bf16((uint16_t)bits);
}

/* Adds four neighbours of a gradient, or fewer at the tensor's end. */
DEVICE void gradient_add(
    const void *gradient, uint32_t dtype, uint64_t first, uint32_t count, float sum[FOUR])
{
    if (dtype == DTYPE_F32) {
        const float *g = (const float *)gradient + first;
        if (count == FOUR && (uintptr_t)g % sizeof(float4) == 0) {
            const float4 four = *(const float4 *)g;
            sum[0] += four.x;
            sum[1] += four.y;
            sum[2] += four.z;
            sum[3] += four.w;
            return;
        }
        for (uint32_t i = 0; i < count; i++) {
            sum[i] += g[i];
        }
        return;
    }
    const uint16_t *g = (const uint16_t *)gradient + first;
    if (count == FOUR && (uintptr_t)g % sizeof(uint2) == 0) {
        const uint2 four = *(const uint2 *)g;
        sum[0] += gradient_convert(dtype, four.x & 0xffffu);
        sum[1] += gradient_convert(dtype, four.x >> 16);
        sum[2] += gradient_convert(dtype, four.y & 0xffffu);
        sum[3] += gradient_convert(dtype, four.y >> 16);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        sum[i] += gradient_convert(dtype, g[i]);
    }
}

/* The factor of the gradients' sum; 0 or 1: none. */
DEVICE float gradient_factor(const struct add_tensor *tensor)
{
    return tensor->clip != NULL ? tensor->clip->factor : tensor->scale;
}

/* A sum that is not finite before it is scaled, is not afterwards. */
DEVICE float gradient_scale(float sum, float factor)
{
    return (batch_is_fault(sum) ? convert_float(0x7f800000u) : sum) * factor;
}

/* The sum for four neighbours, from number `at` of the chunk on; 0 behind the tensor's end. The sum
 * of none is -0, which changes no element. */
DEVICE void gradient_sum(const struct add_tensor *tensor, const struct slots *slots, uint32_t chunk,
    uint32_t at, float sum[FOUR])
{
    const uint32_t length = batch_length(tensor, chunk);
    const uint32_t rest = at < length ? length - at : 0;
    const uint32_t count = rest < FOUR ? rest : (uint32_t)FOUR;
    const float factor = gradient_factor(tensor);
    for (uint32_t i = 0; i < FOUR; i++) {
        sum[i] = i < count ? -0.0f : 0.0f;
    }
    for (uint32_t r = 0; r < tensor->gradients; r++) {
        const bool joins = tensor->joined != NULL;
        const void *const from = joins ? batch_slot(slots, tensor->joined[r][chunk])
                                       : (const float *)tensor->gradient[r];
        const uint64_t first = (joins ? 0 : (uint64_t)chunk * CHUNK) + at;
        if (from != NULL) {
            gradient_add(from, tensor->dtype, first, count, sum);
        }
    }
    for (uint32_t i = 0; i < FOUR && factor != 0 && factor != 1; i++) {
        if (i < count) { /* the factor may be infinite */
            sum[i] = gradient_scale(sum[i], factor);
        }
    }
}

#endif
