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

/* Rounds x + e to a bf16, the upper half of what it returns; e becomes what that cuts off. */
AVX512_INLINE __m512i avx512_vector(__m512 x, __m512 *e, __m512i hash, __m512i step)
{
    const __m512 exact = _mm512_add_ps(x, *e);
    const __m512i random = _mm512_srli_epi32(_mm512_add_epi32(hash, step), 16);
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(exact), random);
    const __m512i kept = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
    *e = _mm512_sub_ps(exact, _mm512_castsi512_ps(kept));
    return kept;
}

/* What is not finite cuts off nothing. Apart and rare, as every word waits for the e of another. */
AVX512_INLINE void avx512_finish(const __m512i kept[4], __m512 *e[4])
{
    enum { NOT_FINITE = 0x99 }; /* infinities, NaNs */
    __mmask16 bad[4];
    for (unsigned v = 0; v < 4; v++) {
        bad[v] = _mm512_fpclass_ps_mask(_mm512_castsi512_ps(kept[v]), NOT_FINITE);
    }
    if (__builtin_expect((bad[0] | bad[1] | bad[2] | bad[3]) == 0, true)) {
        return;
    }
    for (unsigned v = 0; v < 4; v++) {
        *e[v] = _mm512_mask_mov_ps(*e[v], bad[v], _mm512_setzero_ps());
    }
}

/* The upper halves of two vectors. */
AVX512_INLINE __m512i avx512_narrow(__m512i low, __m512i high)
{
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37,
        35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(low, upper, high);
}

/* A word, in place and to `out`; e: of each of its vectors. */
AVX512_INLINE void avx512_word(
    float *x, __m512 *e[4], uint32_t hash, const __m512i step[4], uint16_t *out)
{
    __m512i kept[4];
    for (unsigned v = 0; v < 4; v++) {
        const __m512 old = _mm512_loadu_ps(x + v * LEDGER_LANES);
        kept[v] = avx512_vector(old, e[v], _mm512_set1_epi32((int)hash), step[v]);
        _mm512_storeu_si512(x + v * LEDGER_LANES, kept[v]);
    }
    avx512_finish(kept, e);
    _mm512_storeu_si512(out, avx512_narrow(kept[0], kept[1]));
    _mm512_storeu_si512(out + 2 * LEDGER_LANES, avx512_narrow(kept[2], kept[3]));
}

/* Exchanges two vectors. */
AVX512_INLINE void avx512_swap(__mmask16 swap, __m512 *one, __m512 *other)
{
    const __m512 kept = *one;
    *one = _mm512_mask_mov_ps(*one, swap, *other);
    *other = _mm512_mask_mov_ps(*other, swap, kept);
}

AVX512 static void avx512_round(float *x, unsigned words, uint64_t signs, uint64_t seed,
    float e[2][2][LEDGER_LANES], uint16_t *out)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i step[LEDGER_WORD / LEDGER_LANES];
    /* Of the sign that a word's first vector has, then of the other one. */
    unsigned sign = 0;
    __m512 same[2] = {_mm512_loadu_ps(e[0][0]), _mm512_loadu_ps(e[0][1])};
    __m512 other[2] = {_mm512_loadu_ps(e[1][0]), _mm512_loadu_ps(e[1][1])};
    __m512 *mine[] = {&same[0], &other[0], &other[1], &same[1]};
    for (int v = 0; v < LEDGER_WORD / LEDGER_LANES; v++) {
        const __m512i element = _mm512_add_epi32(lane, _mm512_set1_epi32(v * LEDGER_LANES));
        step[v] = _mm512_mullo_epi32(element, _mm512_set1_epi32((int)ROUNDED_STEP));
    }
    for (unsigned w = 0; w <= words; w++, x += LEDGER_WORD, out += LEDGER_WORD) {
        const unsigned next = w < words ? (signs >> w) & 1u : 0;
        const __mmask16 swap = (__mmask16)(0 - (sign ^ next));
        avx512_swap(swap, &same[0], &other[0]);
        avx512_swap(swap, &same[1], &other[1]);
        sign = next;
        if (w == words) {
            break;
        }
        avx512_word(x, mine, rounded_word(seed, w), step, out);
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
