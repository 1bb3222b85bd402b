#include "kernels/cpu/direct.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/stream.h"

void direct_start(struct direct *pass, const double sums[2])
{
    pass->ops = pass->ops != NULL ? pass->ops : chunk_best();
    progress_start(pass->progress, pass->stamp, sums, NULL);
}

static unsigned direct_length(const struct direct *pass, uint64_t chunk)
{
    const uint64_t rest = pass->n - chunk * CHUNK;
    return rest < CHUNK ? (unsigned)rest : CHUNK;
}

/* The gradient that is the sum, or NULL. */
static const float *direct_only(const struct direct *pass)
{
    return pass->count == 1 && pass->dtype == DTYPE_F32 ? pass->gradients[0] : NULL;
}

/* The chunk is added to zeros, which stay in the first-level cache. */
static void direct_chunk(const struct direct *pass, uint64_t number, bool ahead)
{
    static const struct chunk_bound none = {.least = 1};
    struct chunk_record *record = &pass->progress->chunk[number];
    const unsigned length = direct_length(pass, number);
    const float *only = direct_only(pass);
    float sum[CHUNK];
    struct chunk chunk = {.acc = sum,
        .sum = only != NULL ? only + number * CHUNK : NULL,
        .gradients = {pass->gradients, pass->count, pass->dtype, ahead},
        .number = number,
        .bound = &none};
    memset(sum, 0, length * sizeof(*sum));
    chunk_step(pass->ops, &chunk, length);
    pass->ops->sums(&chunk, record->sums);
    record->nonfinite = chunk.nonfinite;
    atomic_store_explicit(&record->stamp, pass->stamp, memory_order_release);
    if (pass->sum != NULL) {
        stream_scaled(pass->sum + number * CHUNK, sum, length, pass->scale, pass->n);
    }
}

void direct_chunks(const struct direct *pass, uint64_t first, uint64_t end)
{
    struct ahead_range ahead = ahead_begin(pass->ahead, AHEAD_DIRECT, end - first);
    for (uint64_t c = first; c < end; c++) {
        direct_chunk(pass, c, ahead_next(&ahead));
    }
    ahead_end(&ahead);
}

uint64_t direct_sums(const struct progress *progress, uint64_t n, double sums[2], double before[2])
{
    uint64_t nonfinite = 0;
    sums[0] = sums[1] = 0;
    for (uint64_t c = 0; c < chunk_count(n); c++) {
        sums[0] += progress->chunk[c].sums[0];
        sums[1] += progress->chunk[c].sums[1];
        nonfinite += progress->chunk[c].nonfinite;
    }
    if (before != NULL) {
        before[0] = progress->before[0];
        before[1] = progress->before[1];
    }
    return nonfinite;
}
