/* Dealing to fibres and their peaks with AVX-512; part of chunk_avx512.c's operations. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/deal.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt")))

enum { VECTOR = 16 };

/* Entries by fibre and by position in the view. */
struct avx512_dealt {
    __m512i fibre;
    __m512i position;
    __m512i value;
};

/* Entries i..i + 15 of a list; behind its end they belong to no fibre. A quotient is at least
 * 1 / (2 * DEAL_NARROW) away from the next integer, far more than a rounding error of this size. */
AVX512 static inline struct avx512_dealt avx512_entries(
    const struct sparse *list, size_t i, const struct deal *deal)
{
    const __m512i stride = _mm512_set1_epi32((int)deal->stride);
    const __mmask16 valid = (__mmask16)_bzhi_u32(
        0xffff, list->count - i < VECTOR ? (unsigned)(list->count - i) : VECTOR);
    const __m512i at = _mm512_maskz_loadu_epi32(valid, list->position + i);
    const __m512 middle = _mm512_add_ps(_mm512_cvtepi32_ps(at), _mm512_set1_ps(0.5f));
    const __m512i row =
        _mm512_cvttps_epi32(_mm512_mul_ps(middle, _mm512_set1_ps(1.0f / (float)deal->stride)));
    const __m512i fibre = _mm512_sub_epi32(at, _mm512_mullo_epi32(row, stride));
    const __m512i start =
        _mm512_add_epi32(_mm512_mullo_epi32(fibre, _mm512_set1_epi32((int)deal->length)),
            _mm512_set1_epi32((int)deal->first));
    return (struct avx512_dealt){
        .fibre = _mm512_mask_mov_epi32(_mm512_set1_epi32(DEAL_NARROW), valid, fibre),
        .position = _mm512_add_epi32(start, row),
        .value = _mm512_maskz_loadu_epi32(valid, list->value + i)};
}

/* A fibre at a time instead of an entry at a time: the number of a fibre's entries would go through
 * memory for every entry. */
AVX512 bool deal_avx512(const struct sparse *list, const struct deal *deal)
{
    const struct deal to = *deal;
    uint32_t count[DEAL_NARROW];
    if (to.stride > DEAL_NARROW || to.stride * to.length > DEAL_SHORT) {
        return false;
    }
    for (unsigned f = 0; f < to.stride; f++) {
        count[f] = to.count[f];
    }
    for (size_t i = 0; i < list->count; i += VECTOR) {
        const struct avx512_dealt dealt = avx512_entries(list, i, &to);
        for (unsigned f = 0; f < to.stride; f++) {
            const __mmask16 own = _mm512_cmpeq_epi32_mask(dealt.fibre, _mm512_set1_epi32((int)f));
            const size_t at = (size_t)f * deal_pitch(to.room) + count[f];
            count[f] += (uint32_t)_mm_popcnt_u32(own);
            if (count[f] > to.room) {
                return false;
            }
            _mm512_storeu_si512(
                to.dealt.position + at, _mm512_maskz_compress_epi32(own, dealt.position));
            _mm512_storeu_si512(to.dealt.value + at, _mm512_maskz_compress_epi32(own, dealt.value));
        }
    }
    for (unsigned f = 0; f < to.stride; f++) {
        to.count[f] = count[f];
    }
    return true;
}

AVX512 void deal_peaks_avx512(const float *x, size_t n, int32_t *peak, size_t period)
{
    deal_peaks_inline(x, n, peak, period);
}
#endif
