/*
 * Inline bodies of the conversions of kernels.h, so that loops over them vectorise. Internal to
 * kernels/cpu: others call the functions of kernels.h.
 */
#ifndef ADTOPK_KERNELS_CONVERT_H
#define ADTOPK_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t convert_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float convert_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A bfloat16 is the upper half of a binary32. */
static inline float convert_bf16(uint16_t bits)
{
    return convert_float((uint32_t)bits << 16);
}

/* IEEE 754 binary16. Integer selects instead of branches; subnormals come from an integer, so the
 * result does not depend on the processor's treatment of subnormal operands. */
static inline float convert_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    const uint32_t subnormal = convert_bits((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t normal = ((exponent + 127 - 15) << 23) | (fraction << 13);
    const uint32_t special = 0x7f800000u | (fraction << 13);
    const uint32_t magnitude = exponent == 0 ? subnormal : exponent == 0x1f ? special : normal;
    return convert_float(sign | magnitude);
}

#endif
