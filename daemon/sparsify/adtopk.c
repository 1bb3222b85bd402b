/*
 * ADTopk: all-dimension top-k. Every fibre of the tensor contributes its largest magnitudes. With
 * `interleave`, turns of the traditional top-k of the whole tensor come between; both kinds use the
 * same residual. After the paper of HPDC 2024, doi 10.1145/3625549.3658678.
 *
 * Which turns are traditional: the last ones of every `fibre_turns` + `global_turns` turns. With
 * `adaptive` the period is four turns, and the share of traditional turns is their share of the
 * mass. Let f be the mean magnitude of an entry of the last all-dimension turn's update, and g that
 * of the last traditional turn's. Then 4 g / (f + g) of the next four turns are traditional,
 * rounded, 1 to 3. A kind that has just had its turns has less left to send, so the share settles
 * where both kinds bring equally much. It starts at 2. In the last quarter of `total_turns` all
 * turns are all-dimension ones. The paper also asks whether the threshold is stable; but each node
 * has its own threshold, and all nodes need the same view.
 *
 * With `estimate` a traditional turn does not search the k-th magnitude. It takes the entries that
 * exceed an estimate of it (adtopk_select).
 */
#include <math.h>

#include "daemon/sparsify/backend.h"

#define ADAPTIVE_PERIOD 4u
#define TURNS_MAX 64u      /* of one kind in a period */
#define EXACT_TURNS 15u    /* before the first estimate */
#define SHORTEST_PERIOD 5u /* of exact selections between estimates */

/* In sparsifier_agreed. */
enum { AGREED_SHARE }; /* number: traditional turns of the present four; 0: not yet known */
enum { AGREED_FIBRE, AGREED_TOP }; /* real: mean magnitude of an entry in the last turn of a kind */

/* In sparsifier_state: about traditional turns only. */
enum {
    STATE_SEEN,
    STATE_LEFT,
    STATE_PERIOD
};                       /* number: how many, until the next exact one, from
                            one exact one to the next */
enum { STATE_ESTIMATE }; /* real: magnitudes above it are taken */

/* ------------------------------------------------------------------ which turns are traditional */

struct rhythm {
    uint64_t fibre, global; /* turns of each kind in a period */
};

static uint64_t turns_within(uint64_t turns)
{
    return turns < 1 ? 1 : turns < TURNS_MAX ? turns : TURNS_MAX;
}

static struct rhythm adtopk_rhythm(
    const struct sparsifier_params *params, const struct sparsifier_agreed *agreed)
{
    if (!params->interleave) {
        return (struct rhythm){.fibre = 1};
    }
    if (params->adaptive) {
        const uint64_t share = agreed->number[AGREED_SHARE];
        const uint64_t global = share > 0 && share < ADAPTIVE_PERIOD ? share : ADAPTIVE_PERIOD / 2;
        return (struct rhythm){.fibre = ADAPTIVE_PERIOD - global, .global = global};
    }
    return (struct rhythm){
        .fibre = turns_within(params->fibre_turns), .global = turns_within(params->global_turns)};
}

unsigned sparsifier_period(const struct sparsifier_params *params)
{
    const struct sparsifier_agreed nothing = {.number = {0}};
    const struct rhythm rhythm = adtopk_rhythm(params, &nothing);
    return (unsigned)(rhythm.fibre + rhythm.global);
}

static bool adtopk_is_global(const struct sparsifier_turn *turn)
{
    const struct rhythm rhythm = adtopk_rhythm(turn->params, turn->agreed);
    const uint64_t total = turn->params->total_turns;
    if (total > 0 && turn->turn >= total - total / 4) {
        return false;
    }
    return turn->turn % (rhythm.fibre + rhythm.global) >= rhythm.fibre;
}

static bool adtopk_observes(const struct sparsifier_params *params)
{
    return params->interleave && params->adaptive;
}

static void adtopk_observe(const struct sparsifier_turn *turn,
    const struct sparsifier_update *update, struct sparsifier_agreed *agreed)
{
    agreed->real[adtopk_is_global(turn) ? AGREED_TOP : AGREED_FIBRE] =
        update->count > 0 ? update->sum_abs / (double)update->count : 0;
    const double both = agreed->real[AGREED_TOP] + agreed->real[AGREED_FIBRE];
    if ((turn->turn + 1) % ADAPTIVE_PERIOD == 0 && both > 0 && isfinite(both)) {
        const double share = round(ADAPTIVE_PERIOD * agreed->real[AGREED_TOP] / both);
        agreed->number[AGREED_SHARE] = share < 1                     ? 1
                                       : share < ADAPTIVE_PERIOD - 1 ? (uint32_t)share
                                                                     : ADAPTIVE_PERIOD - 1;
    }
}

/* ------------------------------------------------------------------ the choice */

/* The fibres along `axis`, 0 or 1, in the tensor's native layout. */
static struct view adtopk_axis(const struct tensor_shape *shape, unsigned axis)
{
    const uint64_t numel = tensor_numel(shape);
    const uint64_t outer = axis == 0 ? 1 : shape->size[0];
    const uint64_t length = shape->size[axis];
    return (struct view){
        .fibres = numel / length, .length = length, .stride = numel / (outer * length)};
}

static struct view adtopk_chunks(uint64_t numel)
{
    uint64_t length = numel < FIBRES_CHUNK_LENGTH ? numel : FIBRES_CHUNK_LENGTH;

    while (numel % length != 0 && length >= FIBRES_CHUNK_LEAST) {
        length--;
    }
    if (length < FIBRES_CHUNK_LEAST) {
        length = numel;
    }
    return (struct view){.fibres = numel / length, .length = length, .stride = 1};
}

static struct view adtopk_view(const struct tensor_shape *shape, enum fibres view)
{
    if (view == FIBRES_CHUNK) {
        return adtopk_chunks(tensor_numel(shape));
    }
    if (view == FIBRES_ROW) {
        const uint64_t rows = shape->size[0];
        return (struct view){.fibres = rows, .length = tensor_numel(shape) / rows, .stride = 1};
    }
    const bool along_0 = view == FIBRES_LONGEST && shape->size[0] > shape->size[1];
    return adtopk_axis(shape, along_0 ? 0 : 1);
}

static void adtopk_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    if (sparsifier_skips(turn->shape)) {
        sparsifier_choose_whole(turn, SPARSIFIER_DENSE, 0, choice);
        return;
    }
    if (adtopk_is_global(turn)) {
        if (turn->params->estimate) {
            sparsifier_choose_rule(turn, sparsifier_most(turn, 3, 2), SURVEY_NO_STATS, choice);
        } else {
            sparsifier_choose_whole(turn, SPARSIFIER_TOP, sparsifier_target(turn), choice);
        }
        return;
    }
    const struct view view = adtopk_view(turn->shape, turn->params->fibres);
    const uint64_t per_fibre =
        sparsifier_share(view.length, sparsifier_density(turn->params, turn->turn));
    *choice = (struct sparsifier_choice){
        .mode = SPARSIFIER_FIBRES,
        .view = view,
        .per_fibre = per_fibre,
        .count = view.fibres * per_fibre,
    };
}

/* ------------------------------------------------------------------ threshold estimation */

/* The period after an exact selection found `found` where the estimate was `estimate`. The narrow
 * bands, a twentieth and twice a tenth of the estimate, come before the wide ones. */
static uint32_t adtopk_next_period(double estimate, double found, uint32_t period)
{
    const double band = estimate / 10;
    const double off = fabs(estimate - found);
    const uint32_t longer = off < band / 2 ? 2 : off < band ? 1 : 0;
    const uint32_t shorter = off > 2 * band ? 2 : off > band ? 1 : 0;
    return period + longer < SHORTEST_PERIOD + shorter ? SHORTEST_PERIOD
                                                       : period + longer - shorter;
}

static void adtopk_select_exact(const struct sparsifier_turn *turn,
    const struct sparsifier_state *state, struct survey *survey, struct sparsifier_state *next,
    struct sparse *out)
{
    const uint64_t start = turn->params->estimate_period;
    survey_top(survey, sparsifier_target(turn), out);
    const float least = sparsifier_least(out, 0);
    next->threshold = survey_hint(survey, sparsifier_most(turn, 3, 2));
    if (state->number[STATE_SEEN] < EXACT_TURNS) {
        next->number[STATE_PERIOD] = start > SHORTEST_PERIOD ? (uint32_t)start : SHORTEST_PERIOD;
    } else {
        next->number[STATE_PERIOD] = adtopk_next_period(
            state->real[STATE_ESTIMATE], (double)least, state->number[STATE_PERIOD]);
    }
    next->number[STATE_LEFT] = next->number[STATE_PERIOD];
    next->real[STATE_ESTIMATE] = (double)least;
}

/* The first EXACT_TURNS traditional turns and then every period-th one select exactly. They take
 * the smallest selected magnitude as the estimate (the updater). The other turns take the entries
 * that exceed the estimate (the monitor), and of more than 1.5 k the largest 1.5 k. */
static void adtopk_select(const struct sparsifier_turn *turn, const struct sparsifier_state *state,
    struct survey *survey, struct sparsifier_state *next, struct sparse *out)
{
    const uint32_t seen = state->number[STATE_SEEN];
    if (seen < EXACT_TURNS || state->number[STATE_LEFT] <= 1) {
        adtopk_select_exact(turn, state, survey, next, out);
    } else {
        const float above = survey_threshold(state->real[STATE_ESTIMATE], true);
        sparsifier_take(survey, (double)above, sparsifier_most(turn, 3, 2), next, out);
        next->number[STATE_LEFT] = state->number[STATE_LEFT] - 1;
    }
    next->number[STATE_SEEN] = seen < EXACT_TURNS ? seen + 1 : seen;
}

static const char *const parameters[] = {"fibres", "interleave", "fibre_turns", "global_turns",
    "adaptive", "total_turns", "estimate", "estimate_period", NULL};

const struct sparsifier_ops sparsifier_adtopk = {
    .name = "adtopk",
    .help =
        "the largest magnitudes of every fibre, at least one each; in some turns the largest of "
        "the whole tensor",
    .entries = "k of every fibre; in turns of the whole tensor k, with estimate at most 1.5 k",
    .source = "ADTopk, HPDC 2024, doi 10.1145/3625549.3658678",
    .parameters = parameters,
    .bf16_residual = true,
    .choose = adtopk_choose,
    .select = adtopk_select,
    .observes = adtopk_observes,
    .observe = adtopk_observe,
};
