/* Residuals in bf16 with AVX-512, for x86-64 processors that have it: a vector in a register, and
 * what the four of a word hand on in four more. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/rounded.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq")))
#define AVX512_INLINE AVX512 static inline __attribute__((always_inline))

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
}

AVX512 static void avx512_expand(const uint16_t *from, unsigned length, float *to)
{
    unsigned i = 0;
    for (; i + LEDGER_LANES <= length; i += LEDGER_LANES) {
        const __m256i half = _mm256_loadu_si256((const void *)(from + i));
        _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    for (; i < length; i++) {
        to[i] = convert_bf16(from[i]);
    }
}

/* rounded_random() of the elements that `element` numbers, seed included. */
AVX512_INLINE __m512i avx512_random(__m512i element)
{
    const __m512i first = _mm512_mullo_epi32(element, _mm512_set1_epi32((int)0x9e3779b1u));
    const __m512i mixed = _mm512_xor_si512(first, _mm512_srli_epi32(first, 15));
    return _mm512_srli_epi32(_mm512_mullo_epi32(mixed, _mm512_set1_epi32((int)0x85ebca77u)), 16);
}

AVX512_INLINE __m512 avx512_vector(float *x, __m512 e, __m512i element, uint16_t *out)
{
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    const __m512 exact = _mm512_add_ps(_mm512_loadu_ps(x), e);
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(exact), avx512_random(element));
    const __m512i kept = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
    const __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(kept, infinity), infinity);
    _mm512_storeu_si512(x, kept);
    _mm256_storeu_si256((void *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
    return _mm512_maskz_sub_ps(finite, exact, _mm512_castsi512_ps(kept));
}

AVX512 static void avx512_round(float *x, unsigned words, uint64_t signs, uint32_t seed,
    float e[2][2][LEDGER_LANES], uint16_t *out)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i step = _mm512_set1_epi32(LEDGER_LANES);
    __m512i element = _mm512_add_epi32(lane, _mm512_set1_epi32((int)seed));
    /* Of the sign that a word's first vector has, then of the other one. */
    unsigned sign = 0;
    __m512 same[2] = {_mm512_loadu_ps(e[0][0]), _mm512_loadu_ps(e[0][1])};
    __m512 other[2] = {_mm512_loadu_ps(e[1][0]), _mm512_loadu_ps(e[1][1])};
    for (unsigned w = 0; w <= words; w++, x += LEDGER_WORD, out += LEDGER_WORD) {
        const unsigned next = w < words ? (signs >> w) & 1u : 0;
        const __mmask16 swap = (__mmask16)(0 - (sign ^ next));
        for (unsigned half = 0; half < 2; half++) {
            const __m512 kept = same[half];
            same[half] = _mm512_mask_mov_ps(same[half], swap, other[half]);
            other[half] = _mm512_mask_mov_ps(other[half], swap, kept);
        }
        sign = next;
        if (w == words) {
            break;
        }
        same[0] = avx512_vector(x, same[0], element, out);
        element = _mm512_add_epi32(element, step);
        other[0] = avx512_vector(x + 16, other[0], element, out + 16);
        element = _mm512_add_epi32(element, step);
        other[1] = avx512_vector(x + 32, other[1], element, out + 32);
        element = _mm512_add_epi32(element, step);
        same[1] = avx512_vector(x + 48, same[1], element, out + 48);
        element = _mm512_add_epi32(element, step);
    }
    for (unsigned half = 0; half < 2; half++) {
        _mm512_storeu_ps(e[0][half], same[half]);
        _mm512_storeu_ps(e[1][half], other[half]);
    }
}

extern const struct rounded_ops rounded_avx512;
const struct rounded_ops rounded_avx512 = {.name = "avx512",
    .supported = avx512_supported,
    .expand = avx512_expand,
    .round = avx512_round};
#endif
