/* The inner loops of packed.h with AVX-512, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "kernels/base/packed_plain.h"

#define AVX512 __attribute__((target("avx512f")))

enum { WIDTH = 16 };

static bool packed_avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f");
}

AVX512 static inline __m512i avx512_magnitude(__m512i bits)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 number = _mm512_cmple_epi32_mask(magnitude, _mm512_set1_epi32(PACKED_INFINITY));

    return _mm512_maskz_min_epi32(number, magnitude, _mm512_set1_epi32(PACKED_MOST));
}

AVX512 static inline __m512d avx512_grow(__m512d sum, __m512i magnitude)
{
    const __m256i high = _mm512_extracti64x4_epi64(magnitude, 1);

    sum =
        _mm512_add_pd(sum, _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_castsi512_si256(magnitude))));
    return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm256_castsi256_ps(high)));
}

AVX512 static void packed_avx512_measure(
    const float *value, size_t n, struct packed_measure *measure)
{
    __m512i least = _mm512_set1_epi32(INT32_MAX), most = _mm512_setzero_si512();
    __m512d sum = _mm512_setzero_pd();

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m512i m = avx512_magnitude(_mm512_loadu_si512(value + i));

        least = _mm512_min_epi32(least, m);
        most = _mm512_max_epi32(most, m);
        sum = avx512_grow(sum, m);
    }
    _mm512_storeu_pd(measure->sum, sum);
    measure->least = (uint32_t)_mm512_reduce_min_epi32(least);
    measure->most = (uint32_t)_mm512_reduce_max_epi32(most);
}

AVX512 static void packed_avx512_split(
    const float *value, size_t n, uint32_t threshold, struct packed_split *split)
{
    const __m512i limit = _mm512_set1_epi32((int32_t)threshold);
    __m512d below = _mm512_setzero_pd(), above = _mm512_setzero_pd();

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m512i bits = _mm512_loadu_si512(value + i), m = avx512_magnitude(bits);
        const __mmask16 over = _mm512_cmpgt_epi32_mask(m, limit);
        const __mmask16 negative = _mm512_mask_cmplt_epi32_mask(
            _mm512_test_epi32_mask(m, m), bits, _mm512_setzero_si512());

        below = avx512_grow(below, _mm512_maskz_mov_epi32((__mmask16)~over, m));
        above = avx512_grow(above, _mm512_maskz_mov_epi32(over, m));
        memcpy(split->sign + i / 8, &negative, sizeof(negative));
        memcpy(split->over + i / 8, &over, sizeof(over));
    }
    _mm512_storeu_pd(split->below, below);
    _mm512_storeu_pd(split->above, above);
}

AVX512 static bool packed_avx512_mark(const float *value, size_t n, uint32_t threshold,
    uint32_t most, uint8_t sign[PACKED_PLANE_SIZE], uint8_t over[PACKED_PLANE_SIZE])
{
    const __m512i low = _mm512_set1_epi32((int32_t)threshold);
    const __m512i high = _mm512_set1_epi32((int32_t)most);
    __mmask16 others = 0;

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m512i bits = _mm512_loadu_si512(value + i), m = avx512_magnitude(bits);
        const __mmask16 above = _mm512_cmpgt_epi32_mask(m, low);
        const __mmask16 negative = _mm512_mask_cmplt_epi32_mask(
            _mm512_test_epi32_mask(m, m), bits, _mm512_setzero_si512());

        others |= _mm512_mask_cmpneq_epi32_mask(_mm512_cmpneq_epi32_mask(m, low), m, high);
        memcpy(sign + i / 8, &negative, sizeof(negative));
        memcpy(over + i / 8, &above, sizeof(above));
    }
    return others == 0;
}

AVX512 static inline __mmask16 avx512_plane(const struct packed_block *block, unsigned p, size_t i)
{
    __mmask16 bits;

    memcpy(&bits, block->plane[p] + i / 8, sizeof(bits));
    return bits;
}

AVX512 static void packed_avx512_expand(const struct packed_block *block, unsigned planes,
    const uint32_t table[8], size_t n, float *value)
{
    const __m256i eight = _mm256_loadu_si256((const __m256i *)(const void *)table);
    const __m512i magnitudes = _mm512_castsi256_si512(eight);
    const __m512i minus = _mm512_set1_epi32(INT32_MIN);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 negative = avx512_plane(block, 0, i);
        __m512i code = _mm512_setzero_si512(), x;

        for (unsigned p = 1; p < planes; p++) {
            code = _mm512_mask_or_epi32(
                code, avx512_plane(block, p, i), code, _mm512_set1_epi32(1 << (p - 1)));
        }
        x = _mm512_permutexvar_epi32(code, magnitudes);
        _mm512_storeu_si512(value + i, _mm512_mask_or_epi32(x, negative, x, minus));
    }
}

const struct packed_ops packed_avx512 = {.name = "avx512",
    .supported = packed_avx512_supported,
    .measure = packed_avx512_measure,
    .split = packed_avx512_split,
    .mark = packed_avx512_mark,
    .expand = packed_avx512_expand};
#endif
