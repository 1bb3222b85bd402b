/* Residuals in bf16 with AVX-512, for x86-64 processors that have it. One register holds a vector,
 * and four more hold the errors that its word hands on. A word of a pass is expanded, added to,
 * rounded and selected from without leaving the registers. */
#ifdef __x86_64__
#include "kernels/cpu/rounded_avx512.h"

#include <immintrin.h>

#include "kernels/cpu/rounded.h"
#include "kernels/cpu/step_avx512.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq")))

static bool rounded_avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
}

AVX512 static void avx512_expand(const uint16_t *from, unsigned length, float *to)
{
    unsigned i = 0;
    for (; i + LEDGER_LANES <= length; i += LEDGER_LANES) {
        const __m256i half = _mm256_loadu_si256((const void *)(from + i));
        _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    for (; i < length; i++) {
        to[i] = convert_bf16(from[i]);
    }
}

/* The rounding errors that the vectors of a word hand on. */
struct rounded_lanes {
    __m512i step[4]; /* the golden ratios of each vector */
    __m512 same[2];  /* by half of the word: e of the sign of its first vector */
    __m512 other[2]; /* by half of the word: e of the other sign */
    unsigned sign;   /* of the first vector */
};

/* The upper halves of 32-bit numbers. */
WORD_AVX512 __m512i rounded_upper(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u));
}

/* Adds e to x and rounds the sum to a bf16, the upper half of the returned value. e becomes the
 * rounding error. */
WORD_AVX512 __m512i rounded_vector_of(__m512 *x, __m512 *e, __m512i hash, __m512i step)
{
    const __m512 exact = _mm512_add_ps(*x, *e);
    const __m512i random = _mm512_srli_epi32(_mm512_add_epi32(hash, step), 16);
    const __m512i kept = rounded_upper(_mm512_add_epi32(_mm512_castps_si512(exact), random));
    *x = exact;
    *e = _mm512_sub_ps(exact, _mm512_castsi512_ps(kept));
    return kept;
}

/* What is not finite, or became so, cuts off nothing, and a NaN stays one. Apart and rare, as every
 * word waits for the e of another: finite ones, which are small, have a finite sum. */
WORD_AVX512 void rounded_finish(const __m512 exact[4], __m512i kept[4], __m512 *const e[4])
{
    enum { NOT_FINITE = 0x99 }; /* infinities, NaNs */
    const __m512 all = _mm512_add_ps(_mm512_add_ps(*e[0], *e[1]), _mm512_add_ps(*e[2], *e[3]));
    if (__builtin_expect(_mm512_fpclass_ps_mask(all, NOT_FINITE) == 0, true)) {
        return;
    }
    for (unsigned v = 0; v < 4; v++) {
        const __mmask16 bad = _mm512_fpclass_ps_mask(*e[v], NOT_FINITE);
        const __mmask16 same = _mm512_fpclass_ps_mask(exact[v], NOT_FINITE);
        kept[v] =
            _mm512_mask_mov_epi32(kept[v], same, rounded_upper(_mm512_castps_si512(exact[v])));
        *e[v] = _mm512_mask_mov_ps(*e[v], bad, _mm512_setzero_ps());
    }
}

/* The upper halves of two vectors. */
WORD_AVX512 __m512i rounded_narrow(__m512i low, __m512i high)
{
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37,
        35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(low, upper, high);
}

/* Exchanges two vectors. */
WORD_AVX512 void rounded_swap(__mmask16 swap, __m512 *one, __m512 *other)
{
    const __m512 kept = *one;
    *one = _mm512_mask_mov_ps(*one, swap, *other);
    *other = _mm512_mask_mov_ps(*other, swap, kept);
}

WORD_AVX512 void rounded_turn(struct rounded_lanes *lanes, unsigned sign)
{
    const __mmask16 swap = (__mmask16)(0 - (lanes->sign ^ sign));
    rounded_swap(swap, &lanes->same[0], &lanes->other[0]);
    rounded_swap(swap, &lanes->same[1], &lanes->other[1]);
    lanes->sign = sign;
}

WORD_AVX512 struct rounded_lanes rounded_lanes_of(const struct rounding *rounding)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    struct rounded_lanes lanes = {.sign = 0};
    for (unsigned half = 0; half < 2; half++) {
        lanes.same[half] = _mm512_loadu_ps(rounding->e[0][half]);
        lanes.other[half] = _mm512_loadu_ps(rounding->e[1][half]);
    }
    for (int v = 0; v < 4; v++) {
        const __m512i element = _mm512_add_epi32(lane, _mm512_set1_epi32(v * LEDGER_LANES));
        lanes.step[v] = _mm512_mullo_epi32(element, _mm512_set1_epi32((int)ROUNDED_STEP));
    }
    return lanes;
}

/* Puts them back. */
WORD_AVX512 void rounded_keep(struct rounded_lanes *lanes, struct rounding *rounding)
{
    rounded_turn(lanes, 0);
    for (unsigned half = 0; half < 2; half++) {
        _mm512_storeu_ps(rounding->e[0][half], lanes->same[half]);
        _mm512_storeu_ps(rounding->e[1][half], lanes->other[half]);
    }
}

/* A word of bfloat16. */
struct rounded_halves {
    __m512i half[2];
};

WORD_AVX512 struct rounded_halves rounded_load(const uint16_t *from)
{
    return (struct rounded_halves){
        {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 2 * LEDGER_LANES)}};
}

WORD_AVX512 void rounded_store(uint16_t *to, const struct rounded_halves *word)
{
    _mm512_storeu_si512(to, word->half[0]);
    _mm512_storeu_si512(to + 2 * LEDGER_LANES, word->half[1]);
}

WORD_AVX512 struct avx512_word rounded_expand(const struct rounded_halves *word)
{
    struct avx512_word expanded;
    for (unsigned v = 0; v < VECTORS; v++) {
        expanded.x[v] = avx512_bf16(word->half[v / 2], v % 2);
    }
    return expanded;
}

/* Rounds the chunk's word number w, in place, and returns it. */
WORD_AVX512 struct rounded_halves rounded_register(struct rounded_lanes *lanes,
    const struct rounding *rounding, unsigned w, struct avx512_word *word)
{
    const __m512i hash = _mm512_set1_epi32((int)rounding->hash[w]);
    __m512 *const x = word->x;
    __m512 *const e[] = {&lanes->same[0], &lanes->other[0], &lanes->other[1], &lanes->same[1]};
    __m512i kept[4];
    rounded_turn(lanes, (rounding->signs >> w) & 1u);
    for (unsigned v = 0; v < 4; v++) {
        kept[v] = rounded_vector_of(&x[v], e[v], hash, lanes->step[v]);
    }
    rounded_finish(x, kept, e);
    for (unsigned v = 0; v < 4; v++) {
        x[v] = _mm512_castsi512_ps(kept[v]);
    }
    return (struct rounded_halves){
        {rounded_narrow(kept[0], kept[1]), rounded_narrow(kept[2], kept[3])}};
}

AVX512 static __m512i avx512_mixed(__m512i z, unsigned shift, uint64_t by)
{
    return _mm512_mullo_epi64(
        _mm512_xor_si512(z, _mm512_srli_epi64(z, shift)), _mm512_set1_epi64((long long)by));
}

/* As ledger_hash(), of eight at once. */
AVX512 static void avx512_hash(uint64_t seed, uint32_t hash[LEDGER_WORDS])
{
    __m512i index = _mm512_add_epi64(
        _mm512_set1_epi64((long long)seed + 1), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    for (unsigned w = 0; w < LEDGER_WORDS; w += 8) {
        __m512i z = _mm512_mullo_epi64(index, _mm512_set1_epi64((long long)0x9e3779b97f4a7c15u));
        z = avx512_mixed(z, 30, 0xbf58476d1ce4e5b9u);
        z = avx512_mixed(z, 27, 0x94d049bb133111ebu);
        z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
        _mm256_storeu_si256((void *)(hash + w), _mm512_cvtepi64_epi32(z));
        index = _mm512_add_epi64(index, _mm512_set1_epi64(8));
    }
}

AVX512 static void avx512_round(struct rounding *rounding, float *x, unsigned first, unsigned words)
{
    struct rounded_lanes lanes = rounded_lanes_of(rounding);
    for (unsigned w = first; w < first + words; w++, x += LEDGER_WORD) {
        struct avx512_word word = avx512_load_word(x);
        const struct rounded_halves rounded = rounded_register(&lanes, rounding, w, &word);
        rounded_store(rounding->element + w * LEDGER_WORD, &rounded);
        avx512_store_word(x, &word);
    }
    rounded_keep(&lanes, rounding);
}

extern const struct rounded_ops rounded_avx512;
const struct rounded_ops rounded_avx512 = {.name = "avx512",
    .supported = rounded_avx512_supported,
    .expand = avx512_expand,
    .hash = avx512_hash,
    .round = avx512_round};

/* ------------------------------------------------------------------ a step of a pass */

/* The word before it changes. Fetches one that is needed soon, if that is wanted. */
STEP_AVX512 struct rounded_halves rounded_before(const uint16_t *from, bool ahead)
{
    if (ahead) {
        __builtin_prefetch((const char *)from + AHEAD_BYTES, 1, 3);
        __builtin_prefetch((const char *)from + AHEAD_BYTES + LINE_BYTES, 1, 3);
    }
    return rounded_load(from);
}

/* What is above the bound: of keys of 16 bits, `below` has that many. */
STEP_AVX512 __mmask64 rounded_marks(const struct rounded_halves *word, __m512i below)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __mmask32 mark[2];
    for (unsigned h = 0; h < 2; h++) {
        mark[h] = _mm512_cmpgt_epi16_mask(_mm512_and_si512(word->half[h], magnitude), below);
    }
    return _mm512_kunpackd(mark[1], mark[0]);
}

/* kind, dtype: constants, for each of which this is compiled. */
STEP_AVX512 void rounded_add_words(
    struct chunk *chunk, unsigned words, enum avx512_kind kind, enum dtype dtype)
{
    struct rounding *const rounding = chunk->rounding;
    struct journal *const journal = rounding->journal;
    const __m512i below = _mm512_set1_epi16((short)((chunk->bound->least - 1) >> 16));
    const uint64_t signs = rounding->signs;
    const unsigned begin = chunk->word;
    const uint32_t position = chunk->position;
    const struct avx512_source source = avx512_source_of(chunk);
    uint16_t *const element = rounding->element + begin * CHUNK_WORD;
    uint16_t *const old = journal != NULL ? journal->rounded.element + begin * CHUNK_WORD : NULL;
    struct avx512_run run = avx512_run_of(&chunk->lanes);
    struct rounded_lanes lanes = rounded_lanes_of(rounding);
    const struct sparse none = {0};
    const struct sparse list = chunk->candidate != NULL ? *chunk->candidate : none;
    size_t count = list.count;
    unsigned left_out = 0;
    for (unsigned w = 0; w < words; w++) {
        const unsigned number = begin + w;
        const struct rounded_halves before =
            rounded_before(element + w * CHUNK_WORD, source.gradients.ahead);
        const struct avx512_word sum =
            avx512_addend(&source, kind, dtype, w * CHUNK_WORD, &left_out);
        if (old != NULL) {
            rounded_store(old + w * CHUNK_WORD, &before);
            journal_copied(journal, (number + 1) * CHUNK_WORD);
        }
        avx512_ledger(&sum, signs, number, &run, &chunk->lanes);
        struct avx512_word word = rounded_expand(&before);
        for (unsigned j = 0; j < VECTORS; j++) {
            word.x[j] = _mm512_add_ps(word.x[j], sum.x[j]);
        }
        const struct rounded_halves after = rounded_register(&lanes, rounding, number, &word);
        rounded_store(element + w * CHUNK_WORD, &after);
        if (list.position != NULL) {
            avx512_fetch_list(source.gradients.ahead, &list, count);
            count = avx512_pack_half(
                after.half, rounded_marks(&after, below), position + w * CHUNK_WORD, &list, count);
        }
    }
    rounded_keep(&lanes, rounding);
    avx512_run_keep(&run, &chunk->lanes);
    if (chunk->candidate != NULL) {
        chunk->candidate->count = count;
    }
    chunk->nonfinite += left_out;
    chunk_move(chunk, words);
}

STEP_AVX512 void rounded_add_type(struct chunk *chunk, unsigned words, enum dtype dtype)
{
    switch (avx512_kind_of(chunk)) {
    case KIND_MEMORY: rounded_add_words(chunk, words, KIND_MEMORY, DTYPE_F32); break;
    case KIND_ONE: rounded_add_words(chunk, words, KIND_ONE, dtype); break;
    case KIND_TWO: rounded_add_words(chunk, words, KIND_TWO, dtype); break;
    case KIND_ALL: rounded_add_words(chunk, words, KIND_ALL, dtype); break;
    }
}

STEP_AVX512_TARGET void rounded_avx512_add(struct chunk *chunk, unsigned words)
{
    switch (chunk->gradients.dtype) {
    case DTYPE_F16: rounded_add_type(chunk, words, DTYPE_F16); break;
    case DTYPE_BF16: rounded_add_type(chunk, words, DTYPE_BF16); break;
    default: rounded_add_type(chunk, words, DTYPE_F32);
    }
}

#endif
