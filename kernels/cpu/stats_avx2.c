/* Statistics with AVX2, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/stats.h"

#define AVX2 __attribute__((target("avx2,popcnt")))

/* Elements of a register. */
enum { WIDTH = 8 };

static bool stats_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

/* Lanes of one sum in a register. */
enum { QUAD = 4 };

/* Four lanes of each sum. */
struct avx2_quad {
    __m256d sum;
    __m256d sum_abs;
    __m256d sum_squares;
    __m256d product;
    __m256i exponent;
};

AVX2 static inline struct avx2_quad avx2_load(const struct stats_lanes *lanes, unsigned first)
{
    return (struct avx2_quad){.sum = _mm256_loadu_pd(lanes->sum + first),
        .sum_abs = _mm256_loadu_pd(lanes->sum_abs + first),
        .sum_squares = _mm256_loadu_pd(lanes->sum_squares + first),
        .product = _mm256_loadu_pd(lanes->product + first),
        .exponent = _mm256_loadu_si256((const __m256i *)(const void *)(lanes->exponent + first))};
}

AVX2 static inline void avx2_store(
    struct stats_lanes *lanes, unsigned first, const struct avx2_quad *quad)
{
    _mm256_storeu_pd(lanes->sum + first, quad->sum);
    _mm256_storeu_pd(lanes->sum_abs + first, quad->sum_abs);
    _mm256_storeu_pd(lanes->sum_squares + first, quad->sum_squares);
    _mm256_storeu_pd(lanes->product + first, quad->product);
    _mm256_storeu_si256((__m256i *)(void *)(lanes->exponent + first), quad->exponent);
}

/* Adds four elements, +0 for one that does not count: its mantissa comes out as 1 and its exponent
 * as 0, so it changes nothing. */
AVX2 static inline __attribute__((always_inline)) void avx2_grow(
    struct avx2_quad *quad, __m128 x, unsigned need)
{
    const __m256d value = _mm256_cvtps_pd(x);
    const __m256d magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), value);
    if (need & SURVEY_SUM) {
        quad->sum = _mm256_add_pd(quad->sum, value);
    }
    if (need & SURVEY_MAGNITUDES) {
        quad->sum_abs = _mm256_add_pd(quad->sum_abs, magnitude);
    }
    if (need & SURVEY_SQUARES) {
        quad->sum_squares = _mm256_add_pd(quad->sum_squares, _mm256_mul_pd(value, value));
    }
    if (need & SURVEY_LOGARITHMS) {
        const __m256i fraction = _mm256_set1_epi64x(0xfffffffffffff);
        const __m256i bits = _mm256_castpd_si256(magnitude);
        const __m256i mantissa = _mm256_or_si256(
            _mm256_and_si256(bits, fraction), _mm256_set1_epi64x(0x3ff0000000000000));
        quad->product = _mm256_mul_pd(quad->product, _mm256_castsi256_pd(mantissa));
        quad->exponent = _mm256_add_epi64(quad->exponent, _mm256_srli_epi64(bits, 52));
    }
}

AVX2 static inline uint32_t avx2_max(__m256i x)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

AVX2 static inline uint32_t avx2_sum(__m256i x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}

/* Half of the lanes at a time, because there are no more registers. least: elements below it do not
 * count. need: a constant, and the function is compiled for each value. */
AVX2 static inline __attribute__((always_inline)) void avx2_sums(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, unsigned need)
{
    const __m128i magnitude = _mm_set1_epi32(0x7fffffff);
    const __m128i below = _mm_set1_epi32((int)least - 1);
    for (unsigned first = 0; first < STATS_LANES; first += 2 * QUAD) {
        struct avx2_quad quad[2] = {avx2_load(lanes, first), avx2_load(lanes, first + QUAD)};
        for (unsigned i = first; i < length; i += STATS_LANES) {
            for (unsigned q = 0; q < 2; q++) {
                const __m128 v = _mm_loadu_ps(x + i + q * QUAD);
                const __m128i key = _mm_and_si128(_mm_castps_si128(v), magnitude);
                const __m128 reached = _mm_castsi128_ps(_mm_cmpgt_epi32(key, below));
                avx2_grow(&quad[q], least > 1 ? _mm_and_ps(v, reached) : v, need);
            }
        }
        avx2_store(lanes, first, &quad[0]);
        avx2_store(lanes, first + QUAD, &quad[1]);
    }
}

/* How many reach the bound, the largest and the smallest of them. */
AVX2 static inline void avx2_keys(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    const __m256i bound = _mm256_set1_epi32((int)least);
    const __m256i all = _mm256_set1_epi32(-1);
    __m256i count = _mm256_setzero_si256(); /* counts down */
    __m256i most = _mm256_setzero_si256();
    __m256i margin = all; /* between the bound and the smallest key */
    for (unsigned i = 0; i < length; i += WIDTH) {
        const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        const __m256i key = _mm256_and_si256(bits, magnitude);
        count = _mm256_add_epi32(count, _mm256_cmpgt_epi32(key, below));
        most = _mm256_max_epu32(most, key);
        /* Keys below the bound wrap around and are large. */
        margin = _mm256_min_epu32(margin, _mm256_sub_epi32(key, bound));
    }
    const uint32_t reached = 0u - avx2_sum(count);
    if (reached > 0) {
        const uint32_t largest = avx2_max(most);
        const uint32_t smallest = least + ~avx2_max(_mm256_xor_si256(margin, all));
        lanes->count += reached;
        lanes->most = largest > lanes->most ? largest : lanes->most;
        lanes->least = smallest < lanes->least ? smallest : lanes->least;
    }
}

AVX2 static void avx2_add(struct stats_lanes *lanes, const float *x, unsigned length, unsigned need)
{
    switch (need) {
    case SURVEY_NO_STATS: return;
    case SURVEY_MAGNITUDES: avx2_sums(lanes, x, length, 1, SURVEY_MAGNITUDES); break;
    case SURVEY_SQUARES: avx2_sums(lanes, x, length, 1, SURVEY_SQUARES); break;
    case SURVEY_MEANS: avx2_sums(lanes, x, length, 1, SURVEY_MEANS); break;
    case SURVEY_MOMENTS: avx2_sums(lanes, x, length, 1, SURVEY_MOMENTS); break;
    case SURVEY_SPREAD: avx2_sums(lanes, x, length, 1, SURVEY_SPREAD); break;
    default: avx2_sums(lanes, x, length, 1, SURVEY_ALL);
    }
    if (need & (SURVEY_MAGNITUDES | SURVEY_ZEROS | SURVEY_LOGARITHMS)) {
        avx2_keys(lanes, x, length, 1);
    }
}

AVX2 static void avx2_tail(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool squares)
{
    if (squares) {
        avx2_sums(lanes, x, length, least, SURVEY_MAGNITUDES | SURVEY_SQUARES);
    } else {
        avx2_sums(lanes, x, length, least, SURVEY_MAGNITUDES);
    }
    avx2_keys(lanes, x, length, least);
}

AVX2 static unsigned avx2_count(const float *x, unsigned length, uint32_t least)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    const unsigned rest = length % WIDTH;
    __m256i count = _mm256_setzero_si256();
    float tail[WIDTH] = {0};
    memcpy(tail, x + length - rest, rest * sizeof *tail);
    for (unsigned i = 0; i < length - rest; i += WIDTH) {
        const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        count =
            _mm256_add_epi32(count, _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below));
    }
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(tail));
    count = _mm256_add_epi32(count, _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below));
    return 0u - avx2_sum(count);
}

extern const struct stats_ops stats_avx2;
const struct stats_ops stats_avx2 = {.name = "avx2",
    .supported = stats_avx2_supported,
    .add = avx2_add,
    .tail = avx2_tail,
    .count = avx2_count};
#endif
