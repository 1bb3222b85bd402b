#include "kernels/cpu/rest.h"

#include "kernels/base/rests.h"

#define HALF 0x8000u             /* of what a bf16 cannot say, in the bits of a binary32 */
#define LARGEST_BITS 0x7f7f7fffu /* of a magnitude that becomes a finite bf16 */

void rest_round(float *sum, int16_t *low, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = convert_bits(sum[i]);
        const int fits = (bits & RESTS_MAGNITUDE) <= LARGEST_BITS;
        const uint32_t lower = convert_select(fits, bits & 0xffffu, 0);
        const uint32_t nearest = (bits + HALF) & 0xffff0000u;
        const uint32_t other = (uint32_t)convert_to_bf16(sum[i]) << 16;
        low[i] = (int16_t)(uint16_t)lower;
        sum[i] = convert_float(convert_select(fits, nearest, other));
    }
}

/* a + b - rounded, without a rounding error: the larger operand goes first. Infinity less the
 * largest f16 is not finite either. */
static inline float error_of(float a, float b, float rounded)
{
    const uint32_t a_bits = convert_bits(a), b_bits = convert_bits(b);
    const int ordered = (a_bits & RESTS_MAGNITUDE) >= (b_bits & RESTS_MAGNITUDE);
    const float large = convert_float(convert_select(ordered, a_bits, b_bits));
    const float small = convert_float(convert_select(ordered, b_bits, a_bits));
    const float error = small - (rounded - large);
    const int rounds = (convert_bits(rounded) & RESTS_MAGNITUDE) < RESTS_INFINITY;
    const int finite = (convert_bits(error) & RESTS_MAGNITUDE) < RESTS_INFINITY;
    return convert_float(convert_select(rounds & finite, convert_bits(error), 0));
}

static void sum_bf16(float *sum, const float *x, int16_t *low, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float rounded = convert_bf16(convert_to_bf16(sum[i] + x[i]));
        low[i] = (int16_t)(uint16_t)(convert_bits(error_of(sum[i], x[i], rounded)) >> 16);
        sum[i] = rounded;
    }
}

static void sum_f16(float *sum, const float *x, int16_t *low, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float rounded = convert_f16(convert_to_f16(sum[i] + x[i]));
        low[i] = (int16_t)convert_to_f16(error_of(sum[i], x[i], rounded));
        sum[i] = rounded;
    }
}

void rest_sum(float *sum, const float *x, int16_t *low, size_t n, enum quantisation type)
{
    (type == QUANTISE_BF16 ? sum_bf16 : sum_f16)(sum, x, low, n);
}

void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x)
{
    const uint64_t begin = first > rest->first ? first : rest->first;
    const uint64_t last = rest->first + rest->count;
    const uint64_t end = first + n < last ? first + n : last;
    if (rest->exact != NULL && begin < end) {
        narrow_add_rests(x + (begin - first), rest->exact + (begin - rest->first), end - begin,
            rest->narrow, rest->shrink, rest->unscale);
        return;
    }
    for (uint64_t i = begin; rest->rounded != NULL && i < end; i++) {
        x[i - first] += rests_of_sum(rests_rounded(rest->rounded[i - rest->first], rest->shrink),
                            rest->low[i - rest->first]) *
                        rest->unscale;
    }
    for (uint64_t i = begin; rest->rounded == NULL && i < end; i++) {
        const uint16_t bits = (uint16_t)rest->low[i - rest->first];
        x[i - first] += rest->type == QUANTISE_BF16 ? convert_bf16(bits) : convert_f16(bits);
    }
}
