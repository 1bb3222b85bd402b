/*
 * Conversions between the types of elements (dtype.h): inline, so that loops over them vectorise.
 */
#ifndef ADTOPK_KERNELS_CONVERT_H
#define ADTOPK_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "kernels/base/inline.h"

BASE_INLINE uint32_t convert_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

BASE_INLINE float convert_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The function computes both sides. With a branch the compiler would not vectorise, because one
 * side might raise a floating-point exception. */
BASE_INLINE uint32_t convert_select(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)(condition != 0);
    return (yes & mask) | (no & ~mask);
}

/* A bfloat16 is the upper half of a binary32. */
BASE_INLINE float convert_bf16(uint16_t bits)
{
    return convert_float((uint32_t)bits << 16);
}

/* Round to nearest, ties to even; a NaN stays one, for truncation could clear its whole fraction.
 */
BASE_INLINE uint16_t convert_to_bf16(float value)
{
    const uint32_t bits = convert_bits(value);
    /* Adding just under half, plus the last kept bit, rounds ties to even. */
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* IEEE 754 binary16. Integer selects instead of branches; subnormals come from an integer, so the
 * result does not depend on the processor's treatment of subnormal operands. */
BASE_INLINE float convert_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    const uint32_t subnormal = convert_bits((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t normal = ((exponent + 127 - 15) << 23) | (fraction << 13);
    const uint32_t special = 0x7f800000u | (fraction << 13);
    const uint32_t magnitude =
        convert_select(exponent == 0, subnormal, convert_select(exponent == 0x1f, special, normal));
    return convert_float(sign | magnitude);
}

/* Rounds to nearest, ties to even. A magnitude above 65504, the largest finite binary16, becomes
 * 65504. A NaN stays a NaN. */
BASE_INLINE uint16_t convert_to_f16(float value)
{
    const uint32_t bits = convert_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t capped = magnitude < 0x477fe000u ? magnitude : 0x477fe000u; /* 65504 */
    const uint32_t rebased = capped - ((127u - 15u) << 23);
    const uint32_t normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    /* Neighbours from 0.5 on lie 2^-24 apart, as subnormals do: the sum rounds as they have to. */
    const uint32_t subnormal = convert_bits(convert_float(capped) + 0.5f) - 0x3f000000u;
    const uint32_t finite = convert_select(capped < 0x38800000u, subnormal, normal); /* 2^-14 */
    const uint32_t nan = 0x7e00u | ((bits >> 13) & 0x3ffu);
    return (
        uint16_t)(((bits >> 16) & 0x8000u) | convert_select(magnitude > 0x7f800000u, nan, finite));
}

/* The nearest bfloat16 that is finite, if the value is; infinity stays infinity. */
BASE_INLINE uint16_t convert_narrow_bf16(float value)
{
    const uint32_t bits = convert_bits(value), rounded = convert_to_bf16(value);
    const int finite = (bits & 0x7fffffffu) < 0x7f800000u;
    const int beyond = finite & ((rounded & 0x7fffu) > 0x7f7fu);
    const uint32_t largest = (bits >> 16 & 0x8000u) | 0x7f7fu;
    return (uint16_t)convert_select(beyond, largest, rounded);
}

/* The nearest binary16 that is finite, if the value is; infinity stays infinity. */
BASE_INLINE uint16_t convert_narrow_f16(float value)
{
    const uint32_t bits = convert_bits(value);
    const int infinite = (bits & 0x7fffffffu) == 0x7f800000u;
    const uint32_t infinity = (bits >> 16 & 0x8000u) | 0x7c00u;
    return (uint16_t)convert_select(infinite, infinity, convert_to_f16(value));
}

#endif
