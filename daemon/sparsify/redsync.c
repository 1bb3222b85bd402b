/*
 * RedSync: a threshold between the mean and the largest magnitude, r of the way up. `redsync`
 * bisects r until more than k and fewer than 2 k entries reach it, or until r is known to 0.2. If 2
 * k or more reach the last threshold, it takes the 2 k - 1 largest. `redsync-trim` lowers r from
 * 0.8 by 0.2 until at least k entries reach it, and takes the k largest of them.
 *
 * Bisecting to 0.2 is the published rule: r is one of seven eighths. Magnitudes may end abruptly,
 * as those of a residual under error feedback do. Then an eighth may lie between 1 entry and more
 * than 2 k, and turns of few entries alternate with turns of 2 k - 1.
 *
 * The largest magnitude reaches every threshold, so some entry is sent unless all are 0.
 */
#include "daemon/sparsify/backend.h"

static double redsync_threshold(const struct survey_stats *stats, double r)
{
    const double mean = stats->sum_abs / (double)stats->n;
    const double most = (double)stats->most;
    const double threshold = mean + r * (most - mean);
    return threshold < most ? threshold : most;
}

/* ------------------------------------------------------------------ redsync */

static uint64_t redsync_most(const struct sparsifier_turn *turn)
{
    const uint64_t twice = 2 * sparsifier_target(turn) - 1;
    const uint64_t numel = tensor_numel(turn->shape);
    return twice < numel ? twice : numel;
}

static void redsync_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, redsync_most(turn), SURVEY_MAGNITUDES, choice);
}

static void redsync_select(const struct sparsifier_turn *turn, const struct sparsifier_state *state,
    struct survey *survey, struct sparsifier_state *next, struct sparse *out)
{
    const uint64_t k = sparsifier_target(turn);
    double low = 0, high = 1;
    double threshold;

    (void)state;
    do {
        const double r = (low + high) / 2;
        threshold = redsync_threshold(&survey->stats, r);
        const uint64_t count = sparsifier_count(survey, threshold, 2 * k - 1);
        if (count > k && count < 2 * k) {
            break;
        }
        if (count <= k) {
            high = r;
        } else {
            low = r;
        }
    } while (high - low >= 0.2);
    sparsifier_take(survey, threshold, redsync_most(turn), next, out);
}

const struct sparsifier_ops sparsifier_redsync = {
    .name = "redsync",
    .help = "entries above a threshold between mean and maximum, found by bisection",
    .entries =
        "k + 1 to 2 k - 1 if one of seven thresholds, at eighths from mean to maximum, gives "
        "that; otherwise 1 to k, or 2 k - 1",
    .source = "RedSync, Fang et al., JPDC 2019",
    .choose = redsync_choose,
    .select = redsync_select,
};

/* ------------------------------------------------------------------ redsync-trim */

static void redsync_trim_choose(
    const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, sparsifier_target(turn), SURVEY_MAGNITUDES, choice);
}

static void redsync_trim_select(const struct sparsifier_turn *turn,
    const struct sparsifier_state *state, struct survey *survey, struct sparsifier_state *next,
    struct sparse *out)
{
    const uint64_t k = sparsifier_target(turn);
    double threshold = 0;

    (void)state;
    for (int fifths = 4; fifths >= 0; fifths--) {
        threshold = redsync_threshold(&survey->stats, fifths / 5.0);
        if (fifths > 0 && sparsifier_count(survey, threshold, k) >= k) {
            break;
        }
    }
    sparsifier_take(survey, threshold, k, next, out);
}

const struct sparsifier_ops sparsifier_redsync_trim = {
    .name = "redsync-trim",
    .help = "the k largest above a threshold, which is lowered until k entries reach it",
    .entries = "k; fewer where fewer than k magnitudes reach their mean",
    .source = "RedSync, Fang et al., JPDC 2019",
    .choose = redsync_trim_choose,
    .select = redsync_trim_select,
};
