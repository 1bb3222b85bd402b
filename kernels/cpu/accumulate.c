#include <string.h>

#include "kernels/base/convert.h"
#include "kernels/base/ledger.h"
#include "kernels/cpu/chunk.h"

double ledger_sign(uint64_t element)
{
    const uint64_t chunk = element / CHUNK;
    return ledger_is_negative(ledger_word_signs(chunk), ledger_lane_signs(chunk), element) != 0
               ? -1.0
               : 1.0;
}

void ledger_chunk(const float *x, unsigned length, uint64_t chunk, double sums[2])
{
    struct ledger_lanes lanes = {0};
    const uint64_t signs = ledger_word_signs(chunk);
    double part[2];
    for (unsigned first = 0; first < length; first += CHUNK_WORD) {
        float word[CHUNK_WORD] = {0};
        const unsigned rest = length - first;
        memcpy(word, x + first, (rest < CHUNK_WORD ? rest : CHUNK_WORD) * sizeof *word);
        ledger_add(word, first / CHUNK_WORD, signs, &lanes);
    }
    ledger_total(&lanes, chunk, part);
    sums[0] += part[0];
    sums[1] += part[1];
}

static unsigned accumulate_length(uint64_t n, uint64_t first)
{
    return n - first < CHUNK ? (unsigned)(n - first) : CHUNK;
}

void ledger_sums(const float *x, uint64_t n, double sums[2])
{
    for (uint64_t first = 0; first < n; first += CHUNK) {
        ledger_chunk(x + first, accumulate_length(n, first), first / CHUNK, sums);
    }
}

/* Adds the gradients' sums, or with `negate` their opposites. */
static uint64_t accumulate_signed(float *acc, const void *const *gradients, unsigned count,
    enum dtype dtype, uint64_t n, double sums[2], bool negate)
{
    static const struct chunk_bound none;
    const struct chunk_ops *ops = chunk_best();
    const struct gradients from = {gradients, count, dtype, false};
    double group[2] = {0, 0};
    uint64_t left_out = 0;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const unsigned length = accumulate_length(n, first);
        float sum[CHUNK];
        double part[2];
        ops->gather(&from, first, length, sum);
        for (unsigned i = 0; negate && i < length; i++) {
            sum[i] = -sum[i];
        }
        struct chunk chunk = {
            .acc = acc + first, .sum = sum, .number = first / CHUNK, .bound = &none};
        chunk_step(ops, &chunk, length);
        ops->sums(&chunk, part);
        group[0] += part[0];
        group[1] += part[1];
        if (chunk.number % LEDGER_GROUP == LEDGER_GROUP - 1 || n - first <= CHUNK) {
            sums[0] += group[0];
            sums[1] += group[1];
            group[0] = group[1] = 0;
        }
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
