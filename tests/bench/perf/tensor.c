#include "tests/bench/perf/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "kernels/cpu/leave.h"
#include "kernels/cpu/survey.h"
#include "proto/payload.h"
#include "tests/bench/perf/clock.h"

#define ALIGNMENT 64
#define RANGE_ELEMENTS (UINT64_C(1) << 18) /* as its passes have it */

static size_t residual_size(const struct tensor *tensor)
{
    return tensor->kind.rounded ? rounded_size(tensor->n) : tensor->n * sizeof(float);
}

static size_t gradient_size(const struct tensor *tensor)
{
    return tensor->n * dtype_size(tensor->kind.dtype);
}

static struct sparsifier_turn turn_of(const struct tensor *tensor, uint64_t turn)
{
    return (struct sparsifier_turn){.shape = &tensor->shape,
        .params = &tensor->kind.params,
        .agreed = &tensor->agreed,
        .turn = turn,
        .seed = turn + 1};
}

static struct sparsifier_choice choice_of(const struct tensor *tensor, uint64_t turn)
{
    const struct sparsifier_turn of = turn_of(tensor, turn);
    struct sparsifier_choice choice;

    if (tensor->dense) {
        return (struct sparsifier_choice){.view = {.fibres = 1, .length = tensor->n, .stride = 1}};
    }
    tensor->kind.sparsifier->choose(&of, &choice);
    return choice;
}

/* What a turn needs. */
struct need {
    size_t scratch;
    uint64_t entries, fibres; /* fibres that get a hint */
    size_t payload;
};

static struct need need_of(const struct tensor *tensor, uint64_t turn)
{
    const struct sparsifier_choice choice = choice_of(tensor, turn);
    const struct payload_shape payload = {
        .view = choice.view, .per_fibre = choice.per_fibre, .max_count = choice.count};
    const bool fibres = choice.mode == SPARSIFIER_FIBRES;
    const uint64_t k = choice.mode == SPARSIFIER_KNOWN ? 0
                       : fibres                        ? choice.per_fibre
                                                       : choice.count;
    const unsigned ranges = tensor->pass.ranges;

    return (struct need){.scratch = choice.mode == SPARSIFIER_RULE
                                        ? fused_rule_scratch(tensor->n, k, ranges)
                                        : fused_scratch(&choice.view, k, fibres, ranges),
        .entries = choice.count,
        .fibres = fibres && choice.view.length >= ENGINE_HINTED ? choice.view.fibres : 0,
        .payload = payload_list_bound(&payload, choice.count, PAYLOAD_VALUE_F32)};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of all turns: within a period every kind of turn occurs. */
static struct need need_of_all(const struct tensor *tensor)
{
    struct need all = {0};

    for (uint64_t turn = 0; turn < sparsifier_period(&tensor->kind.params); turn++) {
        const struct need need = need_of(tensor, turn);

        all.scratch = larger(all.scratch, need.scratch);
        all.entries = larger(all.entries, need.entries);
        all.fibres = larger(all.fibres, need.fibres);
        all.payload = larger(all.payload, need.payload);
    }
    return all;
}

uint64_t tensor_selected(const struct tensor *tensor)
{
    return tensor->choice.mode == SPARSIFIER_DENSE ? tensor->n : tensor->choice.count;
}

uint64_t tensor_sent(const struct tensor *tensor)
{
    return tensor->choice.mode == SPARSIFIER_DENSE ? tensor->n : tensor->out.count;
}

static bool allocate(struct tensor *tensor, const struct need *need)
{
    struct fused *pass = &tensor->pass;
    bool ok;

    tensor->residual = data_map(residual_size(tensor));
    tensor->start = data_map(residual_size(tensor));
    tensor->base = data_map(gradient_size(tensor));
    pass->progress = data_map(progress_size(tensor->n));
    pass->scratch = aligned_alloc(ALIGNMENT, (need->scratch / ALIGNMENT + 1) * ALIGNMENT);
    tensor->hints = calloc(need->fibres + 1, sizeof(*tensor->hints));
    tensor->out = (struct sparse){.position = malloc((need->entries + 1) * sizeof(uint32_t)),
        .value = malloc((need->entries + 1) * sizeof(float)),
        .capacity = need->entries};
    ok = tensor->residual != NULL && tensor->start != NULL && tensor->base != NULL &&
         pass->progress != NULL && pass->scratch != NULL && tensor->hints != NULL &&
         tensor->out.position != NULL && tensor->out.value != NULL;
    for (unsigned r = 0; r < tensor->kind.ranks && ok; r++) {
        tensor->gradient[r] = data_map(gradient_size(tensor));
        ok = tensor->gradient[r] != NULL;
    }
    if (tensor->kind.rounded) {
        pass->rounded = rounded_at(tensor->residual, tensor->n);
    } else {
        pass->residual = tensor->residual;
    }
    return ok;
}

/* Where gradients and residual begin. */
static bool fill(struct tensor *tensor)
{
    const enum distribution distribution = tensor->kind.distribution;
    const size_t size = tensor->n * sizeof(float);
    float *values = data_map(size), *start = data_map(size);
    bool ok = values != NULL && start != NULL;

    if (ok) {
        data_fill(values, tensor->n, distribution, 1);
        data_store(tensor->base, tensor->kind.dtype, values, tensor->n);
        memset(start, 0, size);
    }
    if (ok && !tensor->dense) { /* what travels dense leaves nothing behind */
        const double density = (double)tensor_selected(tensor) / (double)tensor->n;

        data_residual(start, values, tensor->n, distribution, density / tensor->kind.ranks,
            tensor->choice.mode != SPARSIFIER_FIBRES);
    }
    if (ok && tensor->kind.rounded) {
        const struct rounded rounded = rounded_at(tensor->start, tensor->n);

        rounded_from(&rounded, start, tensor->n);
    } else if (ok) {
        memcpy(tensor->start, start, size);
    }
    data_unmap(values, size);
    data_unmap(start, size);
    return ok;
}

static unsigned ranges_of(uint64_t n, unsigned threads)
{
    const uint64_t ranges = n / RANGE_ELEMENTS;

    return ranges < 1 ? 1 : ranges < threads ? (unsigned)ranges : threads;
}

bool tensor_open(struct tensor *tensor, const struct tensor_kind *kind,
    const struct tensor_shape *shape, unsigned threads)
{
    struct fused *pass = &tensor->pass;
    struct need need;

    *tensor = (struct tensor){.kind = *kind, .shape = *shape, .n = tensor_numel(shape)};
    pass->ranges = ranges_of(tensor->n, threads);
    pass->gradients = (const void *const *)tensor->gradient;
    pass->count = kind->ranks;
    pass->dtype = kind->dtype;
    need = need_of_all(tensor);
    tensor->dense =
        need.entries == 0 || need.payload >= payload_dense_size(tensor->n, PAYLOAD_VALUE_F32);
    need = need_of_all(tensor);
    tensor->choice = choice_of(tensor, 0);
    return allocate(tensor, &need) && fill(tensor);
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
    free(tensor->hints);
    free(tensor->out.position);
    free(tensor->out.value);
}

void tensor_turn(struct tensor *tensor, uint64_t turn)
{
    struct fused *pass = &tensor->pass;
    enum sparsifier_mode mode;

    tensor->turn = turn;
    tensor->choice = choice_of(tensor, turn);
    mode = tensor->choice.mode;
    pass->view = tensor->choice.view;
    pass->per_fibre = mode == SPARSIFIER_FIBRES;
    pass->rule = mode == SPARSIFIER_RULE;
    pass->need = tensor->choice.need;
    pass->k = pass->per_fibre ? tensor->choice.per_fibre : tensor->choice.count;
    if (mode == SPARSIFIER_KNOWN) {
        pass->k = 0;
    }
    pass->guess = tensor->state.threshold;
    pass->hints = !pass->per_fibre                     ? tensor->hints
                  : pass->view.length >= ENGINE_HINTED ? tensor->hints + 1
                                                       : NULL;
    pass->out = mode == SPARSIFIER_TOP || pass->per_fibre ? &tensor->out : NULL;
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
    return (struct floor_work){.r = tensor->pass.residual,
        .half = tensor->pass.rounded.element,
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

static void pass_range(void *arg, unsigned range, unsigned thread)
{
    const struct shared *shared = arg;

    fused_range(shared->pass, range, &shared->journals[thread]);
}

/* Where the pass did not: what the rule takes, or what everybody knows. */
static void select_entries(struct tensor *tensor, const struct parallel *parallel)
{
    const struct sparsifier_ops *ops = tensor->kind.sparsifier;
    const struct sparsifier_turn turn = turn_of(tensor, tensor->turn);
    struct sparse *out = &tensor->out;
    struct cpu_survey survey;

    if (tensor->choice.mode == SPARSIFIER_RULE) {
        fused_survey(&tensor->pass, &survey);
        survey.parallel = *parallel;
        tensor->next = tensor->state;
        ops->select(&turn, &tensor->state, &survey.base, &tensor->next, out);
    } else if (tensor->choice.mode == SPARSIFIER_KNOWN) {
        ops->known(&turn, out);
        for (size_t i = 0; i < out->count; i++) {
            out->value[i] =
                tensor->pass.residual[view_element(&tensor->choice.view, out->position[i])];
        }
    }
}

double tensor_pass(struct tensor *tensor, struct team *team, struct journal *journals)
{
    const struct parallel parallel = team_parallel(team);
    struct shared shared = {&tensor->pass, journals};
    uint64_t begin;

    tensor->pass.stamp++;
    tensor->pass.parallel = parallel;
    begin = clock_ns();
    fused_start(&tensor->pass, tensor->sums);
    parallel_for(&parallel, pass_range, &shared, tensor->pass.ranges);
    select_entries(tensor, &parallel);
    (void)fused_finish(&tensor->pass, tensor->sums);
    return clock_us_between(begin, clock_ns());
}

/* What the sparsifier learns from the turn. */
static void learn(struct tensor *tensor)
{
    const struct sparsifier_ops *ops = tensor->kind.sparsifier;
    const struct sparsifier_turn turn = turn_of(tensor, tensor->turn);
    struct sparsifier_update update = {.count = tensor->out.count};

    tensor->state = tensor->next;
    if (ops->observe != NULL) {
        for (size_t i = 0; i < tensor->out.count; i++) {
            update.sum_abs += fabs((double)tensor->out.value[i]);
        }
        ops->observe(&turn, &update, &tensor->agreed);
    }
}

/* The ledger, then the elements. What was sent as f32 leaves nothing behind. */
static void settle_list(struct tensor *tensor, struct team *team)
{
    const struct parallel parallel = team_parallel(team);
    const struct leave leave = {&tensor->choice.view, &tensor->out, NULL};

    leave_sums(&leave, tensor->applied, &parallel);
    if (tensor->kind.rounded) {
        leave_rounded(tensor->pass.rounded.element, &leave, &parallel);
    } else {
        leave_residual(tensor->residual, NULL, &leave, tensor->out.value, &parallel);
    }
}

double tensor_settle(struct tensor *tensor, struct team *team)
{
    const uint64_t begin = clock_ns();
    double time;

    if (tensor->dense && tensor->kind.rounded) {
        rounded_sums(&tensor->pass.rounded, tensor->n, tensor->applied);
        memset(tensor->residual, 0, residual_size(tensor));
    } else if (tensor->dense) {
        ledger_sums(tensor->residual, tensor->n, tensor->applied);
        memset(tensor->residual, 0, residual_size(tensor));
    } else {
        settle_list(tensor, team);
    }
    time = clock_us_between(begin, clock_ns());
    memcpy(tensor->start, tensor->residual, residual_size(tensor));
    if (!tensor->dense) {
        learn(tensor);
    }
    return time;
}
