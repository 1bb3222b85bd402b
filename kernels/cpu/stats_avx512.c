/* Statistics with AVX-512, for x86-64 processors that have it: all lanes of a sum in one register.
 */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/stats.h"

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,popcnt")))

/* Elements of a register. */
enum { WIDTH = 16 };

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("popcnt");
}

AVX512 static inline __m256i avx512_key(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* Elements that do not reach the bound come as +0, whose mantissa comes out as 1 and its exponent
 * as 0: they change nothing. */
AVX512 static inline __attribute__((always_inline)) void avx512_sums(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool logarithms)
{
    const __m256i bound = _mm256_set1_epi32((int)least);
    const __m512i fraction = _mm512_set1_epi64(0xfffffffffffff);
    const __m512i one = _mm512_castpd_si512(_mm512_set1_pd(1.0));
    __m512d sum = _mm512_loadu_pd(lanes->sum);
    __m512d sum_abs = _mm512_loadu_pd(lanes->sum_abs);
    __m512d sum_squares = _mm512_loadu_pd(lanes->sum_squares);
    __m512d product = _mm512_loadu_pd(lanes->product);
    __m512i exponent = _mm512_loadu_si512(lanes->exponent);
    __m256i most = _mm256_set1_epi32((int)lanes->most);
    __m256i smallest = _mm256_set1_epi32((int)lanes->least);
    for (unsigned i = 0; i < length; i += STATS_LANES) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256i key = avx512_key(v);
        const __mmask8 reached = _mm256_cmpge_epu32_mask(key, bound);
        const __m512d value = _mm512_maskz_cvtps_pd(reached, v);
        const __m512d magnitude = _mm512_abs_pd(value);
        sum = _mm512_add_pd(sum, value);
        sum_abs = _mm512_add_pd(sum_abs, magnitude);
        sum_squares = _mm512_add_pd(sum_squares, _mm512_mul_pd(value, value));
        if (logarithms) {
            const __m512i bits = _mm512_castpd_si512(magnitude);
            /* 0xea: (bits & fraction) | one */
            const __m512i mantissa = _mm512_ternarylogic_epi64(bits, fraction, one, 0xea);
            product = _mm512_mul_pd(product, _mm512_castsi512_pd(mantissa));
            exponent = _mm512_add_epi64(exponent, _mm512_srli_epi64(bits, 52));
        }
        most = _mm256_mask_max_epu32(most, reached, most, key);
        smallest = _mm256_mask_min_epu32(smallest, reached, smallest, key);
        lanes->count += (unsigned)_mm_popcnt_u32(reached);
    }
    _mm512_storeu_pd(lanes->sum, sum);
    _mm512_storeu_pd(lanes->sum_abs, sum_abs);
    _mm512_storeu_pd(lanes->sum_squares, sum_squares);
    _mm512_storeu_pd(lanes->product, product);
    _mm512_storeu_si512(lanes->exponent, exponent);
    lanes->most = _mm512_reduce_max_epu32(_mm512_broadcast_i64x4(most));
    lanes->least = _mm512_reduce_min_epu32(_mm512_broadcast_i64x4(smallest));
}

AVX512 static void avx512_add(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool logarithms)
{
    if (logarithms) {
        avx512_sums(lanes, x, length, least, true);
    } else {
        avx512_sums(lanes, x, length, least, false);
    }
}

AVX512 static unsigned avx512_count(const float *x, unsigned length, uint32_t least)
{
    const __m512i bound = _mm512_set1_epi32((int)least);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i one = _mm512_set1_epi32(1);
    const unsigned rest = length % WIDTH;
    const __mmask16 last = (__mmask16)((1u << rest) - 1);
    __m512i count = _mm512_setzero_si512();
    for (unsigned i = 0; i < length - rest; i += WIDTH) {
        const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
        count = _mm512_mask_add_epi32(count, _mm512_cmpge_epu32_mask(key, bound), count, one);
    }
    const __m512i bits = _mm512_maskz_loadu_epi32(last, x + length - rest);
    const __m512i key = _mm512_and_si512(bits, magnitude); /* 0 where there is no element */
    count = _mm512_mask_add_epi32(count, _mm512_cmpge_epu32_mask(key, bound), count, one);
    return (unsigned)_mm512_reduce_add_epi32(count);
}

extern const struct stats_ops stats_avx512;
const struct stats_ops stats_avx512 = {
    .name = "avx512", .supported = avx512_supported, .add = avx512_add, .count = avx512_count};
#endif
