/* The chunk operations with AVX2, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

#define AVX2 __attribute__((target("avx2,f16c,bmi,bmi2,popcnt,prfchw")))

/* Elements of one vector, vectors of one word; how far ahead of use memory is fetched. */
enum { VECTOR = 8, VECTORS = CHUNK_WORD / VECTOR, AHEAD = 1024, LINE = 16, LINE_BYTES = 64 };

/* Entries that are written to a list at a time. */
enum { PACK = 3 };

/* Every processor with AVX2 has F16C. */
static bool chunk_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

/* Elements i .. i + 8 - 1 of one gradient. */
AVX2 static inline __m256 avx2_elements(const void *gradient, enum dtype dtype, uint64_t i)
{
    const void *const half = (const uint16_t *)gradient + i;
    switch (dtype) {
    case DTYPE_F16: return _mm256_cvtph_ps(_mm_loadu_si128(half));
    case DTYPE_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(half)), 16));
    default: return _mm256_loadu_ps((const float *)gradient + i);
    }
}

/* If it is wanted, fetches one gradient's elements that are needed soon. */
AVX2 static inline void avx2_fetch(
    bool wanted, const void *gradient, enum dtype dtype, uint64_t first)
{
    const size_t size = dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *const ahead = (const char *)gradient + (first + AHEAD) * size;
    for (size_t i = 0; wanted && i < CHUNK_WORD * size; i += LINE_BYTES) {
        __builtin_prefetch(ahead + i, 0, 3);
    }
}

/* The sum of all gradients' elements of one word, in registers until it is complete. */
AVX2 static inline void avx2_gather_word(
    const struct gradients *gradients, uint64_t first, float sum[CHUNK_WORD])
{
    __m256 total[VECTORS];
    for (unsigned j = 0; j < VECTORS; j++) {
        total[j] = _mm256_set1_ps(-0.0f);
    }
    for (unsigned r = 0; r < gradients->count; r++) {
        const void *const gradient = gradients->each[r];
        if (gradient == NULL) {
            continue;
        }
        avx2_fetch(gradients->ahead, gradient, gradients->dtype, first);
        for (unsigned j = 0; j < VECTORS; j++) {
            total[j] = _mm256_add_ps(
                total[j], avx2_elements(gradient, gradients->dtype, first + j * VECTOR));
        }
    }
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm256_storeu_ps(sum + j * VECTOR, total[j]);
    }
}

AVX2 static void avx2_gather(
    const struct gradients *gradients, uint64_t first, unsigned length, float *sum)
{
    const unsigned whole = length - length % CHUNK_WORD;
    for (unsigned i = 0; i < whole; i += CHUNK_WORD) {
        avx2_gather_word(gradients, first + i, sum + i);
    }
    gather_all(gradients, first + whole, length - whole, sum + whole);
}

AVX2 static inline __m256i avx2_key(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* If it is wanted, fetches elements of the residual that are needed soon. */
AVX2 static inline void avx2_prefetch(bool wanted, const float *acc)
{
    for (unsigned i = 0; wanted && i < CHUNK_WORD; i += LINE) {
        __builtin_prefetch(acc + AHEAD + i, 1, 3);
    }
}

/* If it is wanted, fetches where a list's next entries go. */
AVX2 static inline void avx2_fetch_list(bool wanted, const struct sparse *list, size_t count)
{
    if (wanted) {
        __builtin_prefetch(list->position + count + CHUNK_WORD, 1, 3);
        __builtin_prefetch(list->value + count + CHUNK_WORD, 1, 3);
    }
}

AVX2 static inline bool avx2_all_finite(const float *sum)
{
    /* The largest key that is still finite: the bits of 2^120, less one. */
    const __m256i most = _mm256_set1_epi32(((127 + 120) << 23) - 1);
    __m256i largest = _mm256_setzero_si256();
    for (unsigned j = 0; j < VECTORS; j++) {
        largest = _mm256_max_epi32(largest, avx2_key(_mm256_loadu_ps(sum + j * VECTOR)));
    }
    const __m256i bad = _mm256_cmpgt_epi32(largest, most);
    return _mm256_testz_si256(bad, bad) != 0;
}

AVX2 static inline void avx2_save(struct journal *journal, unsigned word, const float *acc)
{
    float *const old = journal_word(journal, word);
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm256_storeu_ps(old + j * VECTOR, _mm256_loadu_ps(acc + j * VECTOR));
    }
    journal_save(journal, (word + 1) * CHUNK_WORD);
}

/* The sums of a run that are no doubles yet, in registers: lanes 0..7 and 8..15. */
struct avx2_run {
    __m256 positive[2];
    __m256 negative[2];
};

/* swap: the word's sign bit. It exchanges vectors instead of signs. */
AVX2 static inline void avx2_ledger(const float *x, uint64_t swap, struct avx2_run *run)
{
    const float *const up = x + 16 * (swap & 1);
    const float *const down = x - 16 * (swap & 1);
    for (unsigned h = 0; h < 2; h++) {
        const __m256 even =
            _mm256_add_ps(_mm256_loadu_ps(up + 8 * h), _mm256_loadu_ps(down + 48 + 8 * h));
        const __m256 odd =
            _mm256_add_ps(_mm256_loadu_ps(down + 16 + 8 * h), _mm256_loadu_ps(up + 32 + 8 * h));
        run->positive[h] = _mm256_add_ps(run->positive[h], even);
        run->negative[h] = _mm256_add_ps(run->negative[h], odd);
    }
}

AVX2 static inline void avx2_grow(double lane[4], __m128 by)
{
    _mm256_storeu_pd(lane, _mm256_add_pd(_mm256_loadu_pd(lane), _mm256_cvtps_pd(by)));
}

AVX2 static inline void avx2_flush(struct avx2_run *run, struct ledger_lanes *lanes)
{
    for (unsigned h = 0; h < 2; h++) {
        const __m256 sum = _mm256_add_ps(run->positive[h], run->negative[h]);
        const __m256 difference = _mm256_sub_ps(run->positive[h], run->negative[h]);
        avx2_grow(lanes->plain + 8 * h, _mm256_castps256_ps128(sum));
        avx2_grow(lanes->plain + 8 * h + 4, _mm256_extractf128_ps(sum, 1));
        avx2_grow(lanes->hashed + 8 * h, _mm256_castps256_ps128(difference));
        avx2_grow(lanes->hashed + 8 * h + 4, _mm256_extractf128_ps(difference, 1));
        run->positive[h] = run->negative[h] = _mm256_setzero_ps();
    }
}

/* Bits j * 8 .. j * 8 + 7 of a word's mask: which keys are above `below`. */
AVX2 static inline uint64_t avx2_mark(__m256 x, __m256i below, unsigned j)
{
    const __m256 marked = _mm256_castsi256_ps(_mm256_cmpgt_epi32(avx2_key(x), below));
    return (uint64_t)(uint32_t)_mm256_movemask_ps(marked) << (j * VECTOR);
}

/* The bounds of vector j: a pattern's or, without one, `below`. */
AVX2 static inline __m256i avx2_bound(const int32_t *pattern, unsigned j, __m256i below)
{
    return pattern != NULL
               ? _mm256_loadu_si256((const __m256i *)(const void *)(pattern + j * VECTOR))
               : below;
}

AVX2 static inline uint64_t avx2_marks(const float *x, const int32_t *pattern, __m256i below)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        mask |= avx2_mark(_mm256_loadu_ps(x + j * VECTOR), avx2_bound(pattern, j, below), j);
    }
    return mask;
}

/* Adds one word of finite elements; returns its mask. */
AVX2 static inline uint64_t avx2_word(
    float *acc, const float *sum, const int32_t *pattern, __m256i below)
{
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m256 a =
            _mm256_add_ps(_mm256_loadu_ps(acc + j * VECTOR), _mm256_loadu_ps(sum + j * VECTOR));
        _mm256_storeu_ps(acc + j * VECTOR, a);
        mask |= avx2_mark(a, avx2_bound(pattern, j, below), j);
    }
    return mask;
}

/* Appends a word's marked elements to a list of `count`; returns the new count. Few words have more
 * than three: so many are written without a look at the mask, as a branch on it would be
 * mispredicted too often. An exhausted mask writes the word's first element, which is not counted.
 */
AVX2 static inline size_t avx2_pack(
    const float *x, uint64_t mask, uint32_t position, const struct sparse *list, size_t count)
{
    const size_t end = count + (size_t)_mm_popcnt_u64(mask);
    do {
        for (unsigned i = 0; i < PACK; i++) {
            const unsigned at = (unsigned)_tzcnt_u64(mask) & (CHUNK_WORD - 1);
            list->position[count + i] = position + at;
            list->value[count + i] = x[at];
            mask = _blsr_u64(mask);
        }
        count += PACK;
    } while (count < end);
    return end;
}

AVX2 static inline struct avx2_run avx2_load_run(const struct ledger_lanes *from)
{
    struct avx2_run run;
    for (unsigned h = 0; h < 2; h++) {
        run.positive[h] = _mm256_loadu_ps(from->positive + 8 * h);
        run.negative[h] = _mm256_loadu_ps(from->negative + 8 * h);
    }
    return run;
}

AVX2 static inline void avx2_store_run(struct ledger_lanes *to, const struct avx2_run *run)
{
    for (unsigned h = 0; h < 2; h++) {
        _mm256_storeu_ps(to->positive + 8 * h, run->positive[h]);
        _mm256_storeu_ps(to->negative + 8 * h, run->negative[h]);
    }
}

/* common: one f32 gradient, as it lies in memory, and one bound. */
AVX2 static inline __attribute__((always_inline)) void avx2_add_words(
    struct chunk *chunk, unsigned words, bool common)
{
    const struct chunk_bound bound = *chunk->bound;
    const struct sparse none = {0};
    const struct sparse list = chunk->candidate != NULL ? *chunk->candidate : none;
    const __m256i below = _mm256_set1_epi32((int)bound.least - 1);
    const uint64_t signs = ledger_word_signs(chunk->number);
    const uint64_t first = chunk_next(chunk);
    size_t count = list.count;
    struct avx2_run run = avx2_load_run(&chunk->lanes);
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        float gathered[CHUNK_WORD];
        const float *sum = gathered;
        float filtered[CHUNK_WORD];
        avx2_prefetch(chunk->gradients.ahead, acc);
        if (!common && chunk->sum == NULL) {
            avx2_gather_word(&chunk->gradients, first + w * CHUNK_WORD, gathered);
        } else {
            sum = chunk->sum + w * CHUNK_WORD;
            avx2_fetch(chunk->gradients.ahead, sum, DTYPE_F32, 0);
        }
        if (!avx2_all_finite(sum)) {
            chunk->nonfinite += chunk_filter(filtered, sum);
            sum = filtered;
        }
        if (chunk->journal != NULL) {
            avx2_save(chunk->journal, chunk->word + w, acc);
        }
        avx2_ledger(sum, signs >> (chunk->word + w), &run);
        if ((chunk->word + w) % LEDGER_RUN == LEDGER_RUN - 1) {
            avx2_flush(&run, &chunk->lanes);
        }
        const int32_t *pattern = common ? NULL : chunk_pattern(&bound, &chunk->phase);
        const uint64_t mask = avx2_word(acc, sum, pattern, below);
        if (list.position != NULL) {
            avx2_fetch_list(chunk->gradients.ahead, &list, count);
            count = avx2_pack(acc, mask, chunk->position + w * CHUNK_WORD, &list, count);
        }
    }
    avx2_store_run(&chunk->lanes, &run);
    if (chunk->candidate != NULL) {
        chunk->candidate->count = count;
    }
    chunk_move(chunk, words);
}

AVX2 static void avx2_add(struct chunk *chunk, unsigned words)
{
    if (chunk->sum != NULL && chunk->bound->pattern == NULL) {
        avx2_add_words(chunk, words, true);
    } else {
        avx2_add_words(chunk, words, false);
    }
}

AVX2 static void avx2_sums(struct chunk *chunk, double sums[2])
{
    ledger_total(&chunk->lanes, chunk->number, sums);
}

AVX2 static void avx2_collect(const float *x, unsigned words, const struct chunk_bound *bound,
    uint32_t position, struct sparse *list)
{
    uint32_t phase = bound->phase;
    const __m256i below = _mm256_set1_epi32((int)bound->least - 1);
    size_t count = list->count;
    for (unsigned w = 0; w < words; w++, x += CHUNK_WORD) {
        const uint64_t mask = avx2_marks(x, chunk_pattern(bound, &phase), below);
        count = avx2_pack(x, mask, position + w * CHUNK_WORD, list, count);
    }
    list->count = count;
}

AVX2 static inline void avx2_filter_word(
    const struct sparse *list, size_t first, uint64_t mask, struct sparse *out)
{
    size_t count = out->count;
    for (; mask != 0; mask = _blsr_u64(mask)) {
        const size_t at = first + (size_t)_tzcnt_u64(mask);
        out->position[count] = list->position[at];
        out->value[count] = list->value[at];
        count++;
    }
    out->count = count;
}

/* Which lanes of the vector at element i are below n. */
AVX2 static inline __m256i avx2_below_end(size_t i, size_t n)
{
    const int rest = n - i < VECTOR ? (int)(n - i) : VECTOR;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(rest), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 static void avx2_filter(const struct sparse *list, uint32_t least, struct sparse *out)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    const size_t rest = list->count % CHUNK_WORD;
    const size_t whole = list->count - rest;
    for (size_t i = 0; i < whole; i += CHUNK_WORD) {
        avx2_filter_word(list, i, avx2_marks(list->value + i, NULL, below), out);
    }
    uint64_t mask = 0;
    for (unsigned j = 0; j * VECTOR < rest; j++) {
        const __m256i valid = avx2_below_end(j * VECTOR, rest);
        mask |= avx2_mark(_mm256_maskload_ps(list->value + whole + j * VECTOR, valid), below, j);
    }
    avx2_filter_word(list, whole, mask & ((UINT64_C(1) << rest) - 1), out);
}

AVX2 static size_t avx2_count(const float *x, size_t n, uint32_t least)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    __m256i counts = _mm256_setzero_si256(); /* each lane counts down */
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        counts =
            _mm256_add_epi32(counts, _mm256_cmpgt_epi32(avx2_key(_mm256_loadu_ps(x + i)), below));
    }
    if (i < n) {
        const __m256i valid = avx2_below_end(i, n);
        const __m256i key = avx2_key(_mm256_maskload_ps(x + i, valid));
        counts = _mm256_add_epi32(counts, _mm256_and_si256(_mm256_cmpgt_epi32(key, below), valid));
    }
    __m128i sum =
        _mm_add_epi32(_mm256_castsi256_si128(counts), _mm256_extracti128_si256(counts, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return (uint32_t)-_mm_cvtsi128_si32(sum);
}

AVX2 static size_t avx2_between(
    const float *x, size_t n, uint32_t low, uint32_t high, float *out, size_t *above)
{
    const size_t whole = n - n % CHUNK_WORD;
    const __m256i below = _mm256_set1_epi32((int)low - 1);
    const __m256i last = _mm256_set1_epi32((int)high - 1);
    size_t count = 0;
    for (size_t i = 0; i < whole; i += CHUNK_WORD) {
        const uint64_t larger = avx2_marks(x + i, NULL, last);
        uint64_t mask = avx2_marks(x + i, NULL, below) & ~larger;
        *above += (size_t)_mm_popcnt_u64(larger);
        for (; mask != 0; mask = _blsr_u64(mask)) {
            out[count++] = x[i + (size_t)_tzcnt_u64(mask)];
        }
    }
    for (size_t i = whole; i < n; i++) {
        const uint32_t key = select_key(x[i]);
        out[count] = x[i];
        count += key - low < high - low;
        *above += key >= high;
    }
    return count;
}

/* The vector at element i of n; zeros behind the end. */
AVX2 static inline __m256i avx2_load_keys(const float *x, size_t i, size_t n)
{
    return avx2_key(
        n - i >= VECTOR ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, avx2_below_end(i, n)));
}

AVX2 static struct select_split avx2_split(const float *x, size_t n, uint32_t middle)
{
    const __m256i below = _mm256_set1_epi32((int)middle - 1);
    const __m256i none = _mm256_set1_epi32(INT32_MAX);
    __m256i counts = _mm256_setzero_si256(); /* each lane counts down */
    __m256i least = none;
    __m256i most = counts;
    for (size_t i = 0; i < n; i += VECTOR) {
        const __m256i key = avx2_load_keys(x, i, n);
        const __m256i reached = _mm256_cmpgt_epi32(key, below); /* never behind the end */
        counts = _mm256_add_epi32(counts, reached);
        least = _mm256_min_epi32(least, _mm256_blendv_epi8(none, key, reached));
        most = _mm256_max_epi32(most, _mm256_andnot_si256(reached, key));
    }
    int32_t lane[3][VECTOR];
    _mm256_storeu_si256((__m256i *)lane[0], counts);
    _mm256_storeu_si256((__m256i *)lane[1], least);
    _mm256_storeu_si256((__m256i *)lane[2], most);
    int32_t all[3] = {0, INT32_MAX, 0};
    for (unsigned i = 0; i < VECTOR; i++) {
        all[0] -= lane[0][i];
        all[1] = lane[1][i] < all[1] ? lane[1][i] : all[1];
        all[2] = lane[2][i] > all[2] ? lane[2][i] : all[2];
    }
    return (struct select_split){(uint32_t)all[0], (uint32_t)all[1], (uint32_t)all[2]};
}

AVX2 static struct select_cut avx2_cut(const float *x, size_t n, size_t k)
{
    return select_bisect(x, n, k, avx2_split);
}

AVX2 static uint32_t avx2_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    struct select_cut cut =
        select_bisect_near(list->value, list->count, k, least, likely, avx2_count, avx2_split);
    if (cut.ties == SELECT_ALL) {
        avx2_filter(list, cut.key, out);
    } else {
        select_filter(list, &cut, out, k);
    }
    return cut.key;
}

AVX2 static void avx2_peaks(const float *x, size_t n, int32_t *peak, size_t period)
{
    deal_peaks_inline(x, n, peak, period);
}

AVX2 static void avx2_columns(const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *best)
{
    deal_columns_inline(x, rows, stride, k, best);
}

extern const struct chunk_ops chunk_avx2;
const struct chunk_ops chunk_avx2 = {
    .name = "avx2",
    .supported = chunk_avx2_supported,
    .gather = avx2_gather,
    .add = avx2_add,
    .sums = avx2_sums,
    .collect = avx2_collect,
    .cut = avx2_cut,
    .best = avx2_best,
    .count = avx2_count,
    .between = avx2_between,
    .filter = avx2_filter,
    .peaks = avx2_peaks,
    .columns = avx2_columns,
};
#endif
