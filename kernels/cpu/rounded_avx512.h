/*
 * A word of a chunk rounded to bf16 in registers, with AVX-512. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_ROUNDED_AVX512_H
#define ADTOPK_KERNELS_ROUNDED_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/rounded.h"

#define ROUNDED_AVX512                                                                             \
    __attribute__((target("avx512f,avx512bw,avx512dq"), always_inline)) static inline

/* What the vectors of a word hand on. */
struct rounded_lanes {
    __m512i step[4]; /* the golden ratios of each vector */
    __m512 same[2];  /* by half of the word: e of the sign that its first vector has, */
    __m512 other[2]; /* then of the other one */
    unsigned sign;   /* of the first vector */
};

/* The upper halves of 32-bit numbers. */
ROUNDED_AVX512 __m512i rounded_upper(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u));
}

/* Adds e to x and rounds that to a bf16, the upper half of what it returns; e becomes what that
 * cuts off. */
ROUNDED_AVX512 __m512i rounded_vector_of(__m512 *x, __m512 *e, __m512i hash, __m512i step)
{
    const __m512 exact = _mm512_add_ps(*x, *e);
    const __m512i random = _mm512_srli_epi32(_mm512_add_epi32(hash, step), 16);
    const __m512i kept = rounded_upper(_mm512_add_epi32(_mm512_castps_si512(exact), random));
    *x = exact;
    *e = _mm512_sub_ps(exact, _mm512_castsi512_ps(kept));
    return kept;
}

/* What is not finite, or became so, cuts off nothing, and a NaN stays one. Apart and rare, as every
 * word waits for the e of another. */
ROUNDED_AVX512 void rounded_finish(const __m512 exact[4], __m512i kept[4], __m512 *const e[4])
{
    enum { NOT_FINITE = 0x99 }; /* infinities, NaNs */
    __mmask16 bad[4];
    for (unsigned v = 0; v < 4; v++) {
        bad[v] = _mm512_fpclass_ps_mask(*e[v], NOT_FINITE);
    }
    if (__builtin_expect((bad[0] | bad[1] | bad[2] | bad[3]) == 0, true)) {
        return;
    }
    for (unsigned v = 0; v < 4; v++) {
        const __mmask16 same = _mm512_fpclass_ps_mask(exact[v], NOT_FINITE);
        kept[v] =
            _mm512_mask_mov_epi32(kept[v], same, rounded_upper(_mm512_castps_si512(exact[v])));
        *e[v] = _mm512_mask_mov_ps(*e[v], bad[v], _mm512_setzero_ps());
    }
}

/* The upper halves of two vectors. */
ROUNDED_AVX512 __m512i rounded_narrow(__m512i low, __m512i high)
{
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37,
        35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(low, upper, high);
}

/* Exchanges two vectors. */
ROUNDED_AVX512 void rounded_swap(__mmask16 swap, __m512 *one, __m512 *other)
{
    const __m512 kept = *one;
    *one = _mm512_mask_mov_ps(*one, swap, *other);
    *other = _mm512_mask_mov_ps(*other, swap, kept);
}

ROUNDED_AVX512 void rounded_turn(struct rounded_lanes *lanes, unsigned sign)
{
    const __mmask16 swap = (__mmask16)(0 - (lanes->sign ^ sign));
    rounded_swap(swap, &lanes->same[0], &lanes->other[0]);
    rounded_swap(swap, &lanes->same[1], &lanes->other[1]);
    lanes->sign = sign;
}

ROUNDED_AVX512 struct rounded_lanes rounded_lanes_of(const struct rounding *rounding)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    struct rounded_lanes lanes = {.sign = 0};
    for (unsigned half = 0; half < 2; half++) {
        lanes.same[half] = _mm512_loadu_ps(rounding->e[0][half]);
        lanes.other[half] = _mm512_loadu_ps(rounding->e[1][half]);
    }
    for (int v = 0; v < 4; v++) {
        const __m512i element = _mm512_add_epi32(lane, _mm512_set1_epi32(v * LEDGER_LANES));
        lanes.step[v] = _mm512_mullo_epi32(element, _mm512_set1_epi32((int)ROUNDED_STEP));
    }
    return lanes;
}

/* Puts them back. */
ROUNDED_AVX512 void rounded_keep(struct rounded_lanes *lanes, struct rounding *rounding)
{
    rounded_turn(lanes, 0);
    for (unsigned half = 0; half < 2; half++) {
        _mm512_storeu_ps(rounding->e[0][half], lanes->same[half]);
        _mm512_storeu_ps(rounding->e[1][half], lanes->other[half]);
    }
}

/* Rounds the chunk's word number w, in place and to where it goes. */
ROUNDED_AVX512 void rounded_register(
    struct rounded_lanes *lanes, const struct rounding *rounding, unsigned w, __m512 x[4])
{
    const __m512i hash = _mm512_set1_epi32((int)rounded_word(rounding->seed, w));
    uint16_t *const out = rounding->to + w * LEDGER_WORD;
    __m512 *const e[] = {&lanes->same[0], &lanes->other[0], &lanes->other[1], &lanes->same[1]};
    __m512i kept[4];
    rounded_turn(lanes, (rounding->signs >> w) & 1u);
    for (unsigned v = 0; v < 4; v++) {
        kept[v] = rounded_vector_of(&x[v], e[v], hash, lanes->step[v]);
    }
    rounded_finish(x, kept, e);
    for (unsigned v = 0; v < 4; v++) {
        x[v] = _mm512_castsi512_ps(kept[v]);
    }
    _mm512_storeu_si512(out, rounded_narrow(kept[0], kept[1]));
    _mm512_storeu_si512(out + 2 * LEDGER_LANES, rounded_narrow(kept[2], kept[3]));
}

#endif
