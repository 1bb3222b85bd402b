#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/ledger.h"

double ledger_sign(uint64_t element)
{
    return (ledger_word(element / CHUNK_WORD) >> (element % CHUNK_WORD)) & 1u ? -1.0 : 1.0;
}

/* The sums of one chunk of a tensor, `word` its first word. */
static void ledger_chunk(const float *x, unsigned length, uint64_t word, double sums[2])
{
    struct chunk_lanes lanes = {0};
    for (unsigned first = 0; first < length; first += CHUNK_WORD, word++) {
        float part[CHUNK_WORD] = {0};
        const unsigned rest = length - first;
        memcpy(part, x + first, (rest < CHUNK_WORD ? rest : CHUNK_WORD) * sizeof *part);
        ledger_add(part, word, lanes.plain, lanes.hashed);
    }
    sums[0] += ledger_tree(lanes.plain);
    sums[1] += ledger_tree(lanes.hashed);
}

static unsigned accumulate_length(uint64_t n, uint64_t first)
{
    return n - first < CHUNK ? (unsigned)(n - first) : CHUNK;
}

void ledger_sums(const float *x, uint64_t n, double sums[2])
{
    for (uint64_t first = 0; first < n; first += CHUNK) {
        ledger_chunk(x + first, accumulate_length(n, first), first / CHUNK_WORD, sums);
    }
}

/* Adds the gradients' sums, or with `negate` their opposites. */
static uint64_t accumulate_signed(float *acc, const void *const *gradients, unsigned count,
    enum dtype dtype, uint64_t n, double sums[2], bool negate)
{
    const struct chunk_ops *ops = chunk_best();
    uint64_t left_out = 0;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const unsigned length = accumulate_length(n, first);
        float sum[CHUNK];
        double part[2];
        ops->gather(sum, gradients, count, dtype, first, length);
        for (unsigned i = 0; negate && i < length; i++) {
            sum[i] = -sum[i];
        }
        struct chunk chunk = {.acc = acc + first, .sum = sum, .word = first / CHUNK_WORD};
        chunk_add(ops, &chunk, length, part);
        sums[0] += part[0];
        sums[1] += part[1];
        left_out += chunk.nonfinite;
    }
    return left_out;
}

uint64_t accumulate(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2])
{
    return accumulate_signed(acc, gradients, count, dtype, n, sums, false);
}

void withdraw(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2])
{
    (void)accumulate_signed(acc, gradients, count, dtype, n, sums, true);
}
