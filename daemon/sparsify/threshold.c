/* A fixed threshold: sends the entries that exceed it, at most the density's share. */
#include "daemon/sparsify/backend.h"

static void threshold_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, sparsifier_target(turn), SURVEY_NO_STATS, choice);
}

static void threshold_select(const struct sparsifier_turn *turn,
    const struct sparsifier_state *state, struct survey *survey, struct sparsifier_state *next,
    struct sparse *out)
{
    const float above = survey_threshold(turn->params->threshold, true);

    (void)state;
    sparsifier_take(survey, (double)above, sparsifier_target(turn), next, out);
}

static const char *const parameters[] = {"threshold", NULL};

const struct sparsifier_ops sparsifier_threshold = {
    .name = "threshold",
    .help = "entries above a fixed magnitude; at most k, the largest",
    .entries = "0 to k",
    .source = "Strom, Interspeech 2015",
    .parameters = parameters,
    .choose = threshold_choose,
    .select = threshold_select,
};
