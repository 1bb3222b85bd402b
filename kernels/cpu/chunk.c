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

/* The last elements of a chunk, fewer than a word, by way of copies padded with
 * zeros, which add nothing and are no candidates. */
static void chunk_tail(const struct chunk_ops *ops, struct chunk *chunk, unsigned rest)
{
    float acc[CHUNK_WORD] = {0};
    float sum[CHUNK_WORD] = {0};
    float *const home = chunk->acc;
    memcpy(acc, chunk->acc, rest * sizeof *acc);
    memcpy(sum, chunk->sum, rest * sizeof *sum);
    if (chunk->journal != NULL) {
        const unsigned first = chunk->word * CHUNK_WORD;
        memcpy(journal_word(chunk->journal, chunk->word), acc, rest * sizeof *acc);
        journal_save(chunk->journal, first + rest);
    }
    chunk->journal = NULL;
    chunk->acc = acc;
    chunk->sum = sum;
    ops->add(chunk, 1);
    memcpy(home, acc, rest * sizeof *acc);
}

void chunk_step(const struct chunk_ops *ops, struct chunk *chunk, unsigned length)
{
    ops->add(chunk, length / CHUNK_WORD);
    if (length % CHUNK_WORD != 0) {
        chunk_tail(ops, chunk, length % CHUNK_WORD);
    }
}

void chunk_skip(struct chunk *chunk, unsigned length)
{
    const uint64_t signs = ledger_word_signs(chunk->number);
    for (unsigned i = 0; i < length; i += CHUNK_WORD) {
        float sum[CHUNK_WORD];
        chunk->nonfinite += chunk_filter(sum, chunk->sum);
        ledger_add(sum, chunk->word, signs, &chunk->lanes);
        chunk->acc += CHUNK_WORD;
        chunk->sum += CHUNK_WORD;
        chunk->word++;
    }
}

void chunk_sums(struct chunk *chunk, double sums[2])
{
    ledger_total(&chunk->lanes, chunk->number, sums);
}

void chunk_collect(const struct chunk_ops *ops, const float *x, uint64_t length, uint32_t least,
    uint32_t position, struct sparse *list)
{
    const unsigned rest = length % CHUNK_WORD;
    const uint64_t whole = length - rest;
    ops->collect(x, (unsigned)(whole / CHUNK_WORD), least, position, list);
    if (rest != 0) {
        float tail[CHUNK_WORD] = {0};
        memcpy(tail, x + whole, rest * sizeof *tail);
        ops->collect(tail, 1, least, position + (uint32_t)whole, list);
    }
}

void chunk_select(const struct chunk_ops *ops, const struct sparse *list, struct select_cut *cut,
    struct sparse *out, size_t end)
{
    if (cut->ties == SELECT_ALL) {
        ops->filter(list, cut->key, out);
    } else {
        select_filter(list, cut, out, end);
    }
}

struct select_cut chunk_cut(const struct chunk_ops *ops, const struct sparse *list, size_t k,
    uint32_t histogram[SELECT_BINS])
{
    if (list->count <= SELECT_SHORT) {
        return ops->cut(list->value, list->count, k);
    }
    const struct select_span span = {.x = list->value, .length = list->count, .stride = 1};
    return select_cut_between(&span, 1, 0, 31, k, histogram);
}

uint32_t chunk_prune(
    const struct chunk_ops *ops, struct sparse *list, size_t k, uint32_t histogram[SELECT_BINS])
{
    struct select_cut cut = chunk_cut(ops, list, k, histogram);
    struct sparse kept = {.position = list->position, .value = list->value};
    chunk_select(ops, list, &cut, &kept, k);
    list->count = kept.count;
    /* Elements that equal the last one come later than it: they lose the tie. */
    return cut.key < INT32_MAX ? cut.key + 1 : INT32_MAX;
}

extern const struct chunk_ops chunk_plain;
#ifdef __x86_64__
extern const struct chunk_ops chunk_avx2;
extern const struct chunk_ops chunk_avx512;
#endif

const struct chunk_ops *const chunk_table[] = {
    &chunk_plain,
#ifdef __x86_64__
    &chunk_avx2,
    &chunk_avx512,
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
