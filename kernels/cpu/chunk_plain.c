/* The chunk operations in plain C: what every processor runs and the others are compared with. */
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/select.h"

static bool plain_supported(void)
{
    return true;
}

static void plain_gather(float *sum, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t first, unsigned length)
{
    gather_all(sum, gradients, count, dtype, first, length);
}

static uint64_t plain_mark_word(const float *x, uint32_t least)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < CHUNK_WORD; i++) {
        mask |= (uint64_t)(select_key(x[i]) >= least) << i;
    }
    return mask;
}

static void plain_add(struct chunk *chunk, unsigned words, struct ledger_lanes *lanes)
{
    const uint64_t signs = ledger_word_signs(chunk->number);
    for (unsigned w = 0; w < words; w++) {
        float *const acc = chunk->acc + w * CHUNK_WORD;
        float sum[CHUNK_WORD];
        chunk->nonfinite += chunk_filter(sum, chunk->sum + w * CHUNK_WORD);
        ledger_add(sum, (signs >> (chunk->word + w)) & 1u, lanes);
        if (chunk->journal != NULL) {
            memcpy(chunk->journal->old + chunk->saved, acc, sizeof sum);
            chunk->saved += CHUNK_WORD;
            journal_save(chunk->journal, chunk->saved);
        }
        for (unsigned i = 0; i < CHUNK_WORD; i++) {
            acc[i] += sum[i];
        }
        if (chunk->mask != NULL) {
            chunk->mask[w] = plain_mark_word(acc, chunk->least);
        }
    }
}

static void plain_mark(const float *x, unsigned words, uint32_t least, uint64_t *mask)
{
    for (unsigned w = 0; w < words; w++) {
        mask[w] = plain_mark_word(x + w * CHUNK_WORD, least);
    }
}

static size_t plain_pack(const float *x, const uint64_t *mask, unsigned words, uint32_t first,
    uint32_t *position, float *value)
{
    size_t count = 0;
    for (unsigned w = 0; w < words; w++) {
        for (uint64_t rest = mask[w]; rest != 0; rest &= rest - 1) {
            const unsigned i = w * CHUNK_WORD + (unsigned)__builtin_ctzll(rest);
            position[count] = first + i;
            value[count] = x[i];
            count++;
        }
    }
    return count;
}

extern const struct chunk_ops chunk_plain;
const struct chunk_ops chunk_plain = {
    .name = "plain",
    .supported = plain_supported,
    .gather = plain_gather,
    .add = plain_add,
    .mark = plain_mark,
    .pack = plain_pack,
    .count = select_count_from,
};
