/*
 * What reaches half of the largest magnitude, at most k entries: a threshold that follows the
 * gradient without being tuned. The largest magnitude reaches it, so something is sent wherever
 * something is not 0.
 */
#include "daemon/sparsify/backend.h"

static void relative_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, sparsifier_target(turn), SURVEY_MAGNITUDES, choice);
}

static void relative_select(const struct sparsifier_turn *turn,
    const struct sparsifier_state *state, struct survey *survey, struct sparsifier_state *next,
    struct sparse *out)
{
    const double half = 0.5 * (double)survey->stats.most;

    (void)state;
    sparsifier_take(survey, half, sparsifier_target(turn), next, out);
}

const struct sparsifier_ops sparsifier_relative = {
    .name = "relative",
    .help = "what reaches half of the largest magnitude, at most k entries",
    .entries = "1 to k",
    .source = "an example for those who add one",
    .choose = relative_choose,
    .select = relative_select,
};
