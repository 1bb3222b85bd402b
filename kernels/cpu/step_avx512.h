/*
 * The parts of a step over a chunk's words with AVX-512: the sum that is added to a word, the
 * ledger's sums of it, its candidates. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_STEP_AVX512_H
#define ADTOPK_KERNELS_STEP_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/word_avx512.h"

/* The functions of a step, and those that call them. */
#define STEP_AVX512_TARGET                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt,"        \
                          "prfchw")))
#define STEP_AVX512 STEP_AVX512_TARGET __attribute__((always_inline)) static inline

/* How many bytes ahead of use memory is fetched. It is a word of floats more than 4 KB, because a
 * store delays accesses at the same offset of another page. */
enum { AHEAD_BYTES = 4096 + CHUNK_WORD * 4, LINE_BYTES = 64 };

/* If it is wanted, fetches one gradient's elements that are needed soon. */
STEP_AVX512 void avx512_fetch(bool wanted, const void *gradient, enum dtype dtype, uint64_t first)
{
    if (!wanted) {
        return;
    }
    const size_t size = dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *const ahead = (const char *)gradient + first * size + AHEAD_BYTES;
    for (size_t i = 0; i < CHUNK_WORD * size; i += LINE_BYTES) {
        __builtin_prefetch(ahead + i, 0, 3);
    }
}

/* The sum of all gradients' elements of one word. */
STEP_AVX512 struct avx512_word avx512_gather_word(
    const struct gradients *gradients, enum dtype dtype, uint64_t first)
{
    struct avx512_word total;
    for (unsigned j = 0; j < VECTORS; j++) {
        total.x[j] = _mm512_set1_ps(-0.0f);
    }
    for (unsigned r = 0; r < gradients->count; r++) {
        const void *const gradient = gradients->each[r];
        if (gradient == NULL) {
            continue;
        }
        avx512_fetch(gradients->ahead, gradient, dtype, first);
        const struct avx512_word word = avx512_elements(gradient, dtype, first);
        for (unsigned j = 0; j < VECTORS; j++) {
            total.x[j] = _mm512_add_ps(total.x[j], word.x[j]);
        }
    }
    return total;
}

/* What a step adds: words in memory, one or two gradients, or the sum of any number. */
enum avx512_kind { KIND_MEMORY, KIND_ONE, KIND_TWO, KIND_ALL };

/* Where it lies, from the step's first element on. */
struct avx512_source {
    const float *sum;
    struct gradients gradients;
    const void *one;
    const void *two;
    uint64_t first;
};

static inline struct avx512_source avx512_source_of(const struct chunk *chunk)
{
    const struct gradients *const from = &chunk->gradients;
    return (struct avx512_source){.sum = chunk->sum,
        .gradients = *from,
        .one = from->count > 0 ? from->each[0] : NULL,
        .two = from->count > 1 ? from->each[1] : NULL,
        .first = chunk_next(chunk)};
}

static inline enum avx512_kind avx512_kind_of(const struct chunk *chunk)
{
    const struct avx512_source source = avx512_source_of(chunk);
    if (source.sum != NULL) {
        return KIND_MEMORY;
    }
    if (source.gradients.count == 1 && source.one != NULL) {
        return KIND_ONE;
    }
    return source.gradients.count == 2 && source.one != NULL && source.two != NULL ? KIND_TWO
                                                                                   : KIND_ALL;
}

/* The step's word that begins `done` elements behind its first one, and all of the kind to come. */
STEP_AVX512 struct avx512_word avx512_source_word(
    const struct avx512_source *source, enum avx512_kind kind, enum dtype dtype, unsigned done)
{
    const uint64_t first = source->first + done;
    const bool ahead = source->gradients.ahead;
    if (kind == KIND_MEMORY) {
        avx512_fetch(ahead, source->sum, DTYPE_F32, done);
        return avx512_load_word(source->sum + done);
    }
    if (kind == KIND_ALL) {
        return avx512_gather_word(&source->gradients, dtype, first);
    }
    avx512_fetch(ahead, source->one, dtype, first);
    struct avx512_word word = avx512_elements(source->one, dtype, first);
    if (kind == KIND_TWO) {
        avx512_fetch(ahead, source->two, dtype, first);
        const struct avx512_word two = avx512_elements(source->two, dtype, first);
        for (unsigned j = 0; j < VECTORS; j++) {
            word.x[j] = _mm512_add_ps(word.x[j], two.x[j]);
        }
    }
    return word;
}

/* The smallest key that these kernels treat as not finite: the bits of 2^120. */
enum { NOT_FINITE_KEY = (127 + 120) << 23 };

STEP_AVX512 bool avx512_is_finite(const struct avx512_word *word)
{
    const __m512i least = _mm512_set1_epi32(NOT_FINITE_KEY);
    const __m512i a = _mm512_max_epi32(avx512_key(word->x[0]), avx512_key(word->x[1]));
    const __m512i b = _mm512_max_epi32(avx512_key(word->x[2]), avx512_key(word->x[3]));
    return _mm512_cmpge_epi32_mask(_mm512_max_epi32(a, b), least) == 0;
}

/* The same of a word of halves; in f16 all that is finite is. */
STEP_AVX512 bool avx512_is_finite_half(const uint16_t *half, enum dtype dtype)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    const __m512i least =
        _mm512_set1_epi16(dtype == DTYPE_F16 ? 0x7c00 : (short)(NOT_FINITE_KEY >> 16));
    const __m512i a = _mm512_and_si512(_mm512_loadu_si512(half), magnitude);
    const __m512i b = _mm512_and_si512(_mm512_loadu_si512(half + CHUNK_WORD / 2), magnitude);
    return _mm512_cmpge_epi16_mask(_mm512_max_epi16(a, b), least) == 0;
}

/* Replaces elements that are not finite by -0.0, which adds nothing; returns how many there were.
 */
STEP_AVX512 unsigned avx512_leave_out(struct avx512_word *sum)
{
    const __m512i least = _mm512_set1_epi32(NOT_FINITE_KEY);
    unsigned left_out = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __mmask16 bad = _mm512_cmpge_epi32_mask(avx512_key(sum->x[j]), least);
        sum->x[j] = _mm512_mask_mov_ps(sum->x[j], bad, _mm512_set1_ps(-0.0f));
        left_out += (unsigned)_mm_popcnt_u32(bad);
    }
    return left_out;
}

/* The source's word without elements that are not finite; *left_out grows by their number. */
STEP_AVX512 struct avx512_word avx512_addend(const struct avx512_source *source,
    enum avx512_kind kind, enum dtype dtype, unsigned done, unsigned *left_out)
{
    struct avx512_word word = avx512_source_word(source, kind, dtype, done);
    const bool finite =
        kind == KIND_ONE && dtype != DTYPE_F32
            ? avx512_is_finite_half((const uint16_t *)source->one + source->first + done, dtype)
            : avx512_is_finite(&word);
    if (__builtin_expect(!finite, false)) {
        *left_out += avx512_leave_out(&word);
    }
    return word;
}

/* The sums of a run that are no doubles yet, in registers. */
struct avx512_run {
    __m512 positive;
    __m512 negative;
};

STEP_AVX512 struct avx512_run avx512_run_of(const struct ledger_lanes *lanes)
{
    return (struct avx512_run){_mm512_loadu_ps(lanes->positive), _mm512_loadu_ps(lanes->negative)};
}

/* Puts them back. */
STEP_AVX512 void avx512_run_keep(const struct avx512_run *run, struct ledger_lanes *lanes)
{
    _mm512_storeu_ps(lanes->positive, run->positive);
    _mm512_storeu_ps(lanes->negative, run->negative);
}

STEP_AVX512 void avx512_grow(double lane[LEDGER_LANES], __m512 by)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(by));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(by, 1));
    _mm512_storeu_pd(lane, _mm512_add_pd(_mm512_loadu_pd(lane), low));
    _mm512_storeu_pd(lane + 8, _mm512_add_pd(_mm512_loadu_pd(lane + 8), high));
}

STEP_AVX512 void avx512_flush(struct avx512_run *run, struct ledger_lanes *lanes)
{
    avx512_grow(lanes->plain, _mm512_add_ps(run->positive, run->negative));
    avx512_grow(lanes->hashed, _mm512_sub_ps(run->positive, run->negative));
    run->positive = run->negative = _mm512_setzero_ps();
}

/* Takes the chunk's word of that number in. signs: of the chunk's words. */
STEP_AVX512 void avx512_ledger(const struct avx512_word *sum, uint64_t signs, unsigned number,
    struct avx512_run *run, struct ledger_lanes *lanes)
{
    const __mmask16 swap = (__mmask16)(0 - ((signs >> number) & 1));
    const __m512 even = _mm512_add_ps(sum->x[0], sum->x[3]);
    const __m512 odd = _mm512_add_ps(sum->x[1], sum->x[2]);
    run->positive = _mm512_add_ps(run->positive, _mm512_mask_mov_ps(even, swap, odd));
    run->negative = _mm512_add_ps(run->negative, _mm512_mask_mov_ps(odd, swap, even));
    if (number % LEDGER_RUN == LEDGER_RUN - 1) {
        avx512_flush(run, lanes);
    }
}

/* If it is wanted, fetches where a list's next entries go. */
STEP_AVX512 void avx512_fetch_list(bool wanted, const struct sparse *list, size_t count)
{
    if (wanted) {
        __builtin_prefetch(list->position + count + CHUNK_WORD, 1, 3);
        __builtin_prefetch(list->value + count + CHUNK_WORD, 1, 3);
    }
}

/* A word's elements, of their numbers in it. */
STEP_AVX512 __m512 avx512_pick(const struct avx512_word *word, __m512i at)
{
    const __m512 low = _mm512_permutex2var_ps(word->x[0], at, word->x[1]);
    const __m512 high = _mm512_permutex2var_ps(word->x[2], at, word->x[3]);
    const __mmask16 is_high = _mm512_test_epi32_mask(at, _mm512_set1_epi32(2 * VECTOR));
    return _mm512_mask_mov_ps(low, is_high, high);
}

/* The same of bfloat16. */
STEP_AVX512 __m512 avx512_pick_of_half(const __m512i half[2], __m512i at)
{
    return _mm512_castsi512_ps(
        _mm512_maskz_permutex2var_epi16(0xaaaaaaaau, half[0], _mm512_slli_epi32(at, 16), half[1]));
}

/* Appends a word's marked elements to a list of `count`; returns the new count. A vector at a time,
 * and few words have more than one: a branch on the mask would be mispredicted too often. Lanes
 * behind the last one get the word's first element, which is not counted. The word is in f32 or,
 * not NULL, in bf16. */
STEP_AVX512 size_t avx512_pack_any(const struct avx512_word *word, const __m512i half[2],
    __mmask64 mask, uint32_t position, const struct sparse *list, size_t count)
{
    const __m512i in_byte = _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130,
        0x2f2e2d2c2b2a2928, 0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
        0x0f0e0d0c0b0a0908, 0x0706050403020100);
    const size_t end = count + (size_t)_mm_popcnt_u64(_cvtmask64_u64(mask));
    __m512i marked = _mm512_maskz_compress_epi8(mask, in_byte);
    do {
        const __m512i at = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(marked));
        _mm512_storeu_si512(
            list->position + count, _mm512_add_epi32(at, _mm512_set1_epi32((int)position)));
        _mm512_storeu_ps(list->value + count,
            half != NULL ? avx512_pick_of_half(half, at) : avx512_pick(word, at));
        marked = _mm512_alignr_epi64(marked, marked, 2);
        count += VECTOR;
    } while (__builtin_expect(count < end, false));
    return end;
}

STEP_AVX512 size_t avx512_pack(const struct avx512_word *word, __mmask64 mask, uint32_t position,
    const struct sparse *list, size_t count)
{
    return avx512_pack_any(word, NULL, mask, position, list, count);
}

STEP_AVX512 size_t avx512_pack_half(const __m512i half[2], __mmask64 mask, uint32_t position,
    const struct sparse *list, size_t count)
{
    return avx512_pack_any(NULL, half, mask, position, list, count);
}

#endif
