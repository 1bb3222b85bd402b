#include "kernels/cpu/rest.h"

#define HALF 0x8000u             /* of what a bf16 cannot say, in the bits of a binary32 */
#define MAGNITUDE 0x7fffffffu    /* all bits but the sign */
#define LARGEST_BITS 0x7f7f7fffu /* of a magnitude that becomes a finite bf16 */
#define INFINITY_BITS 0x7f800000u

void rest_round(float *sum, int16_t *low, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = convert_bits(sum[i]);
        const int fits = (bits & MAGNITUDE) <= LARGEST_BITS;
        const uint32_t lower = convert_select(fits, bits & 0xffffu, 0);
        const uint32_t nearest = (bits + HALF) & 0xffff0000u;
        const uint32_t other = (uint32_t)convert_to_bf16(sum[i]) << 16;
        low[i] = (int16_t)(uint16_t)lower;
        sum[i] = convert_float(convert_select(fits, nearest, other));
    }
}

/* The sum itself less what it became; 0 where that is not finite. */
static inline float rest_of(float rounded, int16_t low)
{
    const uint32_t bits = convert_bits(rounded);
    const float cut = convert_float((uint32_t)((int64_t)bits + low)) - rounded;
    return convert_float(convert_select((bits & MAGNITUDE) < INFINITY_BITS, convert_bits(cut), 0));
}

void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x)
{
    const uint64_t begin = first > rest->first ? first : rest->first;
    const uint64_t last = rest->first + rest->count;
    const uint64_t end = first + n < last ? first + n : last;
    for (uint64_t i = begin; i < end; i++) {
        x[i - first] +=
            rest_of(rest->rounded[i - rest->first], rest->low[i - rest->first]) * rest->unscale;
    }
}
