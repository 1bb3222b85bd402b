/*
 * A word of elements in registers, with AVX-512. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_WORD_AVX512_H
#define ADTOPK_KERNELS_WORD_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/chunk.h"

#define WORD_AVX512                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq"), always_inline)) static inline

/* Elements of one vector, vectors of one word. */
enum { VECTOR = 16, VECTORS = CHUNK_WORD / VECTOR };

/* The elements of a word. */
struct avx512_word {
    __m512 x[VECTORS];
};

WORD_AVX512 __m512i avx512_key(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

WORD_AVX512 struct avx512_word avx512_load_word(const float *x)
{
    struct avx512_word word;
    for (unsigned j = 0; j < VECTORS; j++) {
        word.x[j] = _mm512_loadu_ps(x + j * VECTOR);
    }
    return word;
}

WORD_AVX512 void avx512_store_word(float *x, const struct avx512_word *word)
{
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm512_storeu_ps(x + j * VECTOR, word->x[j]);
    }
}

/* The first or the second half of 32 bfloat16. */
WORD_AVX512 __m512 avx512_bf16(__m512i halves, unsigned second)
{
    const __m512i spread =
        _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16,
            8 << 16, 7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
    const __m512i from = _mm512_or_si512(spread, _mm512_set1_epi32((int)second << 20));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, from, halves));
}

/* A word of one gradient. */
WORD_AVX512 struct avx512_word avx512_elements(
    const void *gradient, enum dtype dtype, uint64_t first)
{
    const uint16_t *const half = (const uint16_t *)gradient + first;
    struct avx512_word word;
    if (dtype == DTYPE_F32) {
        return avx512_load_word((const float *)gradient + first);
    }
    for (unsigned j = 0; j < VECTORS; j += 2) {
        const void *const at = half + j * VECTOR;
        if (dtype == DTYPE_F16) {
            word.x[j] = _mm512_cvtph_ps(_mm256_loadu_si256(at));
            word.x[j + 1] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at + 1));
        } else {
            word.x[j] = avx512_bf16(_mm512_loadu_si512(at), 0);
            word.x[j + 1] = avx512_bf16(_mm512_loadu_si512(at), 1);
        }
    }
    return word;
}

#endif
