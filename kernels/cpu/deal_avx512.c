/* Those of chunk_avx512.c's operations that selections from strided fibres are made of. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/deal.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

#define INLINE inline __attribute__((always_inline))

/* Lanes of a vector, entries that are marked in one word, and words of a list. */
enum { VECTOR = 16, WORD = 64, WORDS = DEAL_LIST / WORD };

/* A list on its way to its fibres. */
struct avx512_hand {
    _Alignas(64) int32_t key[DEAL_LIST];
    _Alignas(64) uint32_t position[DEAL_LIST]; /* in the view */
    _Alignas(64) uint8_t fibre[DEAL_LIST];     /* 255 behind the end */
    uint64_t own[DEAL_NARROW][WORDS];          /* bits of each fibre's entries */
    uint32_t count[DEAL_NARROW];               /* of them */
    uint64_t above[WORDS];                     /* bits of the entries that exceed their fibre's
                                                * k-th */
    uint64_t equal[WORDS];                     /* bits of the entries that equal it */
};

AVX512 static inline __mmask16 avx512_first(size_t lanes)
{
    return (__mmask16)_bzhi_u32(0xffff, lanes < VECTOR ? (unsigned)lanes : VECTOR);
}

/* A quotient is at least 1 / (2 * DEAL_NARROW) away from the next integer, far more than a rounding
 * error of numbers up to DEAL_SHORT. */
AVX512 static INLINE void avx512_take(
    const struct sparse *list, const struct deal *deal, unsigned words, struct avx512_hand *hand)
{
    const __m512i stride = _mm512_set1_epi32((int)deal->stride);
    const __m512i length = _mm512_set1_epi32((int)deal->length);
    const __m512i first = _mm512_set1_epi32((int)deal->first);
    const __m512 share = _mm512_set1_ps(1.0f / (float)deal->stride);
    for (size_t i = 0; i < words * WORD; i += VECTOR) {
        const __mmask16 valid = avx512_first(list->count > i ? list->count - i : 0);
        const __m512i at = _mm512_maskz_loadu_epi32(valid, list->position + i);
        const __m512i value = _mm512_maskz_loadu_epi32(valid, list->value + i);
        const __m512 middle = _mm512_add_ps(_mm512_cvtepi32_ps(at), _mm512_set1_ps(0.5f));
        const __m512i row = _mm512_cvttps_epi32(_mm512_mul_ps(middle, share));
        const __m512i fibre = _mm512_sub_epi32(at, _mm512_mullo_epi32(row, stride));
        const __m512i start = _mm512_add_epi32(_mm512_mullo_epi32(fibre, length), first);
        const __m512i known = _mm512_mask_mov_epi32(_mm512_set1_epi32(255), valid, fibre);
        _mm512_store_si512(hand->key + i, _mm512_and_si512(value, _mm512_set1_epi32(0x7fffffff)));
        _mm512_store_si512(hand->position + i, _mm512_add_epi32(start, row));
        _mm_store_si128((__m128i *)(void *)(hand->fibre + i), _mm512_cvtepi32_epi8(known));
    }
}

/* Marks each fibre's entries; returns the largest number of them. */
AVX512 static INLINE unsigned avx512_own(
    struct avx512_hand *hand, const struct deal *deal, unsigned words)
{
    unsigned most = 0;
    for (unsigned f = 0; f < deal->stride; f++) {
        const __m512i wanted = _mm512_set1_epi8((char)f);
        unsigned count = 0;
        for (unsigned w = 0; w < words; w++) {
            const __m512i fibre = _mm512_load_si512(hand->fibre + w * WORD);
            const uint64_t own = _cvtmask64_u64(_mm512_cmpeq_epi8_mask(fibre, wanted));
            hand->own[f][w] = own;
            count += (unsigned)_mm_popcnt_u64(own);
        }
        hand->count[f] = count;
        most = count > most ? count : most;
    }
    return most;
}

/* The k-th largest number of each of up to 16 columns, one vector per row; zeros if there are
 * fewer. k is a constant, and the function is compiled for each value. */
AVX512 static INLINE __m512i avx512_kth(const int32_t *x, unsigned rows, size_t k)
{
    __m512i place[DEAL_BEST];
    for (size_t i = 0; i < k; i++) {
        place[i] = _mm512_setzero_si512();
    }
    for (unsigned r = 0; r < rows; r++) {
        __m512i next = _mm512_load_si512(x + r * VECTOR);
        for (size_t i = 0; i < k; i++) {
            const __m512i larger = _mm512_max_epi32(place[i], next);
            next = _mm512_min_epi32(place[i], next);
            place[i] = larger;
        }
    }
    return place[k - 1];
}

AVX512 static __m512i avx512_find(const int32_t *x, unsigned rows, size_t k)
{
    switch (k) {
    case 1: return avx512_kth(x, rows, 1);
    case 2: return avx512_kth(x, rows, 2);
    case 3: return avx512_kth(x, rows, 3);
    case 4: return avx512_kth(x, rows, 4);
    case 5: return avx512_kth(x, rows, 5);
    case 6: return avx512_kth(x, rows, 6);
    default: return avx512_kth(x, rows, k);
    }
}

/* The k-th keys of all fibres: their keys are columns next to each other. */
AVX512 static INLINE __m512i avx512_cut(
    const struct avx512_hand *hand, size_t n, unsigned rows, size_t k)
{
    _Alignas(64) int32_t column[DEAL_ROWS * VECTOR];
    uint32_t next[DEAL_NARROW];
    for (unsigned r = 0; r < rows; r++) {
        _mm512_store_si512(column + r * VECTOR, _mm512_setzero_si512());
    }
    for (unsigned f = 0; f < DEAL_NARROW; f++) {
        next[f] = f;
    }
    for (size_t i = 0; i < n; i++) {
        const unsigned f = hand->fibre[i];
        column[next[f]] = hand->key[i];
        next[f] += VECTOR;
    }
    return avx512_find(column, rows, k);
}

/* Compares all entries with the k-th of their fibre. */
AVX512 static INLINE void avx512_compare(struct avx512_hand *hand, __m512i kth, unsigned words)
{
    for (unsigned w = 0; w < words; w++) {
        __mmask16 above[WORD / VECTOR];
        __mmask16 equal[WORD / VECTOR];
        for (unsigned j = 0; j < WORD / VECTOR; j++) {
            const size_t i = w * WORD + j * VECTOR;
            const __m128i *const fibre = (const __m128i *)(const void *)(hand->fibre + i);
            const __m512i cut =
                _mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(fibre)), kth);
            const __m512i key = _mm512_load_si512(hand->key + i);
            above[j] = _mm512_cmpgt_epi32_mask(key, cut);
            equal[j] = _mm512_cmpeq_epi32_mask(key, cut);
        }
        hand->above[w] = _cvtmask64_u64(_mm512_kunpackd(
            _mm512_kunpackw(above[3], above[2]), _mm512_kunpackw(above[1], above[0])));
        hand->equal[w] = _cvtmask64_u64(_mm512_kunpackd(
            _mm512_kunpackw(equal[3], equal[2]), _mm512_kunpackw(equal[1], equal[0])));
    }
}

/* Lists a fibre's k best: all above the k-th, and the first that equal it. */
AVX512 static INLINE void avx512_choose(
    const struct avx512_hand *hand, unsigned f, size_t k, unsigned words, uint8_t *order)
{
    const __m512i number = _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130,
        0x2f2e2d2c2b2a2928, 0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
        0x0f0e0d0c0b0a0908, 0x0706050403020100);
    unsigned ties = (unsigned)k;
    for (unsigned w = 0; w < words; w++) {
        ties -= (unsigned)_mm_popcnt_u64(hand->own[f][w] & hand->above[w]);
    }
    for (unsigned w = 0; w < words; w++) {
        const uint64_t equal = hand->own[f][w] & hand->equal[w];
        const uint64_t taken = _pdep_u64(_bzhi_u64(~UINT64_C(0), ties), equal);
        const uint64_t kept = (hand->own[f][w] & hand->above[w]) | taken;
        const __m512i in_list = _mm512_add_epi8(number, _mm512_set1_epi8((char)(w * WORD)));
        _mm512_storeu_si512(order, _mm512_maskz_compress_epi8(_cvtu64_mask64(kept), in_list));
        order += _mm_popcnt_u64(kept);
        ties -= (unsigned)_mm_popcnt_u64(taken);
    }
}

/* What was selected from a fibre goes to its place. */
AVX512 static INLINE void avx512_copy(const struct avx512_hand *hand, const struct sparse *list,
    const uint8_t *order, unsigned f, const struct deal *to)
{
    for (size_t i = 0; i < to->k; i++) {
        to->out.position[f * to->k + i] = hand->position[order[i]];
        to->out.value[f * to->k + i] = list->value[order[i]];
    }
}

/* The entries of one fibre go to its part. */
AVX512 static void avx512_deal(const struct avx512_hand *hand, const struct sparse *list,
    unsigned words, unsigned f, const struct deal *to)
{
    size_t next = f * deal_pitch(to->room);
    for (unsigned w = 0; w < words; w++) {
        for (uint64_t own = hand->own[f][w]; own != 0; own = _blsr_u64(own)) {
            const size_t i = w * WORD + (size_t)_tzcnt_u64(own);
            to->dealt.position[next] = hand->position[i];
            to->dealt.value[next++] = list->value[i];
        }
    }
    to->count[f] = hand->count[f];
}

/* words: of the list; a constant, for each of which this is compiled. */
AVX512 static INLINE bool avx512_deal_all(
    const struct sparse *list, const struct deal *deal, unsigned words, uint32_t *settled)
{
    const struct deal to = *deal;
    struct avx512_hand hand;
    uint8_t order[DEAL_BEST + WORD]; /* stored a word at a time */
    uint32_t bits = 0;
    avx512_take(list, &to, words, &hand);
    const unsigned rows = avx512_own(&hand, &to, words);
    if (rows > to.room || rows > DEAL_ROWS) {
        return false;
    }
    const __m512i kth = avx512_cut(&hand, list->count, rows, to.k);
    avx512_compare(&hand, kth, words);
    for (unsigned f = 0; f < to.stride; f++) {
        if (hand.count[f] >= to.k) {
            avx512_choose(&hand, f, to.k, words, order);
            avx512_copy(&hand, list, order, f, &to);
            bits |= 1u << f;
        } else {
            avx512_deal(&hand, list, words, f, &to);
        }
    }
    _mm512_mask_storeu_epi32(to.last, (__mmask16)bits, kth);
    *settled = bits;
    return true;
}

/* All fibres together: one at a time costs several times as much. */
AVX512 bool deal_avx512(const struct sparse *list, const struct deal *deal, uint32_t *settled)
{
    if (deal->stride > DEAL_NARROW || deal->stride * deal->length > DEAL_SHORT ||
        list->count > DEAL_LIST || list->count == 0 || deal->k > DEAL_BEST) {
        return false;
    }
    return list->count <= WORD       ? avx512_deal_all(list, deal, 1, settled)
           : list->count <= 2 * WORD ? avx512_deal_all(list, deal, 2, settled)
                                     : avx512_deal_all(list, deal, WORDS, settled);
}

AVX512 void deal_peaks_avx512(const float *x, size_t n, int32_t *peak, size_t period)
{
    deal_peaks_inline(x, n, peak, period);
}

/* Up to 16 columns in one vector, k <= DEAL_BEST. */
AVX512 static void avx512_columns(
    const int32_t *x, size_t rows, size_t stride, size_t k, __mmask16 own, int32_t *best)
{
    __m512i place[DEAL_BEST];
    for (size_t i = 0; i < k; i++) {
        place[i] = _mm512_setzero_si512();
    }
    for (size_t r = 0; r < rows; r++) {
        __m512i next = _mm512_maskz_loadu_epi32(own, x + r * stride);
        for (size_t i = 0; i < k; i++) {
            const __m512i larger = _mm512_max_epi32(place[i], next);
            next = _mm512_min_epi32(place[i], next);
            place[i] = larger;
        }
    }
    for (size_t i = 0; i < k; i++) {
        _mm512_mask_storeu_epi32(best + i * stride, own, place[i]);
    }
}

AVX512 void deal_columns_avx512(
    const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *best)
{
    if (k > DEAL_BEST) {
        deal_columns_inline(x, rows, stride, k, best);
        return;
    }
    for (size_t f = 0; f < stride; f += VECTOR) {
        avx512_columns(x + f, rows, stride, k, avx512_first(stride - f), best + f);
    }
}
#endif
