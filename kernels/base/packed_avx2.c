/* The inner loops of packed.h with AVX2, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/base/packed_plain.h"

#define AVX2 __attribute__((target("avx2")))

enum { WIDTH = 8 };

static bool packed_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2");
}

AVX2 static inline __m256i avx2_magnitude(__m256i bits)
{
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(PACKED_INFINITY));
    const __m256i capped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(PACKED_MOST));

    return _mm256_andnot_si256(nan, capped);
}

AVX2 static inline __m256i avx2_load(const float *value)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)value);
}

/* Two registers with the lanes of a sum. */
struct avx2_sum {
    __m256d low, high;
};

AVX2 static inline void avx2_grow(struct avx2_sum *sum, __m256i magnitude)
{
    const __m256 x = _mm256_castsi256_ps(magnitude);

    sum->low = _mm256_add_pd(sum->low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    sum->high = _mm256_add_pd(sum->high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}

AVX2 static inline void avx2_store(const struct avx2_sum *sum, double lane[PACKED_LANES])
{
    _mm256_storeu_pd(lane, sum->low);
    _mm256_storeu_pd(lane + PACKED_LANES / 2, sum->high);
}

/* The least of eight numbers below 2^31, or of their complements. */
AVX2 static inline uint32_t avx2_least(__m256i x)
{
    uint32_t lane[WIDTH], least;

    _mm256_storeu_si256((__m256i *)(void *)lane, x);
    least = lane[0];
    for (unsigned i = 1; i < WIDTH; i++) {
        least = lane[i] < least ? lane[i] : least;
    }
    return least;
}

AVX2 static void packed_avx2_measure(const float *value, size_t n, struct packed_measure *measure)
{
    __m256i least = _mm256_set1_epi32(INT32_MAX), most = _mm256_setzero_si256();
    struct avx2_sum sum = {_mm256_setzero_pd(), _mm256_setzero_pd()};

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m256i m = avx2_magnitude(avx2_load(value + i));

        least = _mm256_min_epi32(least, m);
        most = _mm256_max_epi32(most, m);
        avx2_grow(&sum, m);
    }
    avx2_store(&sum, measure->sum);
    measure->least = avx2_least(least);
    measure->most = ~avx2_least(_mm256_xor_si256(most, _mm256_set1_epi32(-1)));
}

AVX2 static inline uint8_t avx2_bits(__m256i x)
{
    return (uint8_t)_mm256_movemask_ps(_mm256_castsi256_ps(x));
}

AVX2 static void packed_avx2_split(
    const float *value, size_t n, uint32_t threshold, struct packed_split *split)
{
    const __m256i limit = _mm256_set1_epi32((int32_t)threshold);
    struct avx2_sum below = {_mm256_setzero_pd(), _mm256_setzero_pd()}, above = below;

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m256i bits = avx2_load(value + i), m = avx2_magnitude(bits);
        const __m256i over = _mm256_cmpgt_epi32(m, limit);
        const __m256i zero = _mm256_cmpeq_epi32(m, _mm256_setzero_si256());

        avx2_grow(&below, _mm256_andnot_si256(over, m));
        avx2_grow(&above, _mm256_and_si256(over, m));
        split->sign[i / 8] = avx2_bits(_mm256_andnot_si256(zero, bits));
        split->over[i / 8] = avx2_bits(over);
    }
    avx2_store(&below, split->below);
    avx2_store(&above, split->above);
}

AVX2 static bool packed_avx2_mark(const float *value, size_t n, uint32_t threshold, uint32_t most,
    uint8_t sign[PACKED_PLANE_SIZE], uint8_t over[PACKED_PLANE_SIZE])
{
    const __m256i low = _mm256_set1_epi32((int32_t)threshold);
    const __m256i high = _mm256_set1_epi32((int32_t)most);
    __m256i alike = _mm256_set1_epi32(-1);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m256i bits = avx2_load(value + i), m = avx2_magnitude(bits);
        const __m256i zero = _mm256_cmpeq_epi32(m, _mm256_setzero_si256());
        const __m256i one =
            _mm256_or_si256(_mm256_cmpeq_epi32(m, low), _mm256_cmpeq_epi32(m, high));

        alike = _mm256_and_si256(alike, one);
        sign[i / 8] = avx2_bits(_mm256_andnot_si256(zero, bits));
        over[i / 8] = avx2_bits(_mm256_cmpgt_epi32(m, low));
    }
    return avx2_bits(alike) == 0xff;
}

/* All ones in the lanes whose bit of the byte is set. */
AVX2 static inline __m256i avx2_spread(uint8_t byte)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), each), each);
}

AVX2 static void packed_avx2_expand(const struct packed_block *block, unsigned planes,
    const uint32_t table[8], size_t n, float *value)
{
    const __m256i magnitudes = _mm256_loadu_si256((const __m256i *)(const void *)table);
    const __m256i minus = _mm256_set1_epi32(INT32_MIN);

    for (size_t i = 0; i < n; i += WIDTH) {
        __m256i code = _mm256_setzero_si256(), x;

        for (unsigned p = 1; p < planes; p++) {
            const __m256i bit = _mm256_set1_epi32(1 << (p - 1));
            code =
                _mm256_or_si256(code, _mm256_and_si256(avx2_spread(block->plane[p][i / 8]), bit));
        }
        x = _mm256_permutevar8x32_epi32(magnitudes, code);
        x = _mm256_or_si256(x, _mm256_and_si256(avx2_spread(block->plane[0][i / 8]), minus));
        _mm256_storeu_si256((__m256i *)(void *)(value + i), x);
    }
}

const struct packed_ops packed_avx2 = {.name = "avx2",
    .supported = packed_avx2_supported,
    .measure = packed_avx2_measure,
    .split = packed_avx2_split,
    .mark = packed_avx2_mark,
    .expand = packed_avx2_expand};
#endif
