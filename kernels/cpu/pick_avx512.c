/* Picking with AVX-512, for x86-64 processors that have it with VBMI2. */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/pick.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

enum { VECTOR = 16, VECTORS = PICK_WORD / VECTOR };

/* Elements of a word that are written without a look at their number. */
enum { UNSEEN = 4 };

AVX512 static inline __m512i avx512_key(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff));
}

/* The first `rest` lanes, all if there are so many. */
AVX512 static inline __mmask16 avx512_first(size_t rest)
{
    return (__mmask16)_bzhi_u32(0xffff, rest < VECTOR ? (unsigned)rest : VECTOR);
}

/* The sign bits of four vectors, in the order of their lanes. */
AVX512 static inline uint64_t avx512_signs(const __m512i x[VECTORS])
{
    return _mm512_kunpackd(_mm512_kunpackw(_mm512_movepi32_mask(x[3]), _mm512_movepi32_mask(x[2])),
        _mm512_kunpackw(_mm512_movepi32_mask(x[1]), _mm512_movepi32_mask(x[0])));
}

/* The elements of one word whose keys are above their bound, pattern's or, without one, `below`;
 * `rest` elements exist. */
AVX512 static inline uint64_t avx512_word(
    const float *x, size_t rest, const int32_t *pattern, __m512i below)
{
    __m512i room[VECTORS];
    for (unsigned j = 0; j < VECTORS; j++) {
        const size_t left = rest > j * VECTOR ? rest - j * VECTOR : 0;
        const __m512i value = rest >= PICK_WORD
                                  ? _mm512_loadu_si512(x + j * VECTOR)
                                  : _mm512_maskz_loadu_epi32(avx512_first(left), x + j * VECTOR);
        const __m512i bound = pattern != NULL ? _mm512_loadu_si512(pattern + j * VECTOR) : below;
        room[j] = _mm512_sub_epi32(bound, avx512_key(value)); /* negative: above the bound */
    }
    return avx512_signs(room);
}

AVX512 static void avx512_mark(const float *x, size_t length, uint32_t least, uint64_t *marks)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    for (size_t i = 0; i < length; i += PICK_WORD) {
        *marks++ = avx512_word(x + i, length - i, NULL, below);
    }
}

AVX512 static void avx512_sieve(
    const float *x, size_t length, const struct pick_pattern *pattern, uint64_t *marks)
{
    const __m512i none = _mm512_setzero_si512();
    const uint32_t step = PICK_WORD % pattern->period;
    uint32_t phase = pattern->phase;
    for (size_t i = 0; i < length; i += PICK_WORD) {
        *marks++ = avx512_word(x + i, length - i, pattern->below + phase, none);
        phase += step;
        phase -= phase >= pattern->period ? pattern->period : 0;
    }
}

/* Bit w: word w has marks. */
AVX512 static inline uint64_t avx512_marked(const uint64_t *marks, unsigned words)
{
    uint64_t marked = 0;
    for (unsigned w = 0; w < words; w += 8) {
        const __mmask8 some = (__mmask8)_bzhi_u32(0xff, words - w < 8 ? words - w : 8);
        const __m512i part = _mm512_maskz_loadu_epi64(some, marks + w);
        marked |= (uint64_t)_mm512_test_epi64_mask(part, part) << w;
    }
    return marked;
}

/* Positions of the two lowest marks. */
AVX512 static inline uint64_t avx512_two(uint64_t mark, uint64_t base)
{
    return (_tzcnt_u64(mark) | _tzcnt_u64(_blsr_u64(mark)) << 32) + base;
}

/* Appends the positions of marked elements; returns the new count. Few words have more than four:
 * so many are written without a look at the mask, as a branch on it would be mispredicted too
 * often. An exhausted mask writes what is not counted. */
AVX512 static inline size_t avx512_positions(
    unsigned words, const uint64_t *marks, uint32_t first, uint32_t *position, size_t count)
{
    for (uint64_t left = avx512_marked(marks, words); left != 0; left = _blsr_u64(left)) {
        const unsigned w = (unsigned)_tzcnt_u64(left);
        const uint64_t base = (first + w * PICK_WORD) * UINT64_C(0x100000001);
        uint64_t mark = marks[w];
        const size_t end = count + (size_t)_mm_popcnt_u64(mark);
        do {
            for (unsigned i = 0; i < UNSEEN; i += 2) {
                const uint64_t two = avx512_two(mark, base);
                memcpy(position + count, &two, sizeof two);
                mark = _blsr_u64(_blsr_u64(mark));
                count += 2;
            }
        } while (__builtin_expect(count < end, 0));
        count = end;
    }
    return count;
}

AVX512 static void avx512_list(
    const float *x, unsigned words, const uint64_t *marks, uint32_t position, struct sparse *list)
{
    const __m512i base = _mm512_set1_epi32((int)position);
    const size_t from = list->count;
    list->count = avx512_positions(words, marks, position, list->position, from);
    for (size_t i = from; i < list->count; i += VECTOR) {
        const __m512i at = _mm512_sub_epi32(_mm512_loadu_si512(list->position + i), base);
        const __m512 value = _mm512_mask_i32gather_ps(
            _mm512_setzero_ps(), avx512_first(list->count - i), at, x, sizeof *x);
        _mm512_storeu_ps(list->value + i, value);
    }
}

AVX512 static inline size_t avx512_count(const float *x, size_t n, uint32_t least)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    size_t count = 0;
    for (size_t i = 0; i < n; i += PICK_WORD) {
        count += (size_t)_mm_popcnt_u64(avx512_word(x + i, n - i, NULL, below));
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
    .mark = avx512_mark,
    .sieve = avx512_sieve,
    .list = avx512_list,
    .best = avx512_best,
};
#endif
