/* Picking with AVX2, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/pick.h"

#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))

enum { VECTOR = 8, VECTORS = PICK_WORD / VECTOR };

/* Elements of a word that are written without a look at their number. */
enum { UNSEEN = 3 };

AVX2 static inline __m256i avx2_key(__m256i x)
{
    return _mm256_and_si256(x, _mm256_set1_epi32(0x7fffffff));
}

/* The lanes below `rest`. */
AVX2 static inline __m256i avx2_first(size_t rest)
{
    const int end = rest < VECTOR ? (int)rest : VECTOR;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(end), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 static inline uint32_t avx2_above(__m256i value, __m256i below)
{
    const __m256i marked = _mm256_cmpgt_epi32(avx2_key(value), below);
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(marked));
}

AVX2 static inline __m256i avx2_bound(const int32_t *pattern, size_t at, __m256i below)
{
    return pattern != NULL ? _mm256_loadu_si256((const __m256i *)(const void *)(pattern + at))
                           : below;
}

/* The elements of a word whose keys are above their bound: pattern's or, without one, `below`. */
AVX2 static inline uint64_t avx2_word(const float *x, const int32_t *pattern, __m256i below)
{
    uint64_t marks = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m256i bound = avx2_bound(pattern, j * VECTOR, below);
        const __m256i value = _mm256_castps_si256(_mm256_loadu_ps(x + j * VECTOR));
        marks |= (uint64_t)avx2_above(value, bound) << (j * VECTOR);
    }
    return marks;
}

/* The same for the last word, of which `rest` elements exist. */
AVX2 static inline uint64_t avx2_rest(
    const float *x, size_t rest, const int32_t *pattern, __m256i below)
{
    uint64_t marks = 0;
    for (size_t i = 0; i < rest; i += VECTOR) {
        const __m256i bound = avx2_bound(pattern, i, below);
        const __m256 value = _mm256_maskload_ps(x + i, avx2_first(rest - i));
        marks |= (uint64_t)avx2_above(_mm256_castps_si256(value), bound) << i;
    }
    return marks;
}

AVX2 static inline uint64_t avx2_part(
    const float *x, size_t rest, const int32_t *pattern, __m256i below)
{
    return rest >= PICK_WORD ? avx2_word(x, pattern, below) : avx2_rest(x, rest, pattern, below);
}

AVX2 static void avx2_mark(const float *x, size_t length, uint32_t least, uint64_t *marks)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    for (size_t i = 0; i < length; i += PICK_WORD) {
        *marks++ = avx2_part(x + i, length - i, NULL, below);
    }
}

AVX2 static void avx2_sieve(
    const float *x, size_t length, const struct pick_pattern *pattern, uint64_t *marks)
{
    const __m256i none = _mm256_setzero_si256();
    const uint32_t step = PICK_WORD % pattern->period;
    uint32_t phase = pattern->phase;
    for (size_t i = 0; i < length; i += PICK_WORD) {
        *marks++ = avx2_part(x + i, length - i, pattern->below + phase, none);
        phase += step;
        phase -= phase >= pattern->period ? pattern->period : 0;
    }
}

/* Few words have more than three: so many are written without a look at the mask, as a branch on it
 * would be mispredicted too often. An exhausted mask writes the word's first element, which is not
 * counted. */
AVX2 static void avx2_list(
    const float *x, unsigned words, const uint64_t *marks, uint32_t position, struct sparse *list)
{
    size_t count = list->count;
    for (unsigned w = 0; w < words; w++) {
        uint64_t mark = marks[w];
        const unsigned first = w * PICK_WORD;
        const size_t end = count + (size_t)_mm_popcnt_u64(mark);
        do {
            for (unsigned i = 0; i < UNSEEN; i++) {
                const unsigned at = first + ((unsigned)_tzcnt_u64(mark) & (PICK_WORD - 1));
                list->position[count + i] = position + at;
                list->value[count + i] = x[at];
                mark = _blsr_u64(mark);
            }
            count += UNSEEN;
        } while (count < end);
        count = end;
    }
    list->count = count;
}

AVX2 static inline size_t avx2_count(const float *x, size_t n, uint32_t least)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    size_t count = 0;
    size_t i = 0;
    for (; i + PICK_WORD <= n; i += PICK_WORD) {
        count += (size_t)_mm_popcnt_u64(avx2_word(x + i, NULL, below));
    }
    return count + (size_t)_mm_popcnt_u64(avx2_rest(x + i, n - i, NULL, below));
}

/* Appends the entries of a list whose key is at least `least`; as many as out has room for. */
AVX2 static inline void avx2_filter(const struct sparse *list, uint32_t least, struct sparse *out)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    for (size_t i = 0; i < list->count; i += PICK_WORD) {
        const size_t rest = list->count - i;
        uint64_t marks = rest >= PICK_WORD ? avx2_word(list->value + i, NULL, below)
                                           : avx2_rest(list->value + i, rest, NULL, below);
        for (; marks != 0; marks = _blsr_u64(marks)) {
            const size_t at = i + (size_t)_tzcnt_u64(marks);
            out->position[out->count] = list->position[at];
            out->value[out->count++] = list->value[at];
        }
    }
}

AVX2 static uint32_t avx2_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    struct select_cut cut =
        select_bisect_near(list->value, list->count, k, least, likely, avx2_count);
    if (cut.ties == SELECT_ALL) {
        avx2_filter(list, cut.key, out);
    } else {
        select_filter(list, &cut, out, k);
    }
    return cut.key;
}

const struct pick_ops pick_avx2 = {
    .mark = avx2_mark,
    .sieve = avx2_sieve,
    .list = avx2_list,
    .best = avx2_best,
};
#endif
