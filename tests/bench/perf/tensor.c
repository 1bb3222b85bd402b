#include "tests/bench/perf/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "proto/payload.h"
#include "tests/bench/perf/clock.h"

#define ALIGNMENT 64
#define HINTED_LENGTH 128u /* as the daemon's plan has it */

static size_t residual_size(const struct tensor *tensor)
{
    return tensor->n * sizeof(float);
}

static size_t gradient_size(const struct tensor *tensor)
{
    return tensor->n * dtype_size(tensor->kind.dtype);
}

/* What the daemon's plan makes of the shape: dense where the sparse payload would not be smaller.
 */
static void choose(struct tensor *tensor, const struct tensor_shape *shape)
{
    const struct sparsifier_ops *ops = tensor->kind.sparsifier;
    const struct sparsifier_params params = {.density = tensor->kind.density};
    struct fused *pass = &tensor->pass;
    const uint64_t per_fibre = ops->per_fibre(shape, &params, 0);
    const uint64_t count = ops->count(shape, &params, 0);
    const struct payload_shape payload = {
        .view = ops->view(shape, &params, 0), .per_fibre = per_fibre, .max_count = count};
    const bool dense = count == 0 || payload_list_bound(&payload, count, PAYLOAD_VALUE_F32) >=
                                         payload_dense_size(tensor->n, PAYLOAD_VALUE_F32);

    pass->view =
        dense ? (struct view){.fibres = 1, .length = tensor->n, .stride = 1} : payload.view;
    pass->per_fibre = !dense && per_fibre > 0;
    pass->k = dense ? 0 : per_fibre > 0 ? per_fibre : count;
}

uint64_t tensor_selected(const struct tensor *tensor)
{
    const struct fused *pass = &tensor->pass;

    if (pass->k == 0) {
        return tensor->n;
    }
    return pass->per_fibre ? pass->view.fibres * pass->k : pass->k;
}

static bool allocate(struct tensor *tensor)
{
    struct fused *pass = &tensor->pass;
    const size_t scratch = fused_scratch(&pass->view, pass->k, pass->per_fibre, pass->ranges);
    const uint64_t most = pass->k > 0 ? tensor_selected(tensor) : 0;
    bool ok;

    tensor->residual = pass->residual = data_map(residual_size(tensor));
    tensor->start = data_map(residual_size(tensor));
    tensor->base = data_map(gradient_size(tensor));
    pass->progress = data_map(progress_size(tensor->n));
    pass->scratch = aligned_alloc(ALIGNMENT, (scratch / ALIGNMENT + 1) * ALIGNMENT);
    tensor->out = (struct sparse){.position = malloc((most + 1) * sizeof(uint32_t)),
        .value = malloc((most + 1) * sizeof(float)),
        .capacity = most};
    ok = tensor->residual != NULL && tensor->start != NULL && tensor->base != NULL &&
         pass->progress != NULL && pass->scratch != NULL && tensor->out.position != NULL &&
         tensor->out.value != NULL;
    if (pass->per_fibre && pass->view.length >= HINTED_LENGTH) {
        pass->hints = calloc(pass->view.fibres, sizeof(*pass->hints));
        ok = ok && pass->hints != NULL;
    }
    for (unsigned r = 0; r < tensor->kind.ranks && ok; r++) {
        tensor->gradient[r] = data_map(gradient_size(tensor));
        ok = tensor->gradient[r] != NULL;
    }
    return ok;
}

bool tensor_open(struct tensor *tensor, const struct tensor_kind *kind,
    const struct tensor_shape *shape, unsigned ranges)
{
    struct fused *pass = &tensor->pass;

    *tensor = (struct tensor){.kind = *kind, .n = tensor_numel(shape)};
    choose(tensor, shape);
    pass->ranges = ranges;
    pass->gradients = (const void *const *)tensor->gradient;
    pass->count = kind->ranks;
    pass->dtype = kind->dtype;
    if (!allocate(tensor)) {
        return false;
    }
    pass->out = pass->k > 0 ? &tensor->out : NULL;
    memset(tensor->start, 0, residual_size(tensor));
    data_fill(tensor->residual, tensor->n, kind->distribution, 1);
    data_store(tensor->base, kind->dtype, tensor->residual, tensor->n);
    if (pass->k > 0) { /* what travels dense leaves nothing behind */
        const double density = (double)tensor_selected(tensor) / (double)tensor->n;

        data_residual(tensor->start, tensor->residual, tensor->n, kind->distribution,
            density / kind->ranks, !pass->per_fibre);
    }
    return true;
}

void tensor_close(struct tensor *tensor)
{
    struct fused *pass = &tensor->pass;

    data_unmap(tensor->residual, residual_size(tensor));
    data_unmap(tensor->start, residual_size(tensor));
    data_unmap(tensor->base, gradient_size(tensor));
    data_unmap(pass->progress, progress_size(tensor->n));
    for (unsigned r = 0; r < tensor->kind.ranks; r++) {
        data_unmap(tensor->gradient[r], gradient_size(tensor));
    }
    free(pass->scratch);
    free(pass->hints);
    free(tensor->out.position);
    free(tensor->out.value);
}

void tensor_turn(struct tensor *tensor, uint64_t turn)
{
    for (unsigned r = 0; r < tensor->kind.ranks; r++) {
        data_turn(tensor->gradient[r], tensor->base, dtype_size(tensor->kind.dtype), tensor->n,
            tensor->kind.distribution, turn * TENSOR_RANKS_MAX + r);
    }
}

void tensor_restore(struct tensor *tensor)
{
    memcpy(tensor->residual, tensor->start, residual_size(tensor));
}

struct floor_work tensor_floor(const struct tensor *tensor)
{
    return (struct floor_work){.r = tensor->residual,
        .g = tensor->pass.gradients,
        .count = tensor->kind.ranks,
        .dtype = tensor->kind.dtype,
        .n = tensor->n};
}

/* A pass and the journals of the threads. */
struct shared {
    struct fused *pass;
    struct journal *journals;
};

static void pass_range(void *context, unsigned index)
{
    const struct shared *shared = context;

    fused_range(shared->pass, index, &shared->journals[index]);
}

double tensor_pass(struct tensor *tensor, struct team *team, struct journal *journals)
{
    struct shared shared = {&tensor->pass, journals};
    uint64_t begin;

    tensor->pass.stamp++;
    begin = clock_ns();
    fused_start(&tensor->pass, tensor->sums);
    team_run(team, pass_range, &shared);
    (void)fused_finish(&tensor->pass, tensor->sums);
    return clock_us_between(begin, clock_ns());
}

double tensor_settle(struct tensor *tensor)
{
    double applied[2] = {0};
    const uint64_t begin = clock_ns();
    double time;

    if (tensor->pass.k > 0) {
        tensor->kind.sparsifier->settle(
            tensor->residual, &tensor->pass.view, &tensor->out, NULL, applied);
    } else {
        memset(tensor->residual, 0, residual_size(tensor));
    }
    time = clock_us_between(begin, clock_ns());
    memcpy(tensor->start, tensor->residual, residual_size(tensor));
    return time;
}
