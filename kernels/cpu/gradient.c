#include "kernels/cpu/gradient.h"

#include <math.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "kernels/base/parallel.h"
#include "kernels/base/rests.h"
#include "kernels/base/wide.h"
#include "kernels/cpu/momentum.h"
#include "kernels/cpu/stats.h"

/* A norm is formed in so many parts, of fewer chunks than that in one. */
enum { NORM_PARTS = 64, NORM_WHOLE = 256 };

/* Elements; bytes of a cache line, and how far ahead of use memory is fetched. */
enum { PIECE = 512, LINE = 64, AHEAD = 4096 };

static struct gradients gradient_all(const struct fused *pass, bool ahead)
{
    return (struct gradients){pass->gradients, pass->count, pass->dtype, ahead};
}

static bool gradient_is_scaled(const struct fused *pass)
{
    return pass->scale != 0 && pass->scale != 1;
}

/* Elements that are not finite before they are scaled, are not afterwards. */
static void gradient_scaled(
    const struct fused *pass, bool ahead, uint64_t first, unsigned length, float *sum)
{
    const struct gradients gradients = gradient_all(pass, ahead);
    pass->ops->gather(&gradients, first, length, sum);
    for (unsigned i = 0; gradient_is_scaled(pass) && i < length; i++) {
        const float finite = fabsf(sum[i]) < KERNEL_FINITE_LIMIT ? sum[i] : INFINITY;
        sum[i] = finite * pass->scale;
    }
}

/* If it is wanted, fetches the momentum of the pieces to come; gather does so with the gradients.
 */
static void gradient_fetch(bool wanted, const float *momentum, unsigned length)
{
    for (size_t i = 0; wanted && i < length * sizeof *momentum; i += LINE) {
        __builtin_prefetch((const char *)momentum + AHEAD + i, 1, 3);
    }
}

/* One piece of a chunk; it stays in the first-level cache from one step to the next. */
static void gradient_piece(
    const struct fused *pass, struct chunk *chunk, unsigned done, unsigned length, float *sum)
{
    const uint64_t first = chunk->number * CHUNK + done;
    const bool ahead = chunk->gradients.ahead;
    if (pass->momentum == NULL) {
        gradient_scaled(pass, ahead, first, length, sum);
        return;
    }
    float g[PIECE];
    gradient_scaled(pass, ahead, first, length, g);
    float *m = pass->momentum + first;
    gradient_fetch(ahead, m, length);
    if (chunk->journal != NULL) {
        journal_copy(chunk->journal, true, m, done, length);
    }
    const struct momentum_rule rule = {.mu = pass->mu, .nesterov = pass->nesterov};
    const struct momentum_ops *ops = momentum_best();
    chunk->nonfinite += (pass->withdraw ? ops->undo : ops->step)(rule, m, g, sum, length);
}

/* The opposite of what leaves the residual. There is one loop per type, so that they vectorise. */
WIDE_BODY void take_body(enum fused_take take, const float *x, unsigned length, float *sum)
{
    switch (take) {
    case FUSED_TAKE_BF16:
        for (unsigned i = 0; i < length; i++) {
            sum[i] = -rests_sent(QUANTISE_BF16, x[i]);
        }
        break;
    case FUSED_TAKE_F16:
        for (unsigned i = 0; i < length; i++) {
            sum[i] = -rests_sent(QUANTISE_F16, x[i]);
        }
        break;
    case FUSED_TAKE_RESTS: memset(sum, 0, length * sizeof *sum); break;
    default:
        for (unsigned i = 0; i < length; i++) {
            sum[i] = -x[i];
        }
    }
}

WIDE static void take_wide(enum fused_take take, const float *x, unsigned length, float *sum)
{
    take_body(take, x, length, sum);
}

static void take_plain(enum fused_take take, const float *x, unsigned length, float *sum)
{
    take_body(take, x, length, sum);
}

static void gradient_take(enum fused_take take, const float *x, unsigned length, float *sum)
{
    (wide_is_there() ? take_wide : take_plain)(take, x, length, sum);
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

/* Takes the decay of the elements x out of what is added to them: sum -= decay * x. An element
 * whose gradient is not finite is left out, and does not decay either. lost: what goes. */
static void gradient_decay(
    float decay, const float *x, unsigned length, float *restrict sum, float *restrict lost)
{
    for (unsigned i = 0; i < length; i++) {
        const float gone = decay * x[i];
        const bool whole =
            fabsf(sum[i]) < KERNEL_FINITE_LIMIT && fabsf(sum[i] - gone) < KERNEL_FINITE_LIMIT;
        lost[i] = whole ? gone : 0;
        sum[i] -= lost[i];
    }
}

/* The inverse, after a step of which `sum` is the opposite: the elements x become what they were.
 * lost: what comes back, negative. */
static void gradient_undecay(
    float decay, const float *x, unsigned length, float *restrict sum, float *restrict lost)
{
    for (unsigned i = 0; i < length; i++) {
        const float kept = x[i] + sum[i];
        const float before = kept / (1 - decay);
        const bool whole =
            fabsf(sum[i]) < KERNEL_FINITE_LIMIT && fabsf(before) < KERNEL_FINITE_LIMIT;
        lost[i] = whole ? kept - before : 0;
        sum[i] = whole ? before - x[i] : sum[i];
    }
}

/* The elements decay, too. What is added depends on their old bytes then. */
static void gradient_with_decay(
    const struct fused *pass, struct chunk *chunk, unsigned length, float *sum)
{
    float lost[CHUNK];
    if (chunk->journal != NULL) {
        journal_copy(chunk->journal, false, chunk->acc, 0, length);
    }
    (pass->withdraw ? gradient_undecay : gradient_decay)(
        pass->decay.share, chunk->acc, length, sum, lost);
    ledger_chunk(lost, length, chunk->number, chunk->lost);
}

/* The plain sum is added. */
static bool gradient_is_plain(const struct fused *pass)
{
    return !gradient_is_scaled(pass) && pass->momentum == NULL && !pass->withdraw &&
           !(pass->decay.share > 0);
}

/* The sum is the gradient itself. */
static bool gradient_is_only(const struct fused *pass)
{
    return pass->count == 1 && pass->gradients[0] != NULL && pass->dtype == DTYPE_F32;
}

void gradient_sum(
    const struct fused *pass, struct chunk *chunk, unsigned length, bool ahead, float buffer[CHUNK])
{
    const bool takes = pass->take != FUSED_TAKE_NOTHING;
    chunk->sum = buffer;
    chunk->gradients = gradient_all(pass, ahead);
    if (!takes && gradient_is_plain(pass)) {
        chunk->sum = gradient_is_only(pass)
                         ? (const float *)pass->gradients[0] + chunk->number * CHUNK
                         : NULL;
        return;
    }
    if (takes && chunk->journal != NULL) {
        journal_copy(chunk->journal, false, chunk->acc, 0, length);
    }
    if (takes) {
        gradient_take(pass->take, chunk->acc, length, buffer);
        for (unsigned i = 0; i < FUSED_RESTS; i++) {
            rest_add(&pass->rest[i], chunk->number * CHUNK, length, buffer);
        }
        return;
    }
    for (unsigned done = 0; done < length; done += PIECE) {
        const unsigned rest = length - done;
        gradient_piece(pass, chunk, done, rest < PIECE ? rest : PIECE, buffer + done);
    }
    for (unsigned i = 0; pass->withdraw && i < length; i++) {
        buffer[i] = -buffer[i];
    }
    if (pass->decay.share > 0) {
        gradient_with_decay(pass, chunk, length, buffer);
    }
}

void gradient_peek(const struct fused *pass, uint64_t first, unsigned length, float *sum)
{
    if (pass->momentum == NULL) {
        gradient_scaled(pass, false, first, length, sum);
        for (unsigned i = 0; pass->decay.share > 0 && i < length; i++) {
            sum[i] -= pass->decay.share * pass->residual[first + i];
        }
        return;
    }
    float g[CHUNK_WORD];
    gradient_scaled(pass, false, first, length, g);
    float m[CHUNK_WORD];
    memcpy(m, pass->momentum + first, length * sizeof *m);
    const struct momentum_rule rule = {.mu = pass->mu, .nesterov = pass->nesterov};
    (void)momentum_best()->step(rule, m, g, sum, length);
}

static double gradient_all_squares(const struct stats_ops *ops, const float *x, unsigned length)
{
    struct stats_lanes lanes = stats_lanes_none();
    stats_add(ops, &lanes, x, length, SURVEY_SQUARES);
    return stats_fold(&lanes).sum_squares;
}

/* The sum of the squares of at most CHUNK elements, without those that are not finite. */
static double gradient_squares(const struct stats_ops *ops, const float *sum, unsigned length)
{
    const double limit = (double)KERNEL_FINITE_LIMIT;
    const double squares = gradient_all_squares(ops, sum, length);
    float finite[CHUNK];
    if (squares < limit * limit) {
        return squares;
    }
    for (unsigned i = 0; i < length; i++) {
        finite[i] = fabsf(sum[i]) < KERNEL_FINITE_LIMIT ? sum[i] : 0;
    }
    return gradient_all_squares(ops, finite, length);
}

/* The squares of a gradient, in parts that depend on its size only. */
struct gradient_norm {
    struct fused pass;
    uint64_t chunks; /* of a part */
    double part[NORM_PARTS];
};

static void gradient_norm_part(void *arg, unsigned part, unsigned thread)
{
    struct gradient_norm *norm = arg;
    const uint64_t n = view_size(&norm->pass.view);
    struct ahead_range ahead = ahead_begin(norm->pass.parallel.ahead, AHEAD_NORM, norm->chunks);
    uint64_t end = (part + 1) * norm->chunks * CHUNK;
    double sum = 0;
    (void)thread;
    end = end < n ? end : n;
    for (uint64_t first = part * norm->chunks * CHUNK; first < end; first += CHUNK) {
        const unsigned length = n - first < CHUNK ? (unsigned)(n - first) : CHUNK;
        const struct gradients gradients = gradient_all(&norm->pass, ahead_next(&ahead));
        float buffer[CHUNK];
        norm->pass.ops->gather(&gradients, first, length, buffer);
        sum += gradient_squares(norm->pass.surveyed, buffer, length);
    }
    ahead_end(&ahead);
    norm->part[part] = sum;
}

double fused_gradient_norm(const struct fused *pass, const struct parallel *parallel)
{
    const uint64_t chunks = chunk_count(view_size(&pass->view));
    const unsigned parts = chunks < NORM_WHOLE ? 1 : NORM_PARTS;
    struct gradient_norm norm = {.pass = *pass, .chunks = (chunks + parts - 1) / parts};
    double total = 0;
    norm.pass.parallel = *parallel;
    norm.pass.ops = pass->ops != NULL ? pass->ops : chunk_best();
    norm.pass.surveyed = pass->surveyed != NULL ? pass->surveyed : stats_best();
    parallel_for(parallel, gradient_norm_part, &norm, parts);
    for (unsigned p = 0; p < parts; p++) {
        total += norm.part[p];
    }
    return sqrt(total);
}
