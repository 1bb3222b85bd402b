/* Statistics with AVX-512, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/stats.h"

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,popcnt")))

/* Elements of a register; how far ahead of use a tail is fetched. */
enum { WIDTH = 16, AHEAD = 2048 };

static bool stats_avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("popcnt");
}

/* Registers of the lanes of one sum, elements of each. */
enum { PARTS = 2, PART = STATS_LANES / PARTS };

/* All lanes of the sums. */
struct avx512_lanes {
    __m512d sum[PARTS], sum_abs[PARTS], sum_squares[PARTS], product[PARTS];
    __m512i exponent[PARTS];
};

AVX512 static inline __attribute__((always_inline)) void avx512_load(
    struct avx512_lanes *to, const struct stats_lanes *lanes)
{
    for (unsigned p = 0; p < PARTS; p++) {
        to->sum[p] = _mm512_loadu_pd(lanes->sum + p * PART);
        to->sum_abs[p] = _mm512_loadu_pd(lanes->sum_abs + p * PART);
        to->sum_squares[p] = _mm512_loadu_pd(lanes->sum_squares + p * PART);
        to->product[p] = _mm512_loadu_pd(lanes->product + p * PART);
        to->exponent[p] = _mm512_loadu_si512(lanes->exponent + p * PART);
    }
}

AVX512 static inline __attribute__((always_inline)) void avx512_store(
    struct stats_lanes *lanes, const struct avx512_lanes *from)
{
    for (unsigned p = 0; p < PARTS; p++) {
        _mm512_storeu_pd(lanes->sum + p * PART, from->sum[p]);
        _mm512_storeu_pd(lanes->sum_abs + p * PART, from->sum_abs[p]);
        _mm512_storeu_pd(lanes->sum_squares + p * PART, from->sum_squares[p]);
        _mm512_storeu_pd(lanes->product + p * PART, from->product[p]);
        _mm512_storeu_si512(lanes->exponent + p * PART, from->exponent[p]);
    }
}

/* Elements that do not count come as +0, with a mantissa of 1 and an exponent of 0, and change
 * nothing. */
AVX512 static inline __attribute__((always_inline)) void avx512_grow(
    struct avx512_lanes *lanes, unsigned part, __m512d value, unsigned need)
{
    const __m512d magnitude = _mm512_abs_pd(value);
    if (need & SURVEY_SUM) {
        lanes->sum[part] = _mm512_add_pd(lanes->sum[part], value);
    }
    if (need & SURVEY_MAGNITUDES) {
        lanes->sum_abs[part] = _mm512_add_pd(lanes->sum_abs[part], magnitude);
    }
    if (need & SURVEY_SQUARES) {
        lanes->sum_squares[part] =
            _mm512_add_pd(lanes->sum_squares[part], _mm512_mul_pd(value, value));
    }
    if (need & SURVEY_LOGARITHMS) {
        const __m512i fraction = _mm512_set1_epi64(0xfffffffffffff);
        const __m512i one = _mm512_castpd_si512(_mm512_set1_pd(1.0));
        const __m512i bits = _mm512_castpd_si512(magnitude);
        /* 0xea: (bits & fraction) | one */
        const __m512i mantissa = _mm512_ternarylogic_epi64(bits, fraction, one, 0xea);
        lanes->product[part] = _mm512_mul_pd(lanes->product[part], _mm512_castsi512_pd(mantissa));
        lanes->exponent[part] =
            _mm512_add_epi64(lanes->exponent[part], _mm512_srli_epi64(bits, 52));
    }
}

/* need: a constant, for each of which this is compiled. */
AVX512 static inline __attribute__((always_inline)) void avx512_sums(
    struct stats_lanes *lanes, const float *x, unsigned length, unsigned need)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i most = _mm512_set1_epi32((int)lanes->most);
    __m512i count = _mm512_setzero_si512();
    struct avx512_lanes sums;
    avx512_load(&sums, lanes);
    for (unsigned i = 0; i < length; i += WIDTH) {
        const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
        if (need & SURVEY_MAGNITUDES) {
            most = _mm512_max_epu32(most, key);
        }
        if (need & SURVEY_ZEROS) {
            count = _mm512_add_epi32(count, _mm512_min_epu32(key, one));
        }
        for (unsigned p = 0; p < PARTS; p++) {
            avx512_grow(&sums, p, _mm512_cvtps_pd(_mm256_loadu_ps(x + i + p * PART)), need);
        }
    }
    avx512_store(lanes, &sums);
    lanes->most = _mm512_reduce_max_epu32(most);
    lanes->count += (unsigned)_mm512_reduce_add_epi32(count);
}

AVX512 static void avx512_add(
    struct stats_lanes *lanes, const float *x, unsigned length, unsigned need)
{
    switch (need) {
    case SURVEY_NO_STATS: break;
    case SURVEY_MAGNITUDES: avx512_sums(lanes, x, length, SURVEY_MAGNITUDES); break;
    case SURVEY_SQUARES: avx512_sums(lanes, x, length, SURVEY_SQUARES); break;
    case SURVEY_MEANS: avx512_sums(lanes, x, length, SURVEY_MEANS); break;
    case SURVEY_MOMENTS: avx512_sums(lanes, x, length, SURVEY_MOMENTS); break;
    case SURVEY_SPREAD: avx512_sums(lanes, x, length, SURVEY_SPREAD); break;
    default: avx512_sums(lanes, x, length, SURVEY_ALL);
    }
}

/* need: a constant, as before. */
AVX512 static inline __attribute__((always_inline)) void avx512_tail_sums(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, unsigned need)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i bound = _mm512_set1_epi32((int)least);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i smallest = _mm512_set1_epi32((int)lanes->least);
    __m512i count = _mm512_setzero_si512();
    struct avx512_lanes sums;
    avx512_load(&sums, lanes);
    for (unsigned i = 0; i < length; i += WIDTH) {
        const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
        const __mmask16 reached = _mm512_cmpge_epu32_mask(key, bound);
        __builtin_prefetch(x + i + AHEAD);
        smallest = _mm512_mask_min_epu32(smallest, reached, smallest, key);
        count = _mm512_mask_add_epi32(count, reached, count, one);
        for (unsigned p = 0; p < PARTS; p++) {
            const __m256 part = _mm256_loadu_ps(x + i + p * PART);
            avx512_grow(
                &sums, p, _mm512_maskz_cvtps_pd((__mmask8)(reached >> p * PART), part), need);
        }
    }
    avx512_store(lanes, &sums);
    lanes->least = _mm512_reduce_min_epu32(smallest);
    lanes->count += (unsigned)_mm512_reduce_add_epi32(count);
}

AVX512 static void avx512_tail(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool squares)
{
    if (squares) {
        avx512_tail_sums(lanes, x, length, least, SURVEY_MAGNITUDES | SURVEY_SQUARES);
    } else {
        avx512_tail_sums(lanes, x, length, least, SURVEY_MAGNITUDES);
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
const struct stats_ops stats_avx512 = {.name = "avx512",
    .supported = stats_avx512_supported,
    .add = avx512_add,
    .tail = avx512_tail,
    .count = avx512_count};
#endif
