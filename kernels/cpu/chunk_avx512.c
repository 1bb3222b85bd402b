/* The chunk operations with AVX-512, for x86-64 processors that have it and VBMI2 (Ice Lake, Zen 4
 * and later). */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

#define AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt,"        \
                          "prfchw")))

/* Elements of one vector, vectors of one word; how far ahead of use memory is fetched. */
enum { VECTOR = 16, VECTORS = CHUNK_WORD / VECTOR, AHEAD = 1024, LINE_BYTES = 64 };

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

/* Elements i .. i + 16 - 1 of one gradient. */
AVX512 static inline __m512 avx512_elements(const void *gradient, enum dtype dtype, uint64_t i)
{
    const void *const half = (const uint16_t *)gradient + i;
    switch (dtype) {
    case DTYPE_F16: return _mm512_cvtph_ps(_mm256_loadu_si256(half));
    case DTYPE_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(half)), 16));
    default: return _mm512_loadu_ps((const float *)gradient + i);
    }
}

/* Fetches one gradient's elements that are needed soon. */
AVX512 static inline void avx512_fetch(const void *gradient, enum dtype dtype, uint64_t first)
{
    const size_t size = dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *const ahead = (const char *)gradient + (first + AHEAD) * size;
    for (size_t i = 0; i < CHUNK_WORD * size; i += LINE_BYTES) {
        __builtin_prefetch(ahead + i, 0, 3);
    }
}

/* The sum of all gradients' elements of one word, in registers until it is complete. */
AVX512 static inline void avx512_gather_word(
    const struct gradients *gradients, uint64_t first, float sum[CHUNK_WORD])
{
    __m512 total[VECTORS];
    for (unsigned j = 0; j < VECTORS; j++) {
        total[j] = _mm512_set1_ps(-0.0f);
    }
    for (unsigned r = 0; r < gradients->count; r++) {
        const void *const gradient = gradients->each[r];
        if (gradient == NULL) {
            continue;
        }
        avx512_fetch(gradient, gradients->dtype, first);
        for (unsigned j = 0; j < VECTORS; j++) {
            total[j] = _mm512_add_ps(
                total[j], avx512_elements(gradient, gradients->dtype, first + j * VECTOR));
        }
    }
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm512_storeu_ps(sum + j * VECTOR, total[j]);
    }
}

AVX512 static void avx512_gather(
    const struct gradients *gradients, uint64_t first, unsigned length, float *sum)
{
    const unsigned whole = length - length % CHUNK_WORD;
    for (unsigned i = 0; i < whole; i += CHUNK_WORD) {
        avx512_gather_word(gradients, first + i, sum + i);
    }
    gather_all(gradients, first + whole, length - whole, sum + whole);
}

AVX512 static inline __m512i avx512_key(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

AVX512 static inline void avx512_prefetch(const float *acc)
{
    for (unsigned i = 0; i < CHUNK_WORD; i += VECTOR) {
        __builtin_prefetch(acc + AHEAD + i, 1, 3);
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
    float *const old = journal_word(journal, word);
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

AVX512 static inline uint64_t avx512_mark(__m512 x, __m512i below)
{
    return _mm512_cmpgt_epi32_mask(avx512_key(x), below);
}

/* The bounds of vector j: a pattern's or, without one, `below`. */
AVX512 static inline __m512i avx512_bound(const int32_t *pattern, unsigned j, __m512i below)
{
    return pattern != NULL ? _mm512_loadu_si512(pattern + j * VECTOR) : below;
}

AVX512 static inline uint64_t avx512_marks(const float *x, const int32_t *pattern, __m512i below)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        mask |= avx512_mark(_mm512_loadu_ps(x + j * VECTOR), avx512_bound(pattern, j, below))
                << (j * VECTOR);
    }
    return mask;
}

/* Adds one word of finite elements; returns its mask. */
AVX512 static inline uint64_t avx512_word(
    float *acc, const float *sum, const int32_t *pattern, __m512i below)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m512 a =
            _mm512_add_ps(_mm512_loadu_ps(acc + j * VECTOR), _mm512_loadu_ps(sum + j * VECTOR));
        _mm512_storeu_ps(acc + j * VECTOR, a);
        mask |= avx512_mark(a, avx512_bound(pattern, j, below)) << (j * VECTOR);
    }
    return mask;
}

/* Appends a word's marked elements to a list of `count`; returns the new count. Few words have more
 * than three: so many are written without a look at the mask, as a branch on it would be
 * mispredicted too often. An exhausted mask writes the word's first element, which is not counted.
 */
AVX512 static inline size_t avx512_pack(
    const float *x, uint64_t mask, uint32_t position, const struct sparse *list, size_t count)
{
    const size_t end = count + (size_t)_mm_popcnt_u64(mask);
    do {
        for (unsigned i = 0; i < CHUNK_SLACK; i++) {
            const unsigned at = (unsigned)_tzcnt_u64(mask) & (CHUNK_WORD - 1);
            list->position[count + i] = position + at;
            list->value[count + i] = x[at];
            mask = _blsr_u64(mask);
        }
        count += CHUNK_SLACK;
    } while (count < end);
    return end;
}

/* Lanes of the vector at entry i that are below n. */
AVX512 static inline __mmask16 avx512_valid(size_t i, size_t n)
{
    return (__mmask16)_bzhi_u32(0xffff, n - i < VECTOR ? (unsigned)(n - i) : VECTOR);
}

/* common: one f32 gradient, as it lies in memory, and one bound. */
AVX512 static inline __attribute__((always_inline)) void avx512_add_words(
    struct chunk *chunk, unsigned words, bool common)
{
    const struct chunk_bound bound = *chunk->bound;
    const __m512i below = _mm512_set1_epi32((int)bound.least - 1);
    const uint64_t signs = ledger_word_signs(chunk->number);
    const uint64_t first = chunk_next(chunk);
    struct avx512_run run = {
        _mm512_loadu_ps(chunk->lanes.positive), _mm512_loadu_ps(chunk->lanes.negative)};
    const struct sparse none = {0};
    const struct sparse list = chunk->candidate != NULL ? *chunk->candidate : none;
    size_t count = list.count;
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        float gathered[CHUNK_WORD];
        const float *sum = gathered;
        const unsigned word = chunk->word + w;
        float filtered[CHUNK_WORD];
        avx512_prefetch(acc);
        if (!common && chunk->sum == NULL) {
            avx512_gather_word(&chunk->gradients, first + w * CHUNK_WORD, gathered);
        } else {
            sum = chunk->sum + w * CHUNK_WORD;
            avx512_fetch(sum, DTYPE_F32, 0);
        }
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
        const int32_t *pattern = common ? NULL : chunk_pattern(&bound, &chunk->phase);
        const uint64_t mask = avx512_word(acc, sum, pattern, below);
        if (list.position != NULL) {
            __builtin_prefetch(list.position + count + CHUNK_WORD, 1, 3);
            __builtin_prefetch(list.value + count + CHUNK_WORD, 1, 3);
            count = avx512_pack(acc, mask, chunk->position + w * CHUNK_WORD, &list, count);
        }
    }
    _mm512_storeu_ps(chunk->lanes.positive, run.positive);
    _mm512_storeu_ps(chunk->lanes.negative, run.negative);
    if (chunk->candidate != NULL) {
        chunk->candidate->count = count;
    }
    chunk_move(chunk, words);
}

AVX512 static void avx512_add(struct chunk *chunk, unsigned words)
{
    if (chunk->sum != NULL && chunk->bound->pattern == NULL) {
        avx512_add_words(chunk, words, true);
    } else {
        avx512_add_words(chunk, words, false);
    }
}

AVX512 static void avx512_sums(struct chunk *chunk, double sums[2])
{
    ledger_total(&chunk->lanes, chunk->number, sums);
}

AVX512 static void avx512_collect(const float *x, unsigned words, const struct chunk_bound *bound,
    uint32_t position, struct sparse *list)
{
    uint32_t phase = bound->phase;
    const __m512i below = _mm512_set1_epi32((int)bound->least - 1);
    size_t count = list->count;
    for (unsigned w = 0; w < words; w++, x += CHUNK_WORD) {
        const uint64_t mask = avx512_marks(x, chunk_pattern(bound, &phase), below);
        count = avx512_pack(x, mask, position + w * CHUNK_WORD, list, count);
    }
    list->count = count;
}

/* The vector at entry i of n; zeros behind the end. */
AVX512 static inline __m512i avx512_load(const void *x, size_t i, size_t n)
{
    const int32_t *const at = (const int32_t *)x + i;
    return n - i >= VECTOR ? _mm512_loadu_si512(at)
                           : _mm512_maskz_loadu_epi32(avx512_valid(i, n), at);
}

/* Stores `more` lanes, and if there is room the others too, which is faster. */
AVX512 static inline void avx512_store(void *to, __m512i lanes, unsigned more, bool room)
{
    if (room) {
        _mm512_storeu_si512(to, lanes);
    } else {
        _mm512_mask_storeu_epi32(to, (__mmask16)_bzhi_u32(0xffff, more), lanes);
    }
}

/* Appends those of a list's entries i..i + 15 that are in the mask. */
AVX512 static inline void avx512_append(
    const struct sparse *list, size_t i, __mmask16 kept, struct sparse *out)
{
    const __m512i value = avx512_load(list->value, i, list->count);
    const __m512i position = avx512_load(list->position, i, list->count);
    const unsigned more = (unsigned)_mm_popcnt_u32(kept);
    const bool room = out->capacity >= out->count + VECTOR;
    avx512_store(out->value + out->count, _mm512_maskz_compress_epi32(kept, value), more, room);
    avx512_store(
        out->position + out->count, _mm512_maskz_compress_epi32(kept, position), more, room);
    out->count += more;
}

AVX512 static void avx512_filter(const struct sparse *list, uint32_t least, struct sparse *out)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    const size_t n = list->count;
    const struct sparse from = *list; /* out may be the list */
    struct sparse to = *out;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(from.value, i, n)));
        avx512_append(&from, i, _mm512_mask_cmpgt_epi32_mask(avx512_valid(i, n), key, below), &to);
    }
    out->count = to.count;
}

AVX512 static size_t avx512_count(const float *x, size_t n, uint32_t least)
{
    const __m512i bound = _mm512_set1_epi32((int)least);
    const __m512i one = _mm512_set1_epi32(1);
    const size_t whole = n - n % VECTOR;
    __m512i counts = _mm512_setzero_si512();
    for (size_t i = 0; i < whole; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_loadu_ps(x + i));
        counts = _mm512_mask_add_epi32(counts, _mm512_cmpge_epi32_mask(key, bound), counts, one);
    }
    if (whole < n) {
        const __mmask16 valid = avx512_valid(whole, n);
        const __m512i key = avx512_key(_mm512_maskz_loadu_ps(valid, x + whole));
        counts = _mm512_mask_add_epi32(
            counts, _mm512_mask_cmpge_epi32_mask(valid, key, bound), counts, one);
    }
    return (uint32_t)_mm512_reduce_add_epi32(counts);
}

AVX512 static size_t avx512_between(
    const float *x, size_t n, uint32_t low, uint32_t high, float *out)
{
    const __m512i base = _mm512_set1_epi32((int)low);
    const __m512i width = _mm512_set1_epi32((int)(high - low));
    size_t count = 0;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __mmask16 valid = avx512_valid(i, n);
        const __m512 value = _mm512_maskz_loadu_ps(valid, x + i);
        const __m512i offset = _mm512_sub_epi32(avx512_key(value), base);
        const __mmask16 kept = _mm512_mask_cmplt_epu32_mask(valid, offset, width);
        const unsigned more = (unsigned)_mm_popcnt_u32(kept);
        _mm512_mask_storeu_ps(
            out + count, (__mmask16)_bzhi_u32(0xffff, more), _mm512_maskz_compress_ps(kept, value));
        count += more;
    }
    return count;
}

AVX512 static struct select_split avx512_split(const float *x, size_t n, uint32_t middle)
{
    const __m512i bound = _mm512_set1_epi32((int)middle);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i counts = _mm512_setzero_si512();
    __m512i least = _mm512_set1_epi32(INT32_MAX);
    __m512i most = counts;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(x, i, n)));
        const __mmask16 reached = _mm512_cmpge_epi32_mask(key, bound); /* never behind the end */
        counts = _mm512_mask_add_epi32(counts, reached, counts, one);
        least = _mm512_mask_min_epi32(least, reached, least, key);
        most = _mm512_mask_max_epi32(most, _knot_mask16(reached), most, key);
    }
    return (struct select_split){.count = (uint32_t)_mm512_reduce_add_epi32(counts),
        .least = (uint32_t)_mm512_reduce_min_epi32(least),
        .most = (uint32_t)_mm512_reduce_max_epi32(most)};
}

AVX512 static struct select_cut avx512_cut(const float *x, size_t n, size_t k)
{
    return select_bisect(x, n, k, avx512_split);
}

/* The number of elements of a short list whose key is at least `least`. */
AVX512 static inline size_t avx512_count_few(const float *x, size_t n, uint32_t least)
{
    const __m512i below = _mm512_set1_epi32((int)least - 1);
    size_t count = 0;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(x, i, n)));
        count += (size_t)_mm_popcnt_u32(_mm512_cmpgt_epi32_mask(key, below));
    }
    return count;
}

/* Up to 16 entries: each one's rank is the number of those that beat it. */
AVX512 static inline uint32_t avx512_best_few(
    const struct sparse *list, size_t k, struct sparse *out)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(list->value, 0, list->count)));
    const __m512i less = _mm512_sub_epi32(key, one);
    __m512i rank = _mm512_setzero_si512();
    for (int j = 0; j < VECTOR; j++) {
        /* Entry j beats an earlier one if it is larger, a later one if it is not smaller. */
        const __mmask16 later = (__mmask16)(0xfffeu << j);
        const __m512i bar = _mm512_mask_blend_epi32(later, key, less);
        const __m512i rival = _mm512_permutexvar_epi32(_mm512_set1_epi32(j), key);
        rank = _mm512_mask_add_epi32(rank, _mm512_cmpgt_epi32_mask(rival, bar), rank, one);
    }
    const __m512i last = _mm512_set1_epi32((int)k - 1);
    avx512_append(list, 0, _mm512_cmple_epi32_mask(rank, last), out);
    return (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(
        _mm512_maskz_compress_epi32(_mm512_cmpeq_epi32_mask(rank, last), key)));
}

AVX512 static uint32_t avx512_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    if (list->count <= VECTOR) {
        return avx512_best_few(list, k, out);
    }
    struct select_cut cut = select_bisect_near(
        list->value, list->count, k, least, likely, avx512_count_few, avx512_split);
    if (cut.ties == SELECT_ALL) {
        avx512_filter(list, cut.key, out);
    } else {
        select_filter(list, &cut, out, k);
    }
    return cut.key;
}

extern const struct chunk_ops chunk_avx512;
const struct chunk_ops chunk_avx512 = {
    .name = "avx512",
    .supported = avx512_supported,
    .gather = avx512_gather,
    .add = avx512_add,
    .sums = avx512_sums,
    .collect = avx512_collect,
    .cut = avx512_cut,
    .best = avx512_best,
    .count = avx512_count,
    .between = avx512_between,
    .filter = avx512_filter,
};
#endif
