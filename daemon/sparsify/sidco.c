/*
 * SIDCo: fits a distribution to the magnitudes and takes its tail, in stages. Each stage fits the
 * magnitudes above the threshold of the stage before. The first stage keeps a quarter, the others
 * an equal ratio each, so that k entries are expected to remain.
 *
 * Every five calls the number of stages follows how many entries were selected: one stage less when
 * it was above 1.2 k on average, one more below 0.8 k. The first call does not wait that long: it
 * adds stages until 0.8 k entries are reached. Stages are whole. Where one less selects next to
 * nothing and one more selects above 1.2 k, five calls of one kind follow five of the other, as
 * published.
 *
 * Formulas are linear in the magnitudes, so norms need no division. Zeros tell nothing about the
 * distribution (and have no logarithm): the fit uses the other magnitudes, and the ratio is k to
 * their number. Without variance, the threshold is the mean. No threshold exceeds the largest
 * magnitude, so no stage is empty.
 */
#include <math.h>

#include "daemon/sparsify/backend.h"
#include "daemon/sparsify/quantile.h"

#define FIRST_RATIO 0.25
#define WINDOW 5u  /* calls between changes of the number of stages */
#define FLAT 1e-12 /* s of a gamma fit that is rounding */
#define SMALL_POWER 1e-12

/* In sparsifier_state. */
enum {
    STATE_STAGES,
    STATE_CALLS
};                       /* number: stages, 0 before the first call; calls since they
                            may have changed */
enum { STATE_SELECTED }; /* real: the sum of selected / k in those calls */

/* The magnitudes of a stage, less `origin`. */
struct fitted {
    double origin;
    double mean;
    double variance;
    double mean_log; /* of the magnitudes themselves; first stage only */
};

static double fit_exponential(const struct fitted *set, double ratio)
{
    return -set->mean * log(ratio);
}

static double fit_pareto(const struct fitted *set, double ratio)
{
    const double spread = set->mean * set->mean / set->variance;
    const double scale = 0.5 * set->mean * (spread + 1);
    const double power = 0.5 * (spread - 1);
    if (fabs(power) < SMALL_POWER) {
        return -scale * log(ratio);
    }
    return scale * -expm1(power * log(ratio)) / power;
}

static double fit_gamma(const struct fitted *set, double ratio)
{
    const double s = log(set->mean) - set->mean_log;
    if (s < FLAT) {
        return set->mean;
    }
    const double shape = (3 - s + sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
    return set->mean / shape * quantile_gamma(shape, ratio);
}

/* The magnitude that `ratio` of the set is expected to reach. */
static double sidco_fit(
    const struct fitted *set, enum sidco_fit fit, bool first, double ratio, double most)
{
    double reach = set->mean;
    if (set->variance > 0 && set->mean > 0) {
        reach = fit == SIDCO_EXPONENTIAL      ? fit_exponential(set, ratio)
                : fit == SIDCO_GAMMA && first ? fit_gamma(set, ratio)
                                              : fit_pareto(set, ratio);
    }
    reach += set->origin;
    return reach < most ? reach : most;
}

/* An exponential fit only asks whether there is any variance, which the sum of squares need not
 * tell. This is a lower bound of it that comes from the largest magnitude alone. 0 if that might be
 * rounding. */
static double sidco_certain(const struct survey *survey, double count, double mean)
{
    const double off = (double)survey->stats.most - mean;
    const double variance = off * off / count;
    return variance > 1e-9 * mean * mean ? variance : 0;
}

/* The entries that reach a threshold. */
static struct fitted sidco_tail(struct survey *survey, enum sidco_fit fit, double threshold)
{
    const float reach = sparsifier_reach(threshold);
    const bool squares = fit != SIDCO_EXPONENTIAL;
    struct survey_tail tail = survey_tail(survey, reach, squares);
    const double count = (double)tail.count;
    const double mean = tail.sum_abs / count;
    double variance = squares ? 0 : sidco_certain(survey, count, mean);
    if (!(variance > 0)) {
        tail = squares ? tail : survey_tail(survey, reach, true);
        variance = sparsifier_variance(count, tail.sum_abs, tail.sum_squares);
    }
    return (struct fitted){
        .origin = (double)tail.least, .mean = mean - (double)tail.least, .variance = variance};
}

/* All that is not zero. */
static struct fitted sidco_all(struct survey *survey, enum sidco_fit fit)
{
    const struct survey_stats *stats = &survey->stats;
    const double count = (double)(stats->n - stats->zeros);
    const double mean = stats->sum_abs / count;
    struct fitted set = {.mean = mean, .mean_log = stats->sum_log / count};
    if (fit == SIDCO_EXPONENTIAL) {
        set.variance = sidco_certain(survey, count, mean);
        set.variance = set.variance > 0 ? set.variance : sidco_tail(survey, fit, 0).variance;
    } else {
        set.variance = sparsifier_variance(count, stats->sum_abs, stats->sum_squares);
    }
    return set;
}

/* Expects `ratio` of the magnitudes that are not zero to reach it. */
static double sidco_threshold(
    struct survey *survey, enum sidco_fit fit, uint32_t stages, double ratio)
{
    const double most = (double)survey->stats.most;
    struct fitted set = sidco_all(survey, fit);
    if (stages == 1 || ratio >= FIRST_RATIO) {
        return sidco_fit(&set, fit, true, ratio, most);
    }
    const double later = exp(log(ratio / FIRST_RATIO) / (stages - 1));
    double threshold = sidco_fit(&set, fit, true, FIRST_RATIO, most);
    for (uint32_t stage = 1; stage < stages; stage++) {
        set = sidco_tail(survey, fit, threshold);
        threshold = sidco_fit(&set, fit, false, later, most);
    }
    return threshold;
}

/* ------------------------------------------------------------------ stages */

static uint32_t sidco_most_stages(double density)
{
    const double most = ceil(log(density) / log(0.5));
    return most > 1 ? (uint32_t)most : 1;
}

static void sidco_adapt(
    struct sparsifier_state *next, uint32_t stages, double selected, double density)
{
    const double sum = next->real[STATE_SELECTED] + selected;
    next->number[STATE_STAGES] = stages;
    if (next->number[STATE_CALLS] + 1 < WINDOW) {
        next->number[STATE_CALLS]++;
        next->real[STATE_SELECTED] = sum;
        return;
    }
    if (sum > 1.2 * WINDOW && stages > 1) {
        next->number[STATE_STAGES] = stages - 1;
    } else if (sum < 0.8 * WINDOW && stages < sidco_most_stages(density)) {
        next->number[STATE_STAGES] = stages + 1;
    }
    next->number[STATE_CALLS] = 0;
    next->real[STATE_SELECTED] = 0;
}

/* ------------------------------------------------------------------ the operations */

static void sidco_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    static const unsigned need[SIDCO_FITS] = {
        [SIDCO_EXPONENTIAL] = SURVEY_MEANS,
        [SIDCO_PARETO] = SURVEY_SPREAD,
        [SIDCO_GAMMA] = SURVEY_SPREAD | SURVEY_LOGARITHMS,
    };
    sparsifier_choose_rule(turn, sparsifier_most(turn, 3, 2), need[turn->params->fit], choice);
}

static void sidco_select(const struct sparsifier_turn *turn, const struct sparsifier_state *state,
    struct survey *survey, struct sparsifier_state *next, struct sparse *out)
{
    const double density = sparsifier_density(turn->params, turn->turn);
    const uint64_t k = sparsifier_target(turn);
    const uint64_t nonzeros = survey->stats.n - survey->stats.zeros;
    const uint32_t most = sidco_most_stages(density);
    const uint32_t kept = state->number[STATE_STAGES];
    const bool first = kept == 0;
    uint32_t stages = first ? 1 : kept < most ? kept : most;
    double threshold = 0; /* all that is not zero */

    if (k < nonzeros) {
        const double ratio = (double)k / (double)nonzeros;
        threshold = sidco_threshold(survey, turn->params->fit, stages, ratio);
        while (first && stages < most && 10 * sparsifier_count(survey, threshold, k) < 8 * k) {
            threshold = sidco_threshold(survey, turn->params->fit, ++stages, ratio);
        }
    }
    sparsifier_take(survey, threshold, sparsifier_most(turn, 3, 2), next, out);
    sidco_adapt(next, stages, (double)out->count / (double)k, density);
}

static const char *const parameters[] = {"fit", NULL};

const struct sparsifier_ops sparsifier_sidco = {
    .name = "sidco",
    .help = "entries above a threshold from a distribution that is fitted in stages",
    .entries =
        "1 to 1.5 k; about k if the entries have the fitted distribution; over many turns at least "
        "0.6 k while stages remain",
    .source = "SIDCo, MLSys 2021",
    .parameters = parameters,
    .choose = sidco_choose,
    .select = sidco_select,
};
