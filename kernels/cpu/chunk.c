#include "kernels/cpu/chunk.h"

#include <math.h>
#include <string.h>

unsigned chunk_filter(float filtered[CHUNK_WORD], const float *sum)
{
    unsigned left_out = 0;
    for (unsigned i = 0; i < CHUNK_WORD; i++) {
        const bool finite = fabsf(sum[i]) < KERNEL_FINITE_LIMIT; /* false for NaN */
        left_out += !finite;
        filtered[i] = finite ? sum[i] : -0.0f;
    }
    return left_out;
}

static uint64_t chunk_tail_bits(unsigned rest)
{
    return (UINT64_C(1) << rest) - 1;
}

/* The last elements of a chunk, fewer than a word, by way of padded copies. */
static void chunk_add_tail(
    const struct chunk_ops *ops, struct chunk *tail, unsigned rest, struct ledger_lanes *lanes)
{
    float acc[CHUNK_WORD] = {0};
    float sum[CHUNK_WORD] = {0};
    float *const home = tail->acc;
    memcpy(acc, tail->acc, rest * sizeof *acc);
    memcpy(sum, tail->sum, rest * sizeof *sum);
    if (tail->journal != NULL) {
        memcpy(tail->journal->old + tail->saved, acc, rest * sizeof *acc);
        journal_save(tail->journal, tail->saved + rest);
    }
    tail->journal = NULL;
    tail->acc = acc;
    tail->sum = sum;
    ops->add(tail, 1, lanes);
    memcpy(home, acc, rest * sizeof *acc);
    if (tail->mask != NULL) {
        tail->mask[0] &= chunk_tail_bits(rest);
    }
}

void chunk_add(const struct chunk_ops *ops, struct chunk *chunk, unsigned length, double sums[2])
{
    struct ledger_lanes lanes = {0};
    const unsigned words = length / CHUNK_WORD;
    ops->add(chunk, words, &lanes);
    if (length % CHUNK_WORD != 0) {
        struct chunk tail = *chunk;
        tail.acc += words * CHUNK_WORD;
        tail.sum += words * CHUNK_WORD;
        tail.word += words;
        tail.mask = chunk->mask != NULL ? chunk->mask + words : NULL;
        chunk_add_tail(ops, &tail, length % CHUNK_WORD, &lanes);
        chunk->nonfinite = tail.nonfinite;
    }
    ledger_total(&lanes, chunk->number, sums);
}

size_t chunk_pack(const struct chunk_ops *ops, const float *x, const uint64_t *mask,
    unsigned length, uint32_t first, uint32_t *position, float *value)
{
    return ops->pack(x, mask, (length + CHUNK_WORD - 1) / CHUNK_WORD, first, position, value);
}

size_t chunk_collect(const struct chunk_ops *ops, const float *x, unsigned length, uint32_t least,
    uint32_t first, uint32_t *position, float *value)
{
    uint64_t mask[CHUNK_WORDS];
    const unsigned words = length / CHUNK_WORD;
    const unsigned rest = length % CHUNK_WORD;
    ops->mark(x, words, least, mask);
    if (rest != 0) {
        float tail[CHUNK_WORD] = {0};
        memcpy(tail, x + words * CHUNK_WORD, rest * sizeof *tail);
        ops->mark(tail, 1, least, mask + words);
        mask[words] &= chunk_tail_bits(rest);
    }
    return chunk_pack(ops, x, mask, length, first, position, value);
}

extern const struct chunk_ops chunk_plain;
#ifdef __x86_64__
extern const struct chunk_ops chunk_avx2;
#endif

const struct chunk_ops *const chunk_table[] = {
    &chunk_plain,
#ifdef __x86_64__
    &chunk_avx2,
#endif
    NULL,
};

const struct chunk_ops *chunk_best(void)
{
    const struct chunk_ops *best = &chunk_plain;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        best = chunk_table[i]->supported() ? chunk_table[i] : best;
    }
    return best;
}
