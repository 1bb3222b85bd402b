/* The chunk operations with AVX-512, for x86-64 processors that have it and VBMI2 (Ice Lake, Zen 4
 * and later). */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt,prfchw")))

/* Elements of one vector, vectors of one word; how far ahead of use memory is fetched. */
enum { VECTOR = 16, VECTORS = CHUNK_WORD / VECTOR, AHEAD = 1024 };

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

AVX512 static void avx512_gather(float *sum, const void *const *gradients, unsigned count,
    enum dtype dtype, uint64_t first, unsigned length)
{
    gather_all(sum, gradients, count, dtype, first, length);
}

AVX512 static inline __m512i avx512_key(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

AVX512 static inline void avx512_prefetch(const float *acc, const float *sum)
{
    for (unsigned i = 0; i < CHUNK_WORD; i += VECTOR) {
        __builtin_prefetch(acc + AHEAD + i, 1, 3);
        __builtin_prefetch(sum + AHEAD + i, 0, 3);
    }
}

AVX512 static inline bool avx512_all_finite(const float *sum)
{
    /* The smallest key that is not: the bits of 2^120. */
    const __m512i least = _mm512_set1_epi32((127 + 120) << 23);
    const __m512i a =
        _mm512_max_epi32(avx512_key(_mm512_loadu_ps(sum)), avx512_key(_mm512_loadu_ps(sum + 16)));
    const __m512i b = _mm512_max_epi32(
        avx512_key(_mm512_loadu_ps(sum + 32)), avx512_key(_mm512_loadu_ps(sum + 48)));
    return _mm512_cmpge_epi32_mask(_mm512_max_epi32(a, b), least) == 0;
}

AVX512 static inline void avx512_save(struct journal *journal, unsigned word, const float *acc)
{
    float *const old = journal->old + word * CHUNK_WORD;
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm512_storeu_ps(old + j * VECTOR, _mm512_loadu_ps(acc + j * VECTOR));
    }
    journal_save(journal, (word + 1) * CHUNK_WORD);
}

/* The sums of a run that are no doubles yet, in registers. */
struct avx512_run {
    __m512 positive;
    __m512 negative;
};

/* swap: the word's sign bit. It exchanges vectors instead of signs. */
AVX512 static inline void avx512_ledger(const float *x, uint64_t swap, struct avx512_run *run)
{
    const float *const up = x + VECTOR * (swap & 1);
    const float *const down = x - VECTOR * (swap & 1);
    const __m512 even = _mm512_add_ps(_mm512_loadu_ps(up), _mm512_loadu_ps(down + 48));
    const __m512 odd = _mm512_add_ps(_mm512_loadu_ps(down + 16), _mm512_loadu_ps(up + 32));
    run->positive = _mm512_add_ps(run->positive, even);
    run->negative = _mm512_add_ps(run->negative, odd);
}

AVX512 static inline void avx512_grow(double lane[LEDGER_LANES], __m512 by)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(by));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(by, 1));
    _mm512_storeu_pd(lane, _mm512_add_pd(_mm512_loadu_pd(lane), low));
    _mm512_storeu_pd(lane + 8, _mm512_add_pd(_mm512_loadu_pd(lane + 8), high));
}

AVX512 static inline void avx512_flush(struct avx512_run *run, struct ledger_lanes *lanes)
{
    avx512_grow(lanes->plain, _mm512_add_ps(run->positive, run->negative));
    avx512_grow(lanes->hashed, _mm512_sub_ps(run->positive, run->negative));
    run->positive = run->negative = _mm512_setzero_ps();
}

AVX512 static inline uint64_t avx512_mark(__m512 x, __m512i least)
{
    return _mm512_cmpge_epi32_mask(avx512_key(x), least);
}

AVX512 static inline uint64_t avx512_marks(const float *x, __m512i least)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        mask |= avx512_mark(_mm512_loadu_ps(x + j * VECTOR), least) << (j * VECTOR);
    }
    return mask;
}

/* Adds one word of finite elements; returns its mask. */
AVX512 static inline uint64_t avx512_word(float *acc, const float *sum, __m512i least)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m512 a =
            _mm512_add_ps(_mm512_loadu_ps(acc + j * VECTOR), _mm512_loadu_ps(sum + j * VECTOR));
        _mm512_storeu_ps(acc + j * VECTOR, a);
        mask |= avx512_mark(a, least) << (j * VECTOR);
    }
    return mask;
}

/* Where marked elements of up to a chunk are: word and number in it. All is written without a look
 * at the masks, as a branch on them would be mispredicted too often. */
struct avx512_found {
    size_t count;
    uint8_t number[CHUNK + CHUNK_WORD];
    uint8_t word[CHUNK + CHUNK_WORD];
};

AVX512 static inline void avx512_find(struct avx512_found *found, unsigned word, uint64_t mask)
{
    static const uint8_t numbers[CHUNK_WORD] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
        15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37,
        38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60,
        61, 62, 63};
    const __m512i number = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(numbers));
    _mm512_storeu_si512(found->number + found->count, number);
    _mm512_storeu_si512(found->word + found->count, _mm512_set1_epi8((char)word));
    found->count += (size_t)_mm_popcnt_u64(mask);
}

/* Lanes of the vector at entry i that are below n. */
AVX512 static inline __mmask16 avx512_valid(size_t i, size_t n)
{
    return (__mmask16)_bzhi_u32(0xffff, n - i < VECTOR ? (unsigned)(n - i) : VECTOR);
}

AVX512 static inline __m512i avx512_bytes(const uint8_t *bytes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

/* Appends what was found to a list; x and position: of word 0. */
AVX512 static void avx512_append(
    const struct avx512_found *found, const float *x, uint32_t position, struct sparse *list)
{
    const __m512i base = _mm512_set1_epi32((int)position);
    for (size_t i = 0; i < found->count; i += VECTOR) {
        const __mmask16 valid = avx512_valid(i, found->count);
        const __m512i word = _mm512_slli_epi32(avx512_bytes(found->word + i), 6);
        const __m512i at = _mm512_or_si512(word, avx512_bytes(found->number + i));
        const __m512 value =
            _mm512_mask_i32gather_ps(_mm512_setzero_ps(), valid, at, x, sizeof *x);
        const size_t to = list->count + i;
        _mm512_mask_storeu_epi32(list->position + to, valid, _mm512_add_epi32(base, at));
        _mm512_mask_storeu_ps(list->value + to, valid, value);
    }
    list->count += found->count;
}

AVX512 static void avx512_add(struct chunk *chunk, unsigned words)
{
    const __m512i least = _mm512_set1_epi32((int)chunk->least);
    const uint64_t signs = ledger_word_signs(chunk->number);
    const float *const home = chunk->acc;
    struct avx512_run run = {
        _mm512_loadu_ps(chunk->lanes.positive), _mm512_loadu_ps(chunk->lanes.negative)};
    struct avx512_found found;
    found.count = 0;
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        const float *sum = chunk->sum + w * CHUNK_WORD;
        const unsigned word = chunk->word + w;
        float filtered[CHUNK_WORD];
        avx512_prefetch(acc, sum);
        if (!avx512_all_finite(sum)) {
            chunk->nonfinite += chunk_filter(filtered, sum);
            sum = filtered;
        }
        if (chunk->journal != NULL) {
            avx512_save(chunk->journal, word, acc);
        }
        avx512_ledger(sum, signs >> word, &run);
        if (word % LEDGER_RUN == LEDGER_RUN - 1) {
            avx512_flush(&run, &chunk->lanes);
        }
        const uint64_t mask = avx512_word(acc, sum, least);
        if (chunk->candidate != NULL) {
            avx512_find(&found, w, mask);
        }
    }
    _mm512_storeu_ps(chunk->lanes.positive, run.positive);
    _mm512_storeu_ps(chunk->lanes.negative, run.negative);
    if (chunk->candidate != NULL) {
        avx512_append(&found, home, chunk->position, chunk->candidate);
    }
    chunk->acc += words * CHUNK_WORD;
    chunk->sum += words * CHUNK_WORD;
    chunk->position += words * CHUNK_WORD;
    chunk->word += words;
}

AVX512 static void avx512_collect(
    const float *x, unsigned words, uint32_t least, uint32_t position, struct sparse *list)
{
    const __m512i bound = _mm512_set1_epi32((int)least);
    struct avx512_found found;
    for (unsigned w = 0; w < words; w += CHUNK_WORDS) {
        const float *const first = x + w * CHUNK_WORD;
        found.count = 0;
        for (unsigned i = 0; i < CHUNK_WORDS && w + i < words; i++) {
            avx512_find(&found, i, avx512_marks(first + i * CHUNK_WORD, bound));
        }
        avx512_append(&found, first, position + w * CHUNK_WORD, list);
    }
}

AVX512 static void avx512_filter(const struct sparse *list, uint32_t least, struct sparse *out)
{
    const __m512i bound = _mm512_set1_epi32((int)least);
    size_t count = out->count;
    for (size_t i = 0; i < list->count; i += VECTOR) {
        const __mmask16 valid = avx512_valid(i, list->count);
        const __m512 value = _mm512_maskz_loadu_ps(valid, list->value + i);
        const __m512i position = _mm512_maskz_loadu_epi32(valid, list->position + i);
        const __mmask16 kept = _mm512_mask_cmpge_epi32_mask(valid, avx512_key(value), bound);
        const unsigned more = (unsigned)_mm_popcnt_u32(kept);
        const __mmask16 room = (__mmask16)_bzhi_u32(0xffff, more);
        _mm512_mask_storeu_ps(out->value + count, room, _mm512_maskz_compress_ps(kept, value));
        _mm512_mask_storeu_epi32(
            out->position + count, room, _mm512_maskz_compress_epi32(kept, position));
        count += more;
    }
    out->count = count;
}

AVX512 static inline size_t avx512_count(const float *x, size_t n, uint32_t least)
{
    const __m512i bound = _mm512_set1_epi32((int)least);
    size_t count = 0;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __mmask16 valid = avx512_valid(i, n);
        const __m512 value = _mm512_maskz_loadu_ps(valid, x + i);
        count += (size_t)_mm_popcnt_u32(
            _mm512_mask_cmpge_epi32_mask(valid, avx512_key(value), bound));
    }
    return count;
}

AVX512 static struct select_cut avx512_cut(const float *x, size_t n, size_t k)
{
    return select_bisect(x, n, k, avx512_count);
}

extern const struct chunk_ops chunk_avx512;
const struct chunk_ops chunk_avx512 = {
    .name = "avx512",
    .supported = avx512_supported,
    .gather = avx512_gather,
    .add = avx512_add,
    .collect = avx512_collect,
    .cut = avx512_cut,
    .filter = avx512_filter,
};
#endif
