/* The chunk operations with AVX-512, for x86-64 processors that have it and VBMI2 (Ice Lake, Zen 4
 * and later). */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/rounded_avx512.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/step_avx512.h"

#define AVX512 STEP_AVX512_TARGET

static bool chunk_avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

AVX512 static inline __attribute__((always_inline)) void avx512_gather_words(
    const struct gradients *gradients, enum dtype dtype, uint64_t first, unsigned n, float *sum)
{
    for (unsigned i = 0; i < n; i += CHUNK_WORD) {
        const struct avx512_word word = avx512_gather_word(gradients, dtype, first + i);
        avx512_store_word(sum + i, &word);
    }
}

AVX512 static void avx512_gather(
    const struct gradients *gradients, uint64_t first, unsigned length, float *sum)
{
    const unsigned whole = length - length % CHUNK_WORD;
    switch (gradients->dtype) {
    case DTYPE_F16: avx512_gather_words(gradients, DTYPE_F16, first, whole, sum); break;
    case DTYPE_BF16: avx512_gather_words(gradients, DTYPE_BF16, first, whole, sum); break;
    default: avx512_gather_words(gradients, DTYPE_F32, first, whole, sum);
    }
    gather_all(gradients, first + whole, length - whole, sum + whole);
}

AVX512 static inline void avx512_save(
    struct journal *journal, unsigned number, const struct avx512_word *word)
{
    avx512_store_word(journal_word(journal, number), word);
    journal_save(journal, (number + 1) * CHUNK_WORD);
}

/* Which elements of a word are above their bound: a pattern's or, without one, `below`. */
AVX512 static inline __mmask64 avx512_marks(
    const struct avx512_word *word, const int32_t *pattern, __m512i below)
{
    __mmask16 mark[VECTORS];
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m512i bound = pattern != NULL ? _mm512_loadu_si512(pattern + j * VECTOR) : below;
        mark[j] = _mm512_cmpgt_epi32_mask(avx512_key(word->x[j]), bound);
    }
    return _mm512_kunpackd(_mm512_kunpackw(mark[3], mark[2]), _mm512_kunpackw(mark[1], mark[0]));
}

/* Lanes of the vector at entry i that are below n. */
AVX512 static inline __mmask16 avx512_valid(size_t i, size_t n)
{
    return (__mmask16)_bzhi_u32(0xffff, n - i < VECTOR ? (unsigned)(n - i) : VECTOR);
}

/* If it is wanted, fetches elements of the residual that are needed soon. */
AVX512 static inline void avx512_prefetch(bool wanted, const float *acc)
{
    for (unsigned i = 0; wanted && i < CHUNK_WORD; i += VECTOR) {
        __builtin_prefetch((const char *)(acc + i) + AHEAD_BYTES, 1, 3);
    }
}

/* kind, dtype, patterned: constants, for each of which this is compiled. */
AVX512 static inline __attribute__((always_inline)) void avx512_add_words(
    struct chunk *chunk, unsigned words, enum avx512_kind kind, enum dtype dtype, bool patterned)
{
    const struct chunk_bound bound = *chunk->bound;
    const __m512i below = _mm512_set1_epi32((int)bound.least - 1);
    const uint64_t signs = ledger_word_signs(chunk->number);
    const struct avx512_source source = avx512_source_of(chunk);
    struct avx512_run run = avx512_run_of(&chunk->lanes);
    const struct sparse none = {0};
    const struct sparse list = chunk->candidate != NULL ? *chunk->candidate : none;
    struct journal *const journal = chunk->journal;
    size_t count = list.count;
    unsigned left_out = 0;
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        const unsigned number = chunk->word + w;
        avx512_prefetch(source.gradients.ahead, acc);
        struct avx512_word word = avx512_load_word(acc);
        const struct avx512_word sum =
            avx512_addend(&source, kind, dtype, w * CHUNK_WORD, &left_out);
        if (journal != NULL) {
            avx512_save(journal, number, &word);
        }
        avx512_ledger(&sum, signs, number, &run, &chunk->lanes);
        for (unsigned j = 0; j < VECTORS; j++) {
            word.x[j] = _mm512_add_ps(word.x[j], sum.x[j]);
        }
        avx512_store_word(acc, &word);
        const int32_t *pattern = patterned ? chunk_pattern(&bound, &chunk->phase) : NULL;
        if (list.position != NULL) {
            avx512_fetch_list(source.gradients.ahead, &list, count);
            count = avx512_pack(&word, avx512_marks(&word, pattern, below),
                chunk->position + w * CHUNK_WORD, &list, count);
        }
    }
    avx512_run_keep(&run, &chunk->lanes);
    if (chunk->candidate != NULL) {
        chunk->candidate->count = count;
    }
    chunk->nonfinite += left_out;
    chunk_move(chunk, words);
}

AVX512 static inline __attribute__((always_inline)) void avx512_add_kind(
    struct chunk *chunk, unsigned words, enum avx512_kind kind, enum dtype dtype)
{
    if (chunk->bound->pattern != NULL) {
        avx512_add_words(chunk, words, kind, dtype, true);
    } else {
        avx512_add_words(chunk, words, kind, dtype, false);
    }
}

AVX512 static inline __attribute__((always_inline)) void avx512_add_type(
    struct chunk *chunk, unsigned words, enum dtype dtype)
{
    switch (avx512_kind_of(chunk)) {
    case KIND_MEMORY: avx512_add_kind(chunk, words, KIND_MEMORY, DTYPE_F32); break;
    case KIND_ONE: avx512_add_kind(chunk, words, KIND_ONE, dtype); break;
    case KIND_TWO: avx512_add_kind(chunk, words, KIND_TWO, dtype); break;
    case KIND_ALL: avx512_add_kind(chunk, words, KIND_ALL, dtype); break;
    }
}

AVX512 static void avx512_add(struct chunk *chunk, unsigned words)
{
    if (chunk->rounding != NULL) {
        rounded_avx512_add(chunk, words);
        return;
    }
    switch (chunk->gradients.dtype) {
    case DTYPE_F16: avx512_add_type(chunk, words, DTYPE_F16); break;
    case DTYPE_BF16: avx512_add_type(chunk, words, DTYPE_BF16); break;
    default: avx512_add_type(chunk, words, DTYPE_F32);
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
        const struct avx512_word word = avx512_load_word(x);
        const __mmask64 mask = avx512_marks(&word, chunk_pattern(bound, &phase), below);
        if (mask != 0) {
            count = avx512_pack(&word, mask, position + w * CHUNK_WORD, list, count);
        }
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

/* Appends the entries above the cut and the first `ties` on it. all: whether those are all,
 * constant. */
AVX512 static inline __attribute__((always_inline)) void avx512_filter_cut(
    const struct sparse *list, uint32_t least, uint64_t ties, bool all, struct sparse *out)
{
    const __m512i cut = _mm512_set1_epi32((int)least);
    const size_t n = list->count;
    const struct sparse from = *list; /* out may be the list */
    struct sparse to = *out;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(from.value, i, n)));
        __mmask16 kept = _mm512_mask_cmpge_epi32_mask(avx512_valid(i, n), key, cut);
        if (!all) {
            const unsigned equal = _mm512_mask_cmpeq_epi32_mask(kept, key, cut);
            const unsigned room = ties < VECTOR ? (unsigned)ties : VECTOR;
            const unsigned taken = _pdep_u32(_bzhi_u32(0xffff, room), equal); /* the first ones */
            ties -= (unsigned)_mm_popcnt_u32(taken);
            kept = (__mmask16)((kept & ~equal) | taken);
        }
        avx512_append(&from, i, kept, &to);
    }
    out->count = to.count;
}

AVX512 static void avx512_filter(const struct sparse *list, uint32_t least, struct sparse *out)
{
    avx512_filter_cut(list, least, 0, true, out);
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
    const float *x, size_t n, uint32_t low, uint32_t high, float *out, size_t *above)
{
    const __m512i base = _mm512_set1_epi32((int)low);
    const __m512i width = _mm512_set1_epi32((int)(high - low));
    const __m512i last = _mm512_set1_epi32((int)high - 1);
    size_t count = 0;
    size_t larger = 0;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i value = avx512_load(x, i, n);
        const __mmask16 valid = avx512_valid(i, n);
        const __m512i key = avx512_key(_mm512_castsi512_ps(value));
        const __m512i offset = _mm512_sub_epi32(key, base);
        const __mmask16 kept = _mm512_mask_cmplt_epu32_mask(valid, offset, width);
        const unsigned more = (unsigned)_mm_popcnt_u32(kept);
        avx512_store(
            out + count, _mm512_maskz_compress_epi32(kept, value), more, count + VECTOR <= n);
        larger += (size_t)_mm_popcnt_u32(_mm512_cmpgt_epi32_mask(key, last));
        count += more;
    }
    *above += larger;
    return count;
}

AVX512 static struct select_split avx512_split(const float *x, size_t n, uint32_t middle)
{
    const __m512i bound = _mm512_set1_epi32((int)middle);
    __m512i least = _mm512_set1_epi32(INT32_MAX);
    __m512i most = _mm512_setzero_si512();
    size_t count = 0;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m512i key = avx512_key(_mm512_castsi512_ps(avx512_load(x, i, n)));
        const __mmask16 reached = _mm512_cmpge_epi32_mask(key, bound); /* never behind the end */
        count += (size_t)_mm_popcnt_u32(reached);
        least = _mm512_mask_min_epi32(least, reached, least, key);
        most = _mm512_mask_max_epi32(most, _knot_mask16(reached), most, key);
    }
    /* The least of one half of the lanes and of the complements in the other, together. */
    const __m512i rest = _mm512_xor_si512(most, _mm512_set1_epi32(-1));
    __m512i ends = _mm512_min_epu32(
        _mm512_shuffle_i64x2(least, rest, 0x44), _mm512_shuffle_i64x2(least, rest, 0xee));
    ends = _mm512_min_epu32(ends, _mm512_shuffle_i64x2(ends, ends, 0xb1));
    ends = _mm512_min_epu32(ends, _mm512_shuffle_epi32(ends, 0x4e));
    ends = _mm512_min_epu32(ends, _mm512_shuffle_epi32(ends, 0xb1));
    return (struct select_split){.count = count,
        .least = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(ends)),
        .most = ~(uint32_t)_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(ends, 2))};
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

/* Keys of a short list, zeros behind its end, and how many of them exceed each. */
struct avx512_few {
    __m512i key[2];
    __m512i rank[2];
};

/* Ranks so many vectors of keys, of `n` in memory at `all`: a constant, for each of which this is
 * compiled. Eight at once, as the end of a short loop is mispredicted too often. */
AVX512 static inline __attribute__((always_inline)) void avx512_rank(
    struct avx512_few *few, unsigned vectors, const int32_t *all, size_t n)
{
    const __m512i one = _mm512_set1_epi32(1);
    few->rank[0] = few->rank[1] = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 8) {
        for (unsigned j = 0; j < 8; j++) {
            const __m512i rival = _mm512_set1_epi32(all[i + j]);
            for (unsigned v = 0; v < vectors; v++) {
                const __mmask16 beaten = _mm512_cmpgt_epi32_mask(rival, few->key[v]);
                few->rank[v] = _mm512_mask_add_epi32(few->rank[v], beaten, few->rank[v], one);
            }
        }
    }
}

/* Up to two vectors of entries: the best are those that fewer than k exceed. Returns the key that
 * k - 1 exceed, or 0 where ties do not let them be found like that. */
AVX512 static inline __attribute__((always_inline)) uint32_t avx512_best_few(
    const struct sparse *list, size_t k, unsigned vectors, struct sparse *out)
{
    const struct sparse from = *list; /* out may be the list */
    const __m512i last = _mm512_set1_epi32((int)k - 1);
    _Alignas(64) int32_t all[2 * VECTOR];
    __mmask16 kept[2] = {0, 0};
    __mmask16 found[2] = {0, 0};
    struct avx512_few few;
    for (unsigned v = 0; v < vectors; v++) {
        const size_t i = v * VECTOR;
        few.key[v] = avx512_key(_mm512_castsi512_ps(avx512_load(from.value, i, from.count)));
        _mm512_store_si512(all + i, few.key[v]);
    }
    avx512_rank(&few, vectors, all, from.count);
    for (unsigned v = 0; v < vectors; v++) {
        kept[v] = _mm512_cmple_epi32_mask(few.rank[v], last);
        found[v] = _mm512_cmpeq_epi32_mask(few.rank[v], last);
    }
    const uint32_t at = found[0] | (uint32_t)found[1] << VECTOR;
    if ((at & (at - 1)) != 0 || at == 0) {
        return 0;
    }
    for (unsigned v = 0; v < vectors; v++) {
        avx512_append(&from, v * VECTOR, kept[v], out);
    }
    return (uint32_t)all[_tzcnt_u32(at)];
}

AVX512 static uint32_t avx512_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    if (list->count <= 2 * VECTOR) {
        const uint32_t found = list->count <= VECTOR ? avx512_best_few(list, k, 1, out)
                                                     : avx512_best_few(list, k, 2, out);
        if (found != 0) {
            return found;
        }
    }
    const struct select_cut cut = select_bisect_near(
        list->value, list->count, k, least, likely, avx512_count_few, avx512_split);
    if (cut.ties == SELECT_ALL) {
        avx512_filter_cut(list, cut.key, 0, true, out);
    } else {
        avx512_filter_cut(list, cut.key, cut.ties, false, out);
    }
    return cut.key;
}

extern const struct chunk_ops chunk_avx512;
const struct chunk_ops chunk_avx512 = {
    .name = "avx512",
    .supported = chunk_avx512_supported,
    .rounds = true,
    .gather = avx512_gather,
    .add = avx512_add,
    .sums = avx512_sums,
    .collect = avx512_collect,
    .cut = avx512_cut,
    .best = avx512_best,
    .count = avx512_count,
    .between = avx512_between,
    .filter = avx512_filter,
    .deal = deal_avx512,
    .peaks = deal_peaks_avx512,
    .columns = deal_columns_avx512,
};
#endif
