/*
 * The passes over one residual. They add gradients, subtract them again, subtract values that were
 * sent dense, or add the residuals of other ranks. Each pass is journalled and has a stamp of its
 * own. So it takes effect once, however often it is repeated.
 *
 * A large residual is cut into ranges that idle workers share; the result does not depend on the
 * cut.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/host.h"

struct pass {
    const struct host *host;
    const void **input; /* addresses of the parts */
    struct fused fused;
};

/* Returns false without memory. */
static bool pass_init(struct pass *pass, const struct host *host)
{
    const struct engine_order *order = host->order;

    pass->host = host;
    pass->input = malloc((order->parts > 0 ? order->parts : 1) * sizeof(*pass->input));
    for (unsigned i = 0; pass->input != NULL && i < order->parts; i++) {
        pass->input[i] = host_at(host, host->part[i].element);
    }
    pass->fused = (struct fused){
        .residual = host_residual(host),
        .rounded = host_rounded(host),
        .view = {.fibres = 1, .length = order->numel, .stride = 1},
        .gradients = pass->input,
        .count = order->parts,
        .dtype = order->dtype,
        .id = order->residual.number,
        .stamp = order->stamp,
        .progress = host_at(host, order->residual.progress),
        .ranges = host_ranges(host),
    };
    return pass->input != NULL;
}

/* Sets what happens to the gradients before they are added (loss scale, clipping, error feedback's
 * factor, momentum), and to the residual. */
static void pass_prepare(struct pass *pass)
{
    const struct engine_add *add = &pass->host->order->add;

    pass->fused.scale = add->unscale;
    if (add->clip > 0) {
        double norm =
            fused_gradient_norm(&pass->fused, &pass->host->parallel) * (double)add->unscale;
        float factor = norm > add->clip ? (float)(add->clip / norm) : 1.0f;
        pass->fused.scale = fmaxf(factor * add->unscale, FLT_MIN);
    }
    if (add->params.gamma < 1 || add->params.gamma > 1) {
        pass->fused.scale = fmaxf((float)add->params.gamma * pass->fused.scale, FLT_MIN);
    }
    pass->fused.decay.share = (float)(1 - add->params.beta);
    pass->fused.decay.lost = host_at(pass->host, pass->host->order->lost);
    pass->fused.momentum = host_at(pass->host, pass->host->order->residual.momentum);
    pass->fused.mu = (float)add->params.momentum;
    pass->fused.nesterov = add->params.nesterov;
}

static void pass_range(void *arg, unsigned range, unsigned thread)
{
    struct pass *pass = arg;
    struct journal *journal = pass->host->memory->journal;

    fused_range(&pass->fused, range, journal != NULL ? &journal[thread] : NULL);
}

/* So much memory, aligned to a cache line; NULL without it. */
static void *pass_scratch(struct host_scratch *scratch, size_t size)
{
    size = (size + 63) / 64 * 64;
    if (scratch->size < size) {
        free(scratch->memory);
        scratch->memory = aligned_alloc(64, size);
        scratch->size = scratch->memory != NULL ? size : 0;
    }
    return scratch->memory;
}

/* Runs the ranges of the pass, without the work that follows them. */
static enum adtopk_status pass_run_ranges(struct pass *pass, const double sums[2])
{
    struct fused *fused = &pass->fused;
    size_t size = fused->rule
                      ? fused_rule_scratch(view_size(&fused->view), fused->k, fused->ranges)
                      : fused_scratch(&fused->view, fused->k, fused->per_fibre, fused->ranges);

    fused->scratch = pass_scratch(pass->host->scratch, size);
    if (fused->scratch == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    fused->parallel = pass->host->parallel;
    fused_start(fused, sums);
    parallel_for(&pass->host->parallel, pass_range, pass, fused->ranges);
    return ADTOPK_OK;
}

/* Runs a pass that selects nothing. */
static enum adtopk_status pass_run(struct pass *pass, double sums[2])
{
    enum adtopk_status status = pass_run_ranges(pass, sums);

    if (status == ADTOPK_OK) {
        pass->host->result->nonfinite = fused_finish(&pass->fused, sums);
    }
    free(pass->input);
    return status;
}

/* ------------------------------------------------------------------ adding and selecting */

/* Tells the kernels what to select in the turn. */
static void pass_choose(
    struct pass *pass, const struct sparsifier_choice *choice, struct sparse *out)
{
    const struct engine_add *add = &pass->host->order->add;
    float *hints = host_at(pass->host, add->hints);
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
        fused->hints = choice->view.fibres <= add->fibres ? hints + 1 : NULL;
        break;
    case SPARSIFIER_RULE:
        fused->rule = true;
        fused->k = choice->count;
        fused->need = choice->need;
        fused->guess = add->state.threshold;
        break;
    }
}

/* Selects, as far as that is left to do when the residual is complete. */
static void pass_select(struct pass *pass, const struct sparsifier_turn *turn,
    const struct sparsifier_choice *choice, struct sparse *out)
{
    const struct host *host = pass->host;
    const struct engine_add *add = &host->order->add;
    const struct sparsifier_ops *ops = sparsifier_table[add->sparsifier];
    struct cpu_survey survey;

    if (choice->mode == SPARSIFIER_RULE) {
        fused_survey(&pass->fused, &survey);
        survey.parallel = host->parallel;
        ops->select(turn, &add->state, &survey.base, &host->result->state, out);
    }
    if (choice->mode == SPARSIFIER_KNOWN) {
        ops->known(turn, out);
        for (size_t i = 0; i < out->count; i++) {
            out->value[i] = pass->fused.residual[view_element(&choice->view, out->position[i])];
        }
    }
}

enum adtopk_status host_order_add(const struct host *host)
{
    const struct engine_add *add = &host->order->add;
    const struct sparsifier_turn turn = {.shape = &add->shape,
        .params = &add->params,
        .agreed = &add->agreed,
        .turn = add->turn,
        .seed = add->seed};
    struct sparse list = host_list(host, &add->list);
    struct sparsifier_choice choice = {.mode = SPARSIFIER_DENSE};
    double *ledger = host_at(host, host->order->ledger);
    enum adtopk_status status = ADTOPK_ERR_MEMORY;
    struct pass pass;

    list.count = 0;
    host->result->state = add->state;
    if (pass_init(&pass, host)) {
        pass_prepare(&pass);
        if (add->selects) {
            sparsifier_table[add->sparsifier]->choose(&turn, &choice);
            pass_choose(&pass, &choice, &list);
        }
        status = pass_run_ranges(&pass, ledger);
    }
    if (status == ADTOPK_OK) {
        if (choice.mode == SPARSIFIER_RULE || choice.mode == SPARSIFIER_KNOWN) {
            pass_select(&pass, &turn, &choice, &list);
        }
        host->result->nonfinite = fused_finish(&pass.fused, ledger);
        if (host->result->nonfinite > 0) {
            host->result->fault = host_fault(host);
        }
        host->result->count = list.count;
    }
    free(pass.input);
    return status;
}

enum adtopk_status host_order_withdraw(const struct host *host)
{
    struct pass pass;

    if (!pass_init(&pass, host)) {
        return ADTOPK_ERR_MEMORY;
    }
    pass.fused.withdraw = true;
    pass_prepare(&pass);
    return pass_run(&pass, host_at(host, host->order->ledger));
}

enum adtopk_status host_order_join(const struct host *host)
{
    const struct engine_order *order = host->order;
    double sums[2] = {0, 0}; /* no gradients come in */
    struct pass pass;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    if (pass_init(&pass, host)) {
        status = pass_run(&pass, sums);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < order->parts; i++) {
        (void)memset(host_at(host, host->part[i].element), 0, order->numel * sizeof(float));
    }
    return status;
}

static struct rest pass_rest(const struct host *host, const struct engine_rest *rest)
{
    return (struct rest){.rounded = host_at(host, rest->rounded),
        .low = host_at(host, rest->low),
        .type = host->order->take.values,
        .first = rest->first,
        .count = rest->count,
        .unscale = rest->unscale,
        .shrink = rest->shrink,
        .exact = host_at(host, rest->exact),
        .narrow = host->order->dtype};
}

enum adtopk_status host_order_take(const struct host *host)
{
    static const enum fused_take take[] = {
        [QUANTISE_F32] = FUSED_TAKE_F32,
        [QUANTISE_BF16] = FUSED_TAKE_BF16,
        [QUANTISE_F16] = FUSED_TAKE_F16,
    };
    const struct engine_take_out *out = &host->order->take;
    double sums[2] = {0, 0};
    struct pass pass;
    enum adtopk_status status;

    if (!pass_init(&pass, host)) {
        return ADTOPK_ERR_MEMORY;
    }
    pass.fused.take = out->nothing ? FUSED_TAKE_RESTS : take[out->values];
    pass.fused.rest[0] = pass_rest(host, &out->sums);
    pass.fused.rest[1] = pass_rest(host, &out->update);
    status = pass_run(&pass, sums);
    host->result->sums[0] = -sums[0];
    host->result->sums[1] = -sums[1];
    return status;
}
