#include "kernels/cpu/rest.h"

#include "kernels/base/rests.h"
#include "kernels/base/wide.h"

#define HALF 0x8000u             /* of what a bf16 cannot say, in the bits of a binary32 */
#define LARGEST_BITS 0x7f7f7fffu /* of a magnitude that becomes a finite bf16 */

WIDE_BODY void round_body(float *sum, int16_t *low, size_t n)
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

WIDE static void round_wide(float *sum, int16_t *low, size_t n)
{
    round_body(sum, low, n);
}

static void round_plain(float *sum, int16_t *low, size_t n)
{
    round_body(sum, low, n);
}

void rest_round(float *sum, int16_t *low, size_t n)
{
    (wide_is_there() ? round_wide : round_plain)(sum, low, n);
}

/* a + b - rounded, without a rounding error: the larger operand goes first. Infinity less the
 * largest f16 is not finite either. */
WIDE_BODY float error_of(float a, float b, float rounded)
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

/* There is one loop per type, so that they vectorise. */
WIDE_BODY void sum_body(float *sum, const float *x, int16_t *low, size_t n, bool bf16)
{
    for (size_t i = 0; bf16 && i < n; i++) {
        const float rounded = convert_bf16(convert_to_bf16(sum[i] + x[i]));
        low[i] = (int16_t)(uint16_t)(convert_bits(error_of(sum[i], x[i], rounded)) >> 16);
        sum[i] = rounded;
    }
    for (size_t i = 0; !bf16 && i < n; i++) {
        const float rounded = convert_f16(convert_to_f16(sum[i] + x[i]));
        low[i] = (int16_t)convert_to_f16(error_of(sum[i], x[i], rounded));
        sum[i] = rounded;
    }
}

WIDE static void sum_wide(float *sum, const float *x, int16_t *low, size_t n, bool bf16)
{
    sum_body(sum, x, low, n, bf16);
}

static void sum_plain(float *sum, const float *x, int16_t *low, size_t n, bool bf16)
{
    sum_body(sum, x, low, n, bf16);
}

void rest_sum(float *sum, const float *x, int16_t *low, size_t n, enum quantisation type)
{
    (wide_is_there() ? sum_wide : sum_plain)(sum, x, low, n, type == QUANTISE_BF16);
}

/* Adds the rests of n sums, of which the first is the i-th that `rest` has, to x. */
WIDE_BODY void add_body(const struct rest *rest, uint64_t i, uint64_t n, float *x)
{
    const int16_t *low = rest->low + i;

    for (uint64_t j = 0; rest->rounded != NULL && j < n; j++) {
        const float rounded = rests_rounded(rest->rounded[i + j], rest->shrink);
        x[j] += rests_of_sum(rounded, low[j]) * rest->unscale;
    }
    for (uint64_t j = 0; rest->rounded == NULL && j < n; j++) {
        const uint16_t bits = (uint16_t)low[j];
        x[j] += rest->type == QUANTISE_BF16 ? convert_bf16(bits) : convert_f16(bits);
    }
}

WIDE static void add_wide(const struct rest *rest, uint64_t i, uint64_t n, float *x)
{
    add_body(rest, i, n, x);
}

static void add_plain(const struct rest *rest, uint64_t i, uint64_t n, float *x)
{
    add_body(rest, i, n, x);
}

void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x)
{
    const uint64_t begin = first > rest->first ? first : rest->first;
    const uint64_t last = rest->first + rest->count;
    const uint64_t end = first + n < last ? first + n : last;
    if (begin >= end) {
        return;
    }
    if (rest->exact != NULL) {
        narrow_add_rests(x + (begin - first), rest->exact + (begin - rest->first), end - begin,
            rest->narrow, rest->shrink, rest->unscale);
        return;
    }
    (wide_is_there() ? add_wide : add_plain)(
        rest, begin - rest->first, end - begin, x + (begin - first));
}
