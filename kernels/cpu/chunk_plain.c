/* The chunk operations in plain C: what every processor runs and the others are compared with. */
#include <string.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

static bool chunk_plain_supported(void)
{
    return true;
}

static void plain_gather(
    const struct gradients *gradients, uint64_t first, unsigned length, float *sum)
{
    gather_all(gradients, first, length, sum);
}

static void plain_collect_word(
    const float *x, const int32_t *pattern, uint32_t least, uint32_t position, struct sparse *list)
{
    for (unsigned i = 0; i < CHUNK_WORD; i++) {
        const int32_t below = pattern != NULL ? pattern[i] : (int32_t)least - 1;
        if ((int32_t)select_key(x[i]) > below) {
            list->position[list->count] = position + i;
            list->value[list->count++] = x[i];
        }
    }
}

static void chunk_plain_add(struct chunk *chunk, unsigned words)
{
    const uint64_t signs = ledger_word_signs(chunk->number);
    for (; words > 0; words--) {
        float gathered[CHUNK_WORD];
        float sum[CHUNK_WORD];
        if (chunk->sum == NULL) {
            gather_all(&chunk->gradients, chunk_next(chunk), CHUNK_WORD, gathered);
        }
        chunk->nonfinite += chunk_filter(sum, chunk->sum != NULL ? chunk->sum : gathered);
        ledger_add(sum, chunk->word, signs, &chunk->lanes);
        if (chunk->journal != NULL) {
            memcpy(journal_word(chunk->journal, chunk->word), chunk->acc, sizeof sum);
            journal_save(chunk->journal, (chunk->word + 1) * CHUNK_WORD);
        }
        for (unsigned i = 0; i < CHUNK_WORD; i++) {
            chunk->acc[i] += sum[i];
        }
        if (chunk->candidate != NULL) {
            plain_collect_word(chunk->acc, chunk_pattern(chunk->bound, &chunk->phase),
                chunk->bound->least, chunk->position, chunk->candidate);
        }
        chunk_move(chunk, 1);
    }
}

static void plain_sums(struct chunk *chunk, double sums[2])
{
    ledger_total(&chunk->lanes, chunk->number, sums);
}

static void plain_collect(const float *x, unsigned words, const struct chunk_bound *bound,
    uint32_t position, struct sparse *list)
{
    uint32_t phase = bound->phase;
    for (unsigned w = 0; w < words; w++) {
        plain_collect_word(x + w * CHUNK_WORD, chunk_pattern(bound, &phase), bound->least,
            position + w * CHUNK_WORD, list);
    }
}

static size_t chunk_plain_count(const float *x, size_t n, uint32_t least)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += select_key(x[i]) >= least;
    }
    return count;
}

static size_t plain_between(
    const float *x, size_t n, uint32_t low, uint32_t high, float *out, size_t *above)
{
    size_t count = 0;
    size_t larger = 0;
    /* Every element is written and some are counted: a branch would be mispredicted too often. */
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = select_key(x[i]);
        out[count] = x[i];
        count += key - low < high - low;
        larger += key >= high;
    }
    *above += larger;
    return count;
}

static uint32_t plain_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    struct select_cut cut = select_bisect_near(
        list->value, list->count, k, least, likely, chunk_plain_count, select_divide);
    if (cut.ties == SELECT_ALL) {
        select_filter_from(list, cut.key, out);
    } else {
        select_filter(list, &cut, out, k);
    }
    return cut.key;
}

static void plain_peaks(const float *x, size_t n, int32_t *peak, size_t period)
{
    deal_peaks_inline(x, n, peak, period);
}

static void plain_columns(const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *best)
{
    deal_columns_inline(x, rows, stride, k, best);
}

extern const struct chunk_ops chunk_plain;
const struct chunk_ops chunk_plain = {
    .name = "plain",
    .supported = chunk_plain_supported,
    .gather = plain_gather,
    .add = chunk_plain_add,
    .sums = plain_sums,
    .collect = plain_collect,
    .cut = select_cut_short,
    .best = plain_best,
    .count = chunk_plain_count,
    .between = plain_between,
    .filter = select_filter_from,
    .peaks = plain_peaks,
    .columns = plain_columns,
};
