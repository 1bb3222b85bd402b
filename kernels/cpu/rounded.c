#include "kernels/cpu/rounded.h"

#include <string.h>

#include "kernels/cpu/plain.h"
#include "kernels/cpu/select.h"

enum { ALIGNMENT = 64, VECTORS = LEDGER_WORD / LEDGER_LANES };

/* The low bits of a key, which the second level of a histogram counts. A bf16's has 15. */
enum { KEY_BITS = 15, LOW_BITS = KEY_BITS - SELECT_BITS };

/* ------------------------------------------------------------------ rounding */

/* The bodies are compiled once for every implementation. */
#define BODY static inline __attribute__((always_inline))

BODY void rounded_vector(
    float *restrict x, float *restrict e, uint32_t hash, uint32_t first, uint16_t *restrict out)
{
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        out[l] = rounded_element(x + l, e + l, rounded_random(hash, first + l));
    }
}

BODY void rounded_words(struct rounding *rounding, float *x, unsigned first, unsigned words)
{
    float(*const e)[2][LEDGER_LANES] = rounding->e;
    uint16_t *out = rounding->element + first * LEDGER_WORD;
    for (unsigned w = first; w < first + words; w++, x += LEDGER_WORD, out += LEDGER_WORD) {
        const uint32_t hash = rounding->hash[w];
        const unsigned sign = (rounding->signs >> w) & 1u;
        float *const of[VECTORS] = {e[sign][0], e[1 - sign][0], e[1 - sign][1], e[sign][1]};
        for (unsigned v = 0; v < VECTORS; v++) {
            const unsigned at = v * LEDGER_LANES;
            rounded_vector(x + at, of[v], hash, at, out + at);
        }
    }
}

BODY void rounded_widen(const uint16_t *restrict from, unsigned length, float *restrict to)
{
    for (unsigned i = 0; i < length; i++) {
        to[i] = convert_bf16(from[i]);
    }
}

BODY void rounded_hashes(uint64_t seed, uint32_t hash[LEDGER_WORDS])
{
    for (unsigned w = 0; w < LEDGER_WORDS; w++) {
        hash[w] = rounded_word(seed, w);
    }
}

static bool rounded_plain_supported(void)
{
    return true;
}

static void plain_expand(const uint16_t *from, unsigned length, float *to)
{
    rounded_widen(from, length, to);
}

static void plain_round(struct rounding *rounding, float *x, unsigned first, unsigned words)
{
    rounded_words(rounding, x, first, words);
}

static void plain_hash(uint64_t seed, uint32_t hash[LEDGER_WORDS])
{
    rounded_hashes(seed, hash);
}

static const struct rounded_ops rounded_plain = {.name = "plain",
    .supported = rounded_plain_supported,
    .expand = plain_expand,
    .hash = plain_hash,
    .round = plain_round};

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))

static bool rounded_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2");
}

AVX2 static void avx2_expand(const uint16_t *from, unsigned length, float *to)
{
    rounded_widen(from, length, to);
}

AVX2 static void avx2_round(struct rounding *rounding, float *x, unsigned first, unsigned words)
{
    rounded_words(rounding, x, first, words);
}

static const struct rounded_ops rounded_avx2 = {.name = "avx2",
    .supported = rounded_avx2_supported,
    .expand = avx2_expand,
    .hash = plain_hash,
    .round = avx2_round};

extern const struct rounded_ops rounded_avx512;
#endif

const struct rounded_ops *const rounded_table[] = {
    &rounded_plain,
#ifdef __x86_64__
    &rounded_avx2,
    &rounded_avx512,
#endif
    NULL,
};

const struct rounded_ops *rounded_best(void)
{
    const struct rounded_ops *best = &rounded_plain;
    for (size_t i = 0; rounded_table[i] != NULL; i++) {
        best = rounded_table[i]->supported() ? rounded_table[i] : best;
    }
    return best;
}

void rounded_rest(struct rounding *rounding, float *x, unsigned first, unsigned length)
{
    const unsigned word = first / LEDGER_WORD;
    for (unsigned i = 0; i < length; i++) { /* maybe none: behind the last word is no hash */
        const unsigned vector = i / LEDGER_LANES;
        const unsigned sign = ((rounding->signs >> word) ^ (0x6u >> vector)) & 1u;
        rounding->element[first + i] =
            rounded_element(x + i, &rounding->e[sign][vector / 2][i % LEDGER_LANES],
                rounded_random(rounding->hash[word], i));
    }
}

/* ------------------------------------------------------------------ where it lies */

static size_t rounded_elements(uint64_t n)
{
    return (n * sizeof(uint16_t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t rounded_size(uint64_t n)
{
    return rounded_elements(n) + chunk_count(n) * sizeof(struct carry);
}

struct rounded rounded_at(void *memory, uint64_t n)
{
    return (struct rounded){
        .element = memory, .carry = (struct carry *)(void *)((char *)memory + rounded_elements(n))};
}

static unsigned rounded_length(uint64_t n, uint64_t chunk)
{
    return n - chunk * CHUNK < CHUNK ? (unsigned)(n - chunk * CHUNK) : CHUNK;
}

void rounded_read(const struct rounded *rounded, uint64_t first, unsigned length, float *out)
{
    rounded_best()->expand(rounded->element + first, length, out);
}

/* The chunk with this number, whose elements and carry are here. */
static void rounded_begin_chunk(struct rounding *rounding, const struct rounded_ops *ops,
    uint16_t *element, struct carry *carry, uint64_t chunk, uint64_t pass)
{
    *rounding = (struct rounding){
        .ops = ops, .element = element, .carry = carry, .signs = ledger_word_signs(chunk)};
    ops->hash(rounded_chunk(pass, chunk), rounding->hash);
    for (unsigned s = 0; s < 2; s++) {
        memcpy(rounding->e[s][0], carry->of[s], sizeof rounding->e[s][0]);
    }
}

void rounded_begin(struct rounding *rounding, const struct rounded_ops *ops,
    const struct rounded *rounded, uint64_t chunk, uint64_t stamp, struct journal *journal)
{
    rounded_begin_chunk(rounding, ops, rounded->element + chunk * CHUNK, &rounded->carry[chunk],
        chunk, rounded_pass(stamp, rounded->salt));
    rounding->journal = journal;
    if (journal != NULL) {
        journal->copy_of = JOURNAL_ROUNDED;
        journal->rounded.carry = rounded->carry[chunk];
    }
}

void rounded_save(const struct rounding *rounding, unsigned first, unsigned length)
{
    struct journal *const journal = rounding->journal;
    if (journal != NULL) {
        memcpy(journal->rounded.element + first, rounding->element + first,
            length * sizeof *rounding->element);
        journal_copied(journal, first + length);
    }
}

void rounded_end(const struct rounding *rounding)
{
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned l = 0; l < LEDGER_LANES; l++) {
            rounding->carry->of[s][l] = rounding->e[s][0][l] + rounding->e[s][1][l];
        }
    }
}

static void rounded_whole(struct rounding *rounding, float *x, unsigned length)
{
    const unsigned rest = length % LEDGER_WORD;
    rounding->ops->round(rounding, x, 0, length / LEDGER_WORD);
    rounded_rest(rounding, x + length - rest, length - rest, rest);
    rounded_end(rounding);
}

void rounded_put(const struct rounded_ops *ops, const struct rounded *rounded, uint64_t chunk,
    uint64_t stamp, float *x, unsigned length)
{
    struct rounding rounding;
    rounded_begin(&rounding, ops, rounded, chunk, stamp, NULL);
    rounded_whole(&rounding, x, length);
}

void rounded_alone(const struct rounded_ops *ops, uint64_t chunk, float *x, unsigned length,
    uint16_t *element, struct carry *carry)
{
    struct rounding rounding;
    *carry = (struct carry){0};
    rounded_begin_chunk(&rounding, ops, element, carry, chunk, rounded_pass(0, 0));
    rounded_whole(&rounding, x, length);
}

/* Puts the chunk's first elements back, and its carry. */
static void rounded_restore(
    const struct rounded *rounded, const struct journal *journal, uint64_t length)
{
    memcpy(rounded->element + journal->chunk * CHUNK, journal->rounded.element,
        length * sizeof *rounded->element);
    rounded->carry[journal->chunk] = journal->rounded.carry;
    atomic_signal_fence(memory_order_seq_cst);
}

bool rounded_recover(
    struct journal *journal, const struct rounded *rounded, uint64_t n, struct progress *progress)
{
    const uint64_t copied = atomic_load_explicit(&journal->copied, memory_order_acquire);
    if (copied == 0 && atomic_load_explicit(&journal->saved, memory_order_acquire) == 0) {
        return true;
    }
    if (journal->copy_of != JOURNAL_ROUNDED || journal->chunk >= chunk_count(n) || copied == 0 ||
        copied > rounded_length(n, journal->chunk)) {
        return false;
    }
    const struct chunk_record *record = &progress->chunk[journal->chunk];
    if (atomic_load_explicit(&record->stamp, memory_order_acquire) != journal->stamp) {
        rounded_restore(rounded, journal, copied);
    }
    journal_save(journal, 0);
    journal_copied(journal, 0);
    return true;
}

/* ------------------------------------------------------------------ all of it */

void rounded_sums(const struct rounded *rounded, uint64_t n, double sums[2])
{
    for (uint64_t c = 0; c < chunk_count(n); c++) {
        const uint64_t lanes = ledger_lane_signs(c);
        float x[CHUNK];
        rounded_read(rounded, c * CHUNK, rounded_length(n, c), x);
        ledger_chunk(x, rounded_length(n, c), c, sums);
        for (unsigned l = 0; l < LEDGER_LANES; l++) {
            const double plus = (double)rounded->carry[c].of[0][l];
            const double minus = (double)rounded->carry[c].of[1][l];
            sums[0] += plus + minus;
            sums[1] += ((lanes >> l) & 1u) != 0 ? minus - plus : plus - minus;
        }
    }
}

void rounded_from(const struct rounded *rounded, const float *x, uint64_t n)
{
    const struct rounded_ops *ops = rounded_best();
    memset(rounded->carry, 0, chunk_count(n) * sizeof *rounded->carry);
    for (uint64_t c = 0; c < chunk_count(n); c++) {
        float chunk[CHUNK];
        memcpy(chunk, x + c * CHUNK, rounded_length(n, c) * sizeof *chunk);
        rounded_put(ops, rounded, c, 0, chunk, rounded_length(n, c));
    }
}

void rounded_to(const struct rounded *rounded, uint64_t n, float *x)
{
    rounded_to_part(rounded, 0, n, x);
}

void rounded_to_part(const struct rounded *rounded, uint64_t first, uint64_t count, float *x)
{
    for (uint64_t c = 0; c < chunk_count(count); c++, x += CHUNK) {
        const unsigned length = rounded_length(count, c);
        const uint64_t number = first / CHUNK + c;
        rounded_read(rounded, number * CHUNK, length, x);
        for (unsigned i = 0; i < length && i < 2 * LEDGER_LANES; i++) {
            x[i] = rounded_wide(&rounded->carry[number], number, length, i, x[i]);
        }
    }
}

/* ------------------------------------------------------------------ selection */

/* A fibre: element i is x[i * stride]. */
struct rounded_fibre {
    const uint16_t *x;
    uint64_t length;
    uint64_t stride;
};

static uint32_t rounded_key(const struct rounded_fibre *fibre, uint64_t i)
{
    return fibre->x[i * fibre->stride] & 0x7fffu;
}

/* The bin in which the rank-th largest is, counted from the highest; *rank becomes that in it. */
static uint32_t rounded_bin(const uint32_t *histogram, uint32_t bins, uint64_t *rank)
{
    uint32_t bin = bins - 1;
    for (; histogram[bin] < *rank; bin--) {
        *rank -= histogram[bin];
    }
    return bin;
}

/* The cut for the k-th of a long fibre, in keys of a bf16: first by their high bits. */
static struct select_cut rounded_cut(
    const struct rounded_fibre *fibre, uint64_t k, uint32_t histogram[SELECT_BINS])
{
    uint64_t rank = k;
    memset(histogram, 0, SELECT_BINS * sizeof *histogram);
    for (uint64_t i = 0; i < fibre->length; i++) {
        histogram[rounded_key(fibre, i) >> LOW_BITS]++;
    }
    const uint32_t high = rounded_bin(histogram, SELECT_BINS, &rank);
    memset(histogram, 0, (1u << LOW_BITS) * sizeof *histogram);
    for (uint64_t i = 0; i < fibre->length; i++) {
        const uint32_t key = rounded_key(fibre, i);
        histogram[key & ((1u << LOW_BITS) - 1)] += key >> LOW_BITS == high;
    }
    const uint32_t low = rounded_bin(histogram, 1u << LOW_BITS, &rank);
    return (struct select_cut){.key = high << LOW_BITS | low, .ties = rank};
}

/* The same of a short one, by way of f32. */
static struct select_cut rounded_cut_short(const struct rounded_fibre *fibre, uint64_t k)
{
    float x[SELECT_SHORT];
    for (uint64_t i = 0; i < fibre->length; i++) {
        x[i] = convert_bf16(fibre->x[i * fibre->stride]);
    }
    struct select_cut cut = select_cut_short(x, fibre->length, k);
    /* Without ties any key that separates will do: every bf16 key that is larger than this one's
     * upper half is at least the next one. */
    cut.key = cut.ties == SELECT_ALL ? (cut.key + 0xffffu) >> 16 : cut.key >> 16;
    return cut;
}

static void rounded_fibre(const struct rounded_fibre *fibre, uint64_t position, uint64_t k,
    struct sparse *out, uint32_t histogram[SELECT_BINS])
{
    struct select_cut cut = fibre->length <= SELECT_SHORT ? rounded_cut_short(fibre, k)
                                                          : rounded_cut(fibre, k, histogram);
    for (uint64_t i = 0; i < fibre->length; i++) {
        const uint32_t key = rounded_key(fibre, i);
        if (key < cut.key || (key == cut.key && cut.ties == 0)) {
            continue;
        }
        cut.ties -= key == cut.key && cut.ties != SELECT_ALL;
        out->position[out->count] = (uint32_t)(position + i);
        out->value[out->count++] = convert_bf16(fibre->x[i * fibre->stride]);
    }
}

void rounded_select(const struct rounded *rounded, const struct view *view, uint64_t fibre,
    uint64_t fibres, uint64_t k, struct sparse *out, uint32_t *histogram)
{
    for (uint64_t f = fibre; f < fibre + fibres; f++) {
        const struct rounded_fibre one = {.x = rounded->element + view_base(view, f),
            .length = view->length,
            .stride = view->stride};
        rounded_fibre(&one, f * view->length, k, out, histogram);
    }
}
