/*
 * The passes over one residual: gradients in, gradients out again, what travels densely out, the
 * residuals of other ranks in. Each is journalled and has a stamp of its own, so that it happens
 * once, however often it is repeated.
 *
 * A large residual is cut into ranges that idle workers share; the result does not depend on it.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/pass.h"
#include "daemon/core/plan.h"
#include "kernels/cpu/direct.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/survey.h"

struct pass {
    struct work *work;
    uint32_t t;
    unsigned rank;
    struct parallel parallel;
    struct fused fused;
};

/* How many ranges of a tensor are worth a worker each. */
static unsigned ranges_of(const struct job *job, uint32_t t, const struct parallel *parallel)
{
    uint64_t range = job->core->config.range > 0 ? job->core->config.range : CORE_RANGE;
    uint64_t ranges = job->tensor[t].numel / range;
    uint64_t most = parallel_threads(parallel);

    most = most < FUSED_MAX_RANGES ? most : FUSED_MAX_RANGES;
    ranges = ranges < most ? ranges : most;
    return ranges > 1 ? (unsigned)ranges : 1;
}

static struct pass pass_of(struct work *work, uint32_t t, unsigned rank, enum store_pass kind)
{
    const struct job *job = work->job;
    const struct tensor *tensor = &job->tensor[t];
    struct pass pass = {.work = work, .t = t, .rank = rank, .parallel = work_parallel(work)};

    pass.fused = (struct fused){
        .residual = layout_residual(job, t, rank),
        .rounded = rank == 0 ? layout_rounded(job, t) : (struct rounded){.element = NULL},
        .view = {.fibres = 1, .length = tensor->numel, .stride = 1},
        .dtype = tensor->spec.dtype,
        .id = layout_number(t, rank),
        .stamp = store_stamp(job->store, kind),
        .progress = layout_progress(job, t, rank),
        .ranges = ranges_of(job, t, &pass.parallel),
    };
    return pass;
}

/* What the policy makes of the gradients before they are added: clipping, momentum. The norm that
 * one rank's gradient may have is clip / sqrt(ranks), that of a sum as often as it has ranks. */
static void prepare(struct pass *pass, const struct kept *kept)
{
    const struct job *job = pass->work->job;
    const struct sparsifier_params *params = &job->plan->tensor[pass->t].policy.params;
    double limit = params->clip * pass->fused.count / sqrt((double)job->world_size);
    double norm;

    if (params->clip > 0) {
        norm = fused_gradient_norm(&pass->fused, &pass->parallel);
        pass->fused.scale = norm > limit ? fmaxf((float)(limit / norm), FLT_MIN) : 1.0f;
    }
    pass->fused.momentum = kept != NULL ? kept->momentum : NULL;
    pass->fused.mu = (float)params->momentum;
    pass->fused.nesterov = params->nesterov;
}

static void run_range(void *arg, unsigned range, unsigned thread)
{
    struct pass *pass = arg;
    const struct job *job = pass->work->job;

    fused_range(&pass->fused, range, job->core->config.threads > 0 ? &job->journal[thread] : NULL);
}

/* Everything but what comes after the ranges. Scratch is the caller's to free. */
static enum adtopk_status run_ranges(struct pass *pass, const double sums[2])
{
    struct fused *fused = &pass->fused;
    size_t size = fused->rule
                      ? fused_rule_scratch(view_size(&fused->view), fused->k, fused->ranges)
                      : fused_scratch(&fused->view, fused->k, fused->per_fibre, fused->ranges);

    fused->scratch = aligned_alloc(64, (size + 63) / 64 * 64);
    if (fused->scratch == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    fused->parallel = pass->parallel;
    fused_start(fused, sums);
    parallel_for(&pass->parallel, run_range, pass, fused->ranges);
    return ADTOPK_OK;
}

/* A pass that selects nothing. */
static enum adtopk_status run_plain(struct pass *pass, double sums[2])
{
    if (run_ranges(pass, sums) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    (void)fused_finish(&pass->fused, sums);
    free(pass->fused.scratch);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ adding and selecting */

static struct sparsifier_state state_of(const struct pass *pass)
{
    const struct job *job = pass->work->job;
    const struct store_states *states = layout_states(job, pass->t, pass->rank);
    unsigned now = (unsigned)(job->tensor[pass->t].store->turn % 2);
    struct sparsifier_state none = {.threshold = 0};

    return store_remembers(job->store, job->tensor[pass->t].store, states->after[now])
               ? states->state[now]
               : none;
}

static void keep_state(const struct pass *pass, const struct sparsifier_state *next)
{
    const struct job *job = pass->work->job;
    struct store_states *states = layout_states(job, pass->t, pass->rank);
    unsigned then = (unsigned)((job->tensor[pass->t].store->turn + 1) % 2);

    states->state[then] = *next;
    states->after[then] = job->store->policies;
}

/* Tells the kernels what the turn selects. */
static void choose(struct pass *pass, const struct sparsifier_choice *choice, struct sparse *out)
{
    const struct planned *planned = &pass->work->job->plan->tensor[pass->t];
    float *hints = planned->hints + pass->rank * (1 + planned->fibres);
    struct fused *fused = &pass->fused;

    fused->view = choice->view;
    switch (choice->mode) {
    case SPARSIFIER_DENSE:
    case SPARSIFIER_KNOWN: break;
    case SPARSIFIER_TOP:
        fused->k = choice->count;
        fused->hints = hints;
        fused->out = out;
        break;
    case SPARSIFIER_FIBRES:
        fused->k = choice->per_fibre;
        fused->per_fibre = true;
        fused->out = out;
        fused->hints = choice->view.fibres <= planned->fibres ? hints + 1 : NULL;
        break;
    case SPARSIFIER_RULE:
        fused->rule = true;
        fused->k = choice->count;
        fused->need = choice->need;
        fused->guess = state_of(pass).threshold;
        break;
    }
}

/* What is left to do when the residual is complete. */
static void select_rest(
    struct pass *pass, const struct sparsifier_choice *choice, struct sparse *out)
{
    const struct job *job = pass->work->job;
    const struct sparsifier_ops *ops = job->plan->tensor[pass->t].policy.sparsifier;
    struct sparsifier_turn turn = plan_turn(job, pass->t);
    struct sparsifier_state state = state_of(pass), next = state;
    struct survey survey;

    if (choice->mode == SPARSIFIER_RULE) {
        fused_survey(&pass->fused, &survey);
        survey.parallel = pass->parallel;
        ops->select(&turn, &state, &survey, &next, out);
    }
    if (choice->mode == SPARSIFIER_KNOWN) {
        ops->known(&turn, out);
        for (size_t i = 0; i < out->count; i++) {
            out->value[i] = pass->fused.residual[view_element(&choice->view, out->position[i])];
        }
    }
    keep_state(pass, &next);
}

enum adtopk_status pass_add(struct work *work, uint32_t t, unsigned rank,
    const void *const *gradients, unsigned count, struct kept *kept)
{
    struct pass pass = pass_of(work, t, rank, STAMP_ADD);
    struct store_tensor *store = work->job->tensor[t].store;
    const struct planned *planned = &work->job->plan->tensor[t];
    struct sparsifier_choice choice = {.mode = SPARSIFIER_DENSE};

    pass.fused.gradients = gradients;
    pass.fused.count = count;
    prepare(&pass, kept);
    if (!planned->dense) {
        kept->list.count = 0;
        if (!plan_is_whole(planned)) {
            choice = plan_choice(work->job, t);
            choose(&pass, &choice, &kept->list);
        }
    }
    store_publish(&store->filled, 1);
    if (run_ranges(&pass, store->input) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (!planned->dense) {
        select_rest(&pass, &choice, &kept->list);
    }
    if (fused_finish(&pass.fused, store->input) > 0) {
        store->nonfinite = 1;
    }
    free(pass.fused.scratch);
    return ADTOPK_OK;
}

enum adtopk_status pass_withdraw(struct work *work, uint32_t t, unsigned rank,
    const void *const *gradients, unsigned count, struct kept *kept)
{
    struct pass pass = pass_of(work, t, rank, STAMP_WITHDRAW);

    pass.fused.gradients = gradients;
    pass.fused.count = count;
    pass.fused.withdraw = true;
    prepare(&pass, kept);
    return run_plain(&pass, work->job->tensor[t].store->input);
}

enum adtopk_status pass_join(struct work *work, uint32_t t, const void *const *others)
{
    struct pass pass = pass_of(work, t, 0, STAMP_JOIN);
    double sums[2] = {0, 0}; /* nothing comes in */

    store_publish(&work->job->tensor[t].store->filled, 1);
    pass.fused.gradients = others;
    pass.fused.count = work->job->ranks - 1;
    pass.fused.dtype = DTYPE_F32;
    return run_plain(&pass, sums);
}

/* What comes back of the step's sums that this node rounded: those that the ranks see. */
static struct rest rest_of(const struct job *job, uint32_t t)
{
    const struct store_rest *kept = &job->tensor[t].store->rest;
    const float *dense =
        (const float *)(const void *)(job->results + layout_update(job, t)->dense_offset);
    const struct tensor_policy *policy = &job->plan->tensor[t].policy;
    bool partial = policy->dense_collective->partial;
    bool scaled = !partial && job->plan->policy.reduce == REDUCE_MEAN;

    if (kept->step != job->store->steps_done + 1 || kept->count == 0 ||
        kept->place + kept->count > job->plan->rests) {
        return (struct rest){.count = 0};
    }
    return (struct rest){.rounded = partial ? NULL : dense + kept->first,
        .low = job->plan->rest + kept->place,
        .type = (enum quantisation)policy->dense_values,
        .first = kept->first,
        .count = kept->count,
        .unscale = scaled ? (float)job->world_size : 1.0f};
}

enum adtopk_status pass_take(struct work *work, uint32_t t, double taken[2])
{
    static const enum fused_take take[PAYLOAD_VALUE_COUNT] = {
        [PAYLOAD_VALUE_F32] = FUSED_TAKE_F32,
        [PAYLOAD_VALUE_BF16] = FUSED_TAKE_BF16,
        [PAYLOAD_VALUE_F16] = FUSED_TAKE_F16,
    };
    struct pass pass = pass_of(work, t, 0, STAMP_TAKE);
    double sums[2] = {0, 0};
    enum adtopk_status status;

    pass.fused.rest = rest_of(work->job, t);
    pass.fused.take = take[work->job->plan->tensor[t].policy.dense_values];
    status = run_plain(&pass, sums);
    taken[0] = -sums[0];
    taken[1] = -sums[1];
    return status;
}

/* ------------------------------------------------------------------ past the residual */

struct direct_pass {
    struct direct direct;
    unsigned ranges;
};

static void direct_range(void *arg, unsigned range, unsigned thread)
{
    const struct direct_pass *pass = arg;
    uint64_t chunks = chunk_count(pass->direct.n);

    (void)thread;
    direct_chunks(
        &pass->direct, chunks * range / pass->ranges, chunks * (range + 1) / pass->ranges);
}

void pass_direct(struct work *work, uint32_t t, const void *const *gradients, float *sum)
{
    const struct job *job = work->job;
    const struct parallel parallel = work_parallel(work);
    struct store_tensor *store = job->tensor[t].store;
    struct direct_pass pass = {.direct = {.gradients = gradients,
                                   .count = job->ranks,
                                   .dtype = job->tensor[t].spec.dtype,
                                   .n = job->tensor[t].numel,
                                   .sum = sum,
                                   .scale = work->round->exchange.scale,
                                   .stamp = store_stamp(job->store, STAMP_DIRECT),
                                   .progress = layout_progress(job, t, 0)},
        .ranges = ranges_of(job, t, &parallel)};
    double taken[2];

    direct_start(&pass.direct, store->input);
    parallel_for(&parallel, direct_range, &pass, pass.ranges);
    if (direct_sums(pass.direct.progress, pass.direct.n, taken, NULL) > 0) {
        store->nonfinite = 1;
    }
}

void pass_direct_sums(const struct job *job, uint32_t t, double taken[2], double before[2])
{
    (void)direct_sums(layout_progress(job, t, 0), job->tensor[t].numel, taken, before);
}
