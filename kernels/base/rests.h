/*
 * What values come to when they are sent or shown in 16 bits, and what is left of them: the parts
 * of kernels/cpu/rest.h and kernels/cpu/narrow.h that device code calls too.
 */
#ifndef ADTOPK_KERNELS_RESTS_H
#define ADTOPK_KERNELS_RESTS_H

#include "kernels/base/convert.h"
#include "kernels/base/dtype.h"
#include "kernels/base/quantise.h"

#define RESTS_MAGNITUDE 0x7fffffffu /* all bits but the sign */
#define RESTS_INFINITY 0x7f800000u

/* What a value comes to on the wire; one that is not finite stays as it is. */
BASE_INLINE float rests_sent(enum quantisation type, float x)
{
    const float f16 = convert_f16(convert_to_f16(x));
    const int finite = (convert_bits(x) & RESTS_MAGNITUDE) < RESTS_INFINITY;
    switch (type) {
    case QUANTISE_BF16: return convert_bf16(convert_to_bf16(x));
    case QUANTISE_F16:
        return convert_float(convert_select(finite, convert_bits(f16), convert_bits(x)));
    default: return x;
    }
}

/* A sum less its rounded value; 0 where one of them is not finite. low: the lower half of the sum's
 * bits. A small loss scale may have made 0 of the rounded value. Then the bits below it are those
 * of a NaN. */
BASE_INLINE float rests_of_sum(float rounded, int16_t low)
{
    const uint32_t bits = convert_bits(rounded), sum = (uint32_t)((int64_t)bits + low);
    const float cut = convert_float(sum) - rounded;
    const int finite =
        ((bits & RESTS_MAGNITUDE) < RESTS_INFINITY) & ((sum & RESTS_MAGNITUDE) < RESTS_INFINITY);
    return convert_float(convert_select(finite, convert_bits(cut), 0));
}

/* A sum as it was rounded. What two multiplications in f32 made of it is nearest to it. */
BASE_INLINE float rests_rounded(float rounded, float shrink)
{
    const float sum = rounded * shrink;
    return shrink == 1 ? sum : convert_bf16(convert_to_bf16(sum));
}

/* A value less what it was rounded to; 0 if it is not finite. */
BASE_INLINE float rests_less(float value, float rounded)
{
    const int finite = (convert_bits(value) & RESTS_MAGNITUDE) < RESTS_INFINITY;
    return convert_float(convert_select(finite, convert_bits(value - rounded), 0));
}

/* The rest of a value that ranks see in their 16-bit type. */
BASE_INLINE float rests_of_shown(float value, enum dtype dtype)
{
    return rests_less(value, dtype == DTYPE_BF16 ? convert_bf16(convert_narrow_bf16(value))
                                                 : convert_f16(convert_narrow_f16(value)));
}

#endif
