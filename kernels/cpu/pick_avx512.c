/* Picking with AVX-512, for x86-64 processors that have it with VBMI2. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/pick.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

enum { VECTOR = 16, VECTORS = PICK_WORD / VECTOR };

AVX512 static inline __m512i avx512_key(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff));
}

/* The first `rest` lanes, all if there are so many. */
AVX512 static inline __mmask16 avx512_first(size_t rest)
{
    return (__mmask16)_bzhi_u32(0xffff, rest < VECTOR ? (unsigned)rest : VECTOR);
}

/* Writes positions first + (each set bit of the mask); returns their number. */
AVX512 static inline size_t avx512_spread(uint64_t mask, uint32_t first, uint32_t *position)
{
    const __m512i bits =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45,
            44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23,
            22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i base = _mm512_set1_epi32((int)first);
    const size_t count = (size_t)_mm_popcnt_u64(mask);
    __m512i set = _mm512_maskz_compress_epi8(mask, bits);
    for (size_t i = 0;;) {
        const __m512i wide = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(set));
        _mm512_storeu_si512(position + i, _mm512_add_epi32(wide, base));
        i += VECTOR;
        if (__builtin_expect(i >= count, 1)) {
            return count;
        }
        set = _mm512_alignr_epi32(set, set, VECTOR / 4);
    }
}

AVX512 static inline uint64_t avx512_join(const __mmask16 part[VECTORS])
{
    return _mm512_kunpackd(_mm512_kunpackw(part[3], part[2]), _mm512_kunpackw(part[1], part[0]));
}

/* The elements of one word whose keys are above `below`; `rest` of them exist. */
AVX512 static inline uint64_t avx512_marks(
    const float *x, size_t rest, const int32_t *pattern, __m512i below)
{
    __mmask16 part[VECTORS];
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m512i bound = pattern != NULL ? _mm512_loadu_si512(pattern + j * VECTOR) : below;
        const __m512i value =
            rest >= PICK_WORD
                ? _mm512_loadu_si512(x + j * VECTOR)
                : _mm512_maskz_loadu_epi32(
                      avx512_first(rest > j * VECTOR ? rest - j * VECTOR : 0), x + j * VECTOR);
        part[j] = _mm512_cmpgt_epi32_mask(avx512_key(value), bound);
    }
    return avx512_join(part);
}

/* Fetches the values of the list's entries from `from` on. */
AVX512 static inline void avx512_fetch(
    const float *x, uint32_t position, size_t from, struct sparse *list)
{
    const __m512i base = _mm512_set1_epi32((int)position);
    for (size_t i = from; i < list->count; i += VECTOR) {
        const __m512i index = _mm512_sub_epi32(_mm512_loadu_si512(list->position + i), base);
        const __m512 value = _mm512_mask_i32gather_ps(
            _mm512_setzero_ps(), avx512_first(list->count - i), index, x, sizeof *x);
        _mm512_storeu_ps(list->value + i, value);
    }
}

AVX512 static void avx512_collect(
    const float *x, size_t length, uint32_t least, uint32_t position, struct sparse *list)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    const size_t from = list->count;
    uint32_t *end = list->position + from;
    size_t i = 0;
    for (; i + PICK_WORD <= length; i += PICK_WORD) {
        const uint64_t marks = avx512_marks(x + i, PICK_WORD, NULL, below);
        end += avx512_spread(marks, position + (uint32_t)i, end);
    }
    if (i < length) {
        const uint64_t marks = avx512_marks(x + i, length - i, NULL, below);
        end += avx512_spread(marks, position + (uint32_t)i, end);
    }
    list->count = (size_t)(end - list->position);
    avx512_fetch(x, position, from, list);
}

AVX512 static void avx512_sieve(const float *x, size_t length, const struct pick_pattern *pattern,
    uint32_t position, struct sparse *list)
{
    const __m512i none = _mm512_setzero_si512();
    const uint32_t step = PICK_WORD % pattern->period;
    const size_t from = list->count;
    uint32_t *end = list->position + from;
    uint32_t phase = pattern->phase;
    for (size_t i = 0; i < length; i += PICK_WORD) {
        const uint64_t marks = avx512_marks(x + i, length - i, pattern->below + phase, none);
        end += avx512_spread(marks, position + (uint32_t)i, end);
        phase += step;
        phase -= phase >= pattern->period ? pattern->period : 0;
    }
    list->count = (size_t)(end - list->position);
    avx512_fetch(x, position, from, list);
}

AVX512 static inline size_t avx512_count(const float *x, size_t n, uint32_t least)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    size_t count = 0;
    for (size_t i = 0; i < n; i += PICK_WORD) {
        count += (size_t)_mm_popcnt_u64(avx512_marks(x + i, n - i, NULL, below));
    }
    return count;
}

/* Appends those entries first..first + 15 of a list that are in the mask. */
AVX512 static inline void avx512_append(
    const struct sparse *list, size_t first, __mmask16 mask, struct sparse *out)
{
    const unsigned count = (unsigned)_mm_popcnt_u32(mask);
    const __mmask16 some = (__mmask16)_bzhi_u32(0xffff, count);
    const __m512i position = _mm512_maskz_loadu_epi32(mask, list->position + first);
    const __m512i value = _mm512_maskz_loadu_epi32(mask, list->value + first);
    _mm512_mask_storeu_epi32(
        out->position + out->count, some, _mm512_maskz_compress_epi32(mask, position));
    _mm512_mask_storeu_epi32(
        out->value + out->count, some, _mm512_maskz_compress_epi32(mask, value));
    out->count += count;
}

/* Up to 16 entries: each one's rank is the number of those that beat it. */
AVX512 static inline uint32_t avx512_best_few(
    const struct sparse *list, size_t k, struct sparse *out)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i key =
        avx512_key(_mm512_maskz_loadu_epi32(avx512_first(list->count), list->value));
    const __m512i less = _mm512_sub_epi32(key, one);
    __m512i rank = _mm512_setzero_si512();
    for (int j = 0; j < VECTOR; j++) {
        /* Entry j beats an earlier one if it is larger, a later one if it is not smaller. */
        const __mmask16 later = (__mmask16)(0xfffeu << j);
        const __m512i bar = _mm512_mask_blend_epi32(later, key, less);
        const __m512i rival = _mm512_permutexvar_epi32(_mm512_set1_epi32(j), key);
        rank = _mm512_mask_add_epi32(rank, _mm512_cmpgt_epi32_mask(rival, bar), rank, one);
    }
    avx512_append(list, 0, _mm512_cmplt_epi32_mask(rank, _mm512_set1_epi32((int)k)), out);
    const __mmask16 last = _mm512_cmpeq_epi32_mask(rank, _mm512_set1_epi32((int)k - 1));
    return (uint32_t)_mm_cvtsi128_si32(
        _mm512_castsi512_si128(_mm512_maskz_compress_epi32(last, key)));
}

AVX512 static uint32_t avx512_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    if (list->count <= VECTOR) {
        return avx512_best_few(list, k, out);
    }
    struct select_cut cut =
        select_bisect_near(list->value, list->count, k, least, likely, avx512_count);
    if (cut.ties != SELECT_ALL) {
        select_filter(list, &cut, out, k);
        return cut.key;
    }
    const __m512i below = _mm512_set1_epi32((int)cut.key - 1);
    for (size_t i = 0; i < list->count; i += VECTOR) {
        const __m512i value =
            _mm512_maskz_loadu_epi32(avx512_first(list->count - i), list->value + i);
        avx512_append(list, i, _mm512_cmpgt_epi32_mask(avx512_key(value), below), out);
    }
    return cut.key;
}

const struct pick_ops pick_avx512 = {
    .collect = avx512_collect,
    .sieve = avx512_sieve,
    .best = avx512_best,
};
#endif
