/*
 * The arithmetic of values in blocks (quantise.h, packed.h) that host and device share.
 */
#ifndef ADTOPK_KERNELS_BLOCKS_H
#define ADTOPK_KERNELS_BLOCKS_H

#include "kernels/base/convert.h"

#define BLOCKS_SPLIT 1.15 /* times the mean magnitude: where the upper group begins */

/* The largest step of `levels` levels, as bf16 bits. */
BASE_INLINE uint16_t blocks_step_max(uint32_t levels)
{
    return levels == 127 ? 0x7c01 : levels == 7 ? 0x7e12 : 0x7eaa;
}

/* The bits of the largest magnitude that so many levels can have. */
BASE_INLINE uint32_t blocks_largest(uint32_t levels)
{
    return convert_bits(convert_bf16(blocks_step_max(levels)) * (float)levels);
}

/* The bits of |v|, at most `largest`; NaN gives 0. They order like magnitudes, also when they are
 * compared as signed numbers, which plain SSE2 can do. */
BASE_INLINE int32_t blocks_magnitude(float v, int32_t largest)
{
    const int32_t bits = (int32_t)(convert_bits(v) & 0x7fffffffu);
    const int32_t capped = bits < largest ? bits : largest;
    return bits > 0x7f800000 ? 0 : capped;
}

/* The least step, as bf16 bits, of which so many reach a magnitude. */
BASE_INLINE uint16_t blocks_step(float largest, float levels)
{
    const float quotient = largest / levels;
    const uint16_t step = (uint16_t)((convert_bits(quotient) + 0xffffu) >> 16);
    /* The quotient may have been rounded down, to a bf16 that is too small. */
    return (uint16_t)(step + (convert_bf16(step) * levels < largest));
}

/* The mean of so many magnitudes as bf16 bits, but never 0 of a positive sum. */
BASE_INLINE uint16_t blocks_mean(double sum, uint32_t count)
{
    uint16_t bits;

    if (!(sum > 0)) {
        return 0;
    }
    bits = convert_to_bf16((float)(sum / count));
    return bits > 0 ? bits : 1;
}

/* The magnitude above which the upper group of a block begins. least: its smallest one, as bits. */
BASE_INLINE uint32_t blocks_threshold(double sum, uint32_t count, uint32_t least)
{
    const double most = (double)convert_float(0x7f7fffffu);
    const double threshold = BLOCKS_SPLIT * (sum / (double)count);

    return least == 0 ? 0 : convert_bits((float)(threshold < most ? threshold : most));
}

#endif
