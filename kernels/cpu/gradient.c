#include "kernels/cpu/gradient.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/momentum.h"
#include "kernels/cpu/stats.h"

static bool gradient_is_scaled(const struct fused *pass)
{
    return pass->scale != 0 && pass->scale != 1;
}

/* Elements that are not finite before they are scaled, are not afterwards. */
static void gradient_scale(float *sum, unsigned length, float scale)
{
    for (unsigned i = 0; i < length; i++) {
        const bool finite = fabsf(sum[i]) < KERNEL_FINITE_LIMIT;
        sum[i] = finite ? sum[i] * scale : INFINITY;
    }
}

static void gradient_gather(const struct fused *pass, uint64_t first, unsigned length, float *sum)
{
    pass->ops->gather(sum, pass->gradients, pass->count, pass->dtype, first, length);
    if (gradient_is_scaled(pass)) {
        gradient_scale(sum, length, pass->scale);
    }
}

static void gradient_move(
    const struct fused *pass, struct chunk *chunk, unsigned length, float *sum)
{
    float *m = pass->momentum + chunk->number * CHUNK;
    if (chunk->journal != NULL) {
        memcpy(chunk->journal->momentum, m, length * sizeof *m);
        journal_move(chunk->journal, length);
    }
    chunk->nonfinite +=
        (pass->withdraw ? momentum_undo : momentum_step)(m, sum, length, pass->mu, pass->nesterov);
}

/* The opposite of what a value comes to on the wire. */
static void gradient_take(enum fused_take take, const float *x, unsigned length, float *sum)
{
    for (unsigned i = 0; i < length; i++) {
        sum[i] = -(take == FUSED_TAKE_BF16 ? bf16_to_f32(bf16_from_f32(x[i])) : x[i]);
    }
}

void gradient_take_rest(const struct fused *pass, uint64_t number, unsigned length,
    const float *sum, struct chunk_record *record)
{
    float *x = pass->residual + number * CHUNK;
    record->nonfinite = 0;
    for (unsigned i = 0; i < length; i++) {
        if (fabsf(sum[i]) < KERNEL_FINITE_LIMIT) {
            continue;
        }
        const bool finite = isfinite(sum[i]);
        x[i] = finite ? x[i] + sum[i] : 0;
        record->nonfinite += !finite;
        record->sums[0] += finite ? (double)sum[i] : 0;
        record->sums[1] += finite ? (double)sum[i] * ledger_sign(number * CHUNK + i) : 0;
    }
}

const float *gradient_sum(
    const struct fused *pass, struct chunk *chunk, unsigned length, float buffer[CHUNK])
{
    const uint64_t first = chunk->number * CHUNK;
    if (pass->take != FUSED_TAKE_NOTHING) {
        gradient_take(pass->take, chunk->acc, length, buffer);
        return buffer;
    }
    if (pass->count == 1 && pass->gradients[0] != NULL && pass->dtype == DTYPE_F32 &&
        pass->momentum == NULL && !pass->withdraw && !gradient_is_scaled(pass)) {
        return (const float *)pass->gradients[0] + first;
    }
    gradient_gather(pass, first, length, buffer);
    if (pass->momentum != NULL) {
        gradient_move(pass, chunk, length, buffer);
    }
    for (unsigned i = 0; pass->withdraw && i < length; i++) {
        buffer[i] = -buffer[i];
    }
    return buffer;
}

void gradient_peek(const struct fused *pass, uint64_t first, unsigned length, float *sum)
{
    gradient_gather(pass, first, length, sum);
    if (pass->momentum != NULL) {
        float m[CHUNK_WORD];
        memcpy(m, pass->momentum + first, length * sizeof *m);
        (void)momentum_step(m, sum, length, pass->mu, pass->nesterov);
    }
}

double fused_gradient_norm(const struct fused *pass)
{
    const struct chunk_ops *ops = pass->ops != NULL ? pass->ops : chunk_best();
    const struct stats_ops *stats = pass->surveyed != NULL ? pass->surveyed : stats_best();
    const uint64_t n = view_size(&pass->view);
    double total = 0;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const unsigned length = n - first < CHUNK ? (unsigned)(n - first) : CHUNK;
        float sum[CHUNK];
        ops->gather(sum, pass->gradients, pass->count, pass->dtype, first, length);
        for (unsigned i = 0; i < length; i++) {
            sum[i] = fabsf(sum[i]) < KERNEL_FINITE_LIMIT ? sum[i] : 0;
        }
        total += stats_chunk(stats, sum, length, 1).sum_squares;
    }
    return sqrt(total);
}
