/* Those of chunk_avx512.c's operations that selections from strided fibres are made of. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/deal.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

#define INLINE inline __attribute__((always_inline))

/* Lanes of a vector, vectors of a list, and entries whose numbers in the list one vector holds. */
enum { VECTOR = 16, VECTORS = DEAL_LIST / VECTOR, BYTES = 64 };

/* Largest numbers of a column that stay in the first-level cache. */
enum { COLUMNS = 16 };

/* A list in registers, or nearly so. */
struct avx512_hand {
    __m512i value[VECTORS];
    __m512i position[VECTORS];             /* in the view */
    _Alignas(64) uint8_t fibre[DEAL_LIST]; /* 255 behind the end */
};

/* A fibre's entries: their number, and the numbers in the list of the first 64. */
struct avx512_own {
    unsigned count;
    __m512i at;
};

AVX512 static inline __mmask16 avx512_first(size_t lanes)
{
    return (__mmask16)_bzhi_u32(0xffff, lanes < VECTOR ? (unsigned)lanes : VECTOR);
}

/* A quotient is at least 1 / (2 * DEAL_NARROW) away from the next integer, far more than a rounding
 * error of numbers up to DEAL_SHORT. */
AVX512 static INLINE void avx512_take(
    const struct sparse *list, const struct deal *deal, unsigned vectors, struct avx512_hand *hand)
{
    const __m512i stride = _mm512_set1_epi32((int)deal->stride);
    const __m512i length = _mm512_set1_epi32((int)deal->length);
    const __m512i first = _mm512_set1_epi32((int)deal->first);
    const __m512 share = _mm512_set1_ps(1.0f / (float)deal->stride);
    for (unsigned v = 0; v < vectors; v++) {
        const size_t i = v * VECTOR;
        const __mmask16 valid = avx512_first(list->count > i ? list->count - i : 0);
        const __m512i at = _mm512_maskz_loadu_epi32(valid, list->position + i);
        const __m512 middle = _mm512_add_ps(_mm512_cvtepi32_ps(at), _mm512_set1_ps(0.5f));
        const __m512i row = _mm512_cvttps_epi32(_mm512_mul_ps(middle, share));
        const __m512i fibre = _mm512_sub_epi32(at, _mm512_mullo_epi32(row, stride));
        const __m512i start = _mm512_add_epi32(_mm512_mullo_epi32(fibre, length), first);
        const __m512i known = _mm512_mask_mov_epi32(_mm512_set1_epi32(255), valid, fibre);
        hand->value[v] = _mm512_maskz_loadu_epi32(valid, list->value + i);
        hand->position[v] = _mm512_add_epi32(start, row);
        _mm_store_si128((__m128i *)(void *)(hand->fibre + i), _mm512_cvtepi32_epi8(known));
    }
}

AVX512 static INLINE struct avx512_own avx512_find(
    const struct avx512_hand *hand, unsigned vectors, unsigned fibre)
{
    const __m512i number = _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130,
        0x2f2e2d2c2b2a2928, 0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
        0x0f0e0d0c0b0a0908, 0x0706050403020100);
    const __m512i wanted = _mm512_set1_epi8((char)fibre);
    const __mmask64 low = _mm512_cmpeq_epi8_mask(_mm512_load_si512(hand->fibre), wanted);
    const __m512i at = _mm512_maskz_compress_epi8(low, number);
    const unsigned count = (unsigned)_mm_popcnt_u64(low);
    if (vectors < VECTORS) {
        return (struct avx512_own){.count = count, .at = at};
    }
    const __mmask64 high = _mm512_cmpeq_epi8_mask(_mm512_load_si512(hand->fibre + BYTES), wanted);
    const __m512i later = _mm512_or_si512(number, _mm512_set1_epi8(BYTES));
    const __mmask64 behind = count < BYTES ? ~UINT64_C(0) << count : 0;
    return (struct avx512_own){.count = count + (unsigned)_mm_popcnt_u64(high),
        .at = _mm512_mask_expand_epi8(at, behind, _mm512_maskz_compress_epi8(high, later))};
}

/* A lookup of 16 entries in all of the list. */
AVX512 static INLINE __m512i avx512_look(const __m512i x[VECTORS], unsigned vectors, __m512i at)
{
    const __mmask16 odd = _mm512_test_epi32_mask(at, _mm512_set1_epi32(2 * VECTOR));
    const __m512i low = _mm512_mask_mov_epi32(
        _mm512_permutex2var_epi32(x[0], at, x[1]), odd, _mm512_permutex2var_epi32(x[2], at, x[3]));
    if (vectors < VECTORS) {
        return low;
    }
    const __m512i high = _mm512_mask_mov_epi32(
        _mm512_permutex2var_epi32(x[4], at, x[5]), odd, _mm512_permutex2var_epi32(x[6], at, x[7]));
    const __mmask16 is_high = _mm512_test_epi32_mask(at, _mm512_set1_epi32(4 * VECTOR));
    return _mm512_mask_mov_epi32(low, is_high, high);
}

/* How many of a vector's keys beat each: those that are larger, and earlier ones that equal it. */
AVX512 static inline __m512i avx512_beaten(__m512i key, unsigned count, size_t k)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i last = _mm512_set1_epi32((int)k - 1);
    _Alignas(64) int32_t all[VECTOR];
    __m512i rank = _mm512_setzero_si512();
    _mm512_store_si512(all, key);
    for (unsigned i = 0; i < count; i += VECTOR / 2) {
        for (unsigned j = i; j < i + VECTOR / 2; j++) {
            const __mmask16 larger = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(all[j]), key);
            rank = _mm512_mask_add_epi32(rank, larger, rank, one);
        }
    }
    const __mmask16 found = _mm512_cmpeq_epi32_mask(rank, last);
    if (__builtin_expect(found != 0 && (found & (found - 1)) == 0, true)) {
        return rank;
    }
    for (unsigned j = 0; j < count; j++) {
        const __mmask16 later = (__mmask16)(0xfffeu << j);
        const __mmask16 equal = _mm512_mask_cmpeq_epi32_mask(later, _mm512_set1_epi32(all[j]), key);
        rank = _mm512_mask_add_epi32(rank, equal, rank, one);
    }
    return rank;
}

/* The entries of one fibre go to its part. */
AVX512 static INLINE void avx512_deal(const struct avx512_hand *hand, unsigned vectors,
    const struct avx512_own *own, unsigned f, const struct deal *to)
{
    const size_t part = f * deal_pitch(to->room);
    for (unsigned i = 0; i < own->count; i += VECTOR) {
        const __m128i bytes =
            i == 0 ? _mm512_castsi512_si128(own->at) : _mm512_extracti32x4_epi32(own->at, 1);
        const __m512i at = _mm512_cvtepu8_epi32(bytes);
        _mm512_storeu_si512(
            to->dealt.position + part + i, avx512_look(hand->position, vectors, at));
        _mm512_storeu_si512(to->dealt.value + part + i, avx512_look(hand->value, vectors, at));
    }
}

/* Selects from the entries of one fibre, one vector and at least k. */
AVX512 static INLINE void avx512_select(const struct avx512_hand *hand, unsigned vectors,
    const struct avx512_own *own, unsigned f, const struct deal *to)
{
    const __m512i at = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(own->at));
    const __m512i value =
        _mm512_maskz_mov_epi32(avx512_first(own->count), avx512_look(hand->value, vectors, at));
    const __m512i position = avx512_look(hand->position, vectors, at);
    const __m512i key = _mm512_and_si512(value, _mm512_set1_epi32(0x7fffffff));
    const __m512i last = _mm512_set1_epi32((int)to->k - 1);
    const __m512i rank = avx512_beaten(key, own->count, to->k);
    const __mmask16 kept = _mm512_cmple_epi32_mask(rank, last);
    const __mmask16 kth = _mm512_cmpeq_epi32_mask(rank, last);
    const __mmask16 stored = avx512_first(to->k);
    const size_t place = f * to->k;
    _mm512_mask_storeu_epi32(
        to->out.value + place, stored, _mm512_maskz_compress_epi32(kept, value));
    _mm512_mask_storeu_epi32(
        to->out.position + place, stored, _mm512_maskz_compress_epi32(kept, position));
    _mm_store_ss(to->last + f,
        _mm_castsi128_ps(_mm512_castsi512_si128(_mm512_maskz_compress_epi32(kth, key))));
}

/* vectors: 4 or 8, of the list; a constant, for each of which this is compiled. */
AVX512 static INLINE bool avx512_deal_all(
    const struct sparse *list, const struct deal *deal, unsigned vectors, uint32_t *settled)
{
    const struct deal to = *deal;
    struct avx512_hand hand;
    uint32_t bits = 0;
    avx512_take(list, &to, vectors, &hand);
    for (unsigned f = 0; f < to.stride; f++) {
        const struct avx512_own own = avx512_find(&hand, vectors, f);
        to.count[f] = own.count;
        if (own.count > to.room || own.count > 2 * VECTOR) {
            return false;
        }
        if (own.count <= VECTOR && own.count >= to.k) {
            avx512_select(&hand, vectors, &own, f, &to);
            bits |= 1u << f;
        } else {
            avx512_deal(&hand, vectors, &own, f, &to);
        }
    }
    *settled = bits;
    return true;
}

/* Each fibre's entries are found in the list at once: the number of those so far would go through
 * memory for every single entry. */
AVX512 bool deal_avx512(const struct sparse *list, const struct deal *deal, uint32_t *settled)
{
    if (deal->stride > DEAL_NARROW || deal->stride * deal->length > DEAL_SHORT ||
        list->count > DEAL_LIST) {
        return false;
    }
    return list->count <= DEAL_LIST / 2 ? avx512_deal_all(list, deal, VECTORS / 2, settled)
                                        : avx512_deal_all(list, deal, VECTORS, settled);
}

AVX512 void deal_peaks_avx512(const float *x, size_t n, int32_t *peak, size_t period)
{
    deal_peaks_inline(x, n, peak, period);
}

/* Up to 16 columns in one vector, k <= COLUMNS. */
AVX512 static void avx512_columns(
    const int32_t *x, size_t rows, size_t stride, size_t k, __mmask16 own, int32_t *best)
{
    __m512i place[COLUMNS];
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
    if (k > COLUMNS) {
        deal_columns_inline(x, rows, stride, k, best);
        return;
    }
    for (size_t f = 0; f < stride; f += VECTOR) {
        avx512_columns(x + f, rows, stride, k, avx512_first(stride - f), best + f);
    }
}
#endif
