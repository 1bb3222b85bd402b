/* The chunk operations with AVX2, for x86-64 processors that have it. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,prfchw")))

/* Elements of one vector, vectors of one word; how far ahead of use memory is fetched. */
enum { VECTOR = 8, VECTORS = CHUNK_WORD / VECTOR, AHEAD = 1024, LINE = 16 };

static bool avx2_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

AVX2 static void avx2_gather(float *sum, const void *const *gradients, unsigned count,
    enum dtype dtype, uint64_t first, unsigned length)
{
    gather_all(sum, gradients, count, dtype, first, length);
}

AVX2 static inline __m256i avx2_key(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

AVX2 static inline void avx2_prefetch(const float *acc, const float *sum)
{
    for (unsigned i = 0; i < CHUNK_WORD; i += LINE) {
        __builtin_prefetch(acc + AHEAD + i, 1, 3);
        __builtin_prefetch(sum + AHEAD + i, 0, 3);
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

AVX2 static inline void avx2_save(struct chunk *chunk, const float *acc)
{
    float *const old = chunk->journal->old + chunk->saved;
    for (unsigned j = 0; j < VECTORS; j++) {
        _mm256_storeu_ps(old + j * VECTOR, _mm256_loadu_ps(acc + j * VECTOR));
    }
    chunk->saved += CHUNK_WORD;
    journal_save(chunk->journal, chunk->saved);
}

/* The ledger's lanes in registers: 0..3 and 4..7 of each sum. */
struct avx2_lanes {
    __m256d plain[2];
    __m256d hashed[2];
};

/* Lanes 0..3 or, with half 1, 4..7 of vector j, in double. */
AVX2 static inline __m256d avx2_wide(const float *x, unsigned j, unsigned half)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(x + j * VECTOR + half * 4));
}

AVX2 static inline __m256d avx2_sum4(
    const float *x, unsigned half, unsigned a, unsigned b, unsigned c, unsigned d)
{
    const __m256d ab = _mm256_add_pd(avx2_wide(x, a, half), avx2_wide(x, b, half));
    return _mm256_add_pd(_mm256_add_pd(ab, avx2_wide(x, c, half)), avx2_wide(x, d, half));
}

AVX2 static inline void avx2_ledger(const float *x, uint64_t negative, struct avx2_lanes *lanes)
{
    const __m256d flip = _mm256_castsi256_pd(_mm256_set1_epi64x((long long)(negative << 63)));
    for (unsigned h = 0; h < 2; h++) {
        const __m256d even = avx2_sum4(x, h, 0, 3, 5, 6);
        const __m256d odd = avx2_sum4(x, h, 1, 2, 4, 7);
        const __m256d difference = _mm256_xor_pd(_mm256_sub_pd(even, odd), flip);
        lanes->plain[h] = _mm256_add_pd(lanes->plain[h], _mm256_add_pd(even, odd));
        lanes->hashed[h] = _mm256_add_pd(lanes->hashed[h], difference);
    }
}

/* Adds one word of finite elements; returns its mask. */
AVX2 static inline uint64_t avx2_word(float *acc, const float *sum, uint32_t least)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    uint64_t mask = 0;
    for (unsigned j = 0; j < VECTORS; j++) {
        const __m256 x = _mm256_loadu_ps(sum + j * VECTOR);
        const __m256 a = _mm256_add_ps(_mm256_loadu_ps(acc + j * VECTOR), x);
        _mm256_storeu_ps(acc + j * VECTOR, a);
        const __m256i marked = _mm256_cmpgt_epi32(avx2_key(a), below);
        const uint32_t bits = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(marked));
        mask |= (uint64_t)bits << (j * VECTOR);
    }
    return mask;
}

AVX2 static void avx2_add(struct chunk *chunk, unsigned words, struct ledger_lanes *lanes)
{
    const uint64_t signs = ledger_word_signs(chunk->number) >> chunk->word;
    struct avx2_lanes sums = {
        .plain = {_mm256_loadu_pd(lanes->plain), _mm256_loadu_pd(lanes->plain + 4)},
        .hashed = {_mm256_loadu_pd(lanes->hashed), _mm256_loadu_pd(lanes->hashed + 4)}};
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        const float *sum = chunk->sum + w * CHUNK_WORD;
        float filtered[CHUNK_WORD];
        avx2_prefetch(acc, sum);
        if (!avx2_all_finite(sum)) {
            chunk->nonfinite += chunk_filter(filtered, sum);
            sum = filtered;
        }
        if (chunk->journal != NULL) {
            avx2_save(chunk, acc);
        }
        avx2_ledger(sum, signs >> w, &sums);
        const uint64_t mask = avx2_word(acc, sum, chunk->least);
        if (chunk->mask != NULL) {
            chunk->mask[w] = mask;
        }
    }
    for (unsigned h = 0; h < 2; h++) {
        _mm256_storeu_pd(lanes->plain + 4 * h, sums.plain[h]);
        _mm256_storeu_pd(lanes->hashed + 4 * h, sums.hashed[h]);
    }
}

AVX2 static void avx2_mark(const float *x, unsigned words, uint32_t least, uint64_t *mask)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    for (unsigned w = 0; w < words; w++) {
        mask[w] = 0;
        for (unsigned j = 0; j < VECTORS; j++) {
            const __m256i key = avx2_key(_mm256_loadu_ps(x + w * CHUNK_WORD + j * VECTOR));
            const __m256 marked = _mm256_castsi256_ps(_mm256_cmpgt_epi32(key, below));
            mask[w] |= (uint64_t)(uint32_t)_mm256_movemask_ps(marked) << (j * VECTOR);
        }
    }
}

/* Most words hold at most two entries: both are written without a look at the mask, as a branch on
 * it would be mispredicted every other time. An empty mask writes the word's first element, which
 * is not counted. */
AVX2 static size_t avx2_pack(const float *x, const uint64_t *mask, unsigned words, uint32_t first,
    uint32_t *position, float *value)
{
    size_t count = 0;
    for (unsigned w = 0; w < words; w++) {
        const unsigned base = w * CHUNK_WORD;
        uint64_t rest = mask[w];
        const size_t end = count + (size_t)_mm_popcnt_u64(rest);
        do {
            for (unsigned i = 0; i < CHUNK_PACK_SLACK; i++) {
                const unsigned at = base + ((unsigned)_tzcnt_u64(rest) & (CHUNK_WORD - 1));
                position[count + i] = first + at;
                value[count + i] = x[at];
                rest = _blsr_u64(rest);
            }
            count += CHUNK_PACK_SLACK;
        } while (count < end);
        count = end;
    }
    return count;
}

AVX2 static size_t avx2_count(const float *x, size_t n, uint32_t least)
{
    const int32_t bound = (int32_t)least;
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += (int32_t)select_key(x[i]) >= bound;
    }
    return count;
}

extern const struct chunk_ops chunk_avx2;
const struct chunk_ops chunk_avx2 = {
    .name = "avx2",
    .supported = avx2_supported,
    .gather = avx2_gather,
    .add = avx2_add,
    .mark = avx2_mark,
    .pack = avx2_pack,
    .count = avx2_count,
};
#endif
