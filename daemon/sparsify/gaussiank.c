/*
 * Gaussian-k: a threshold as if the entries were normally distributed. It is adjusted until between
 * 2/3 k and 4/3 k entries reach it, at most five times. An adjustment halves it or makes it half as
 * large again; once it has been too high and too low, it goes halfway between. If it is still too
 * high at the end, the last threshold that was too low is used instead, and of the entries that
 * reach it the 4/3 k largest are taken. The mean counts by its magnitude, so that the selection
 * does not depend on the sign of the gradient.
 */
#include <math.h>

#include "daemon/sparsify/backend.h"
#include "daemon/sparsify/quantile.h"

#define ROUNDS 5u

static double gaussiank_first(const struct survey_stats *stats, double density)
{
    const double n = (double)stats->n;
    const double variance = sparsifier_variance(n, stats->sum, stats->sum_squares);
    return fabs(stats->sum) / n + sqrt(variance) * quantile_normal(density / 2);
}

static void gaussiank_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, sparsifier_most(turn, 4, 3), SURVEY_MOMENTS, choice);
}

static void gaussiank_select(const struct sparsifier_turn *turn,
    const struct sparsifier_state *state, struct survey *survey, struct sparsifier_state *next,
    struct sparse *out)
{
    const uint64_t k = sparsifier_target(turn);
    const uint64_t most = sparsifier_most(turn, 4, 3);
    const uint64_t nonzeros = survey->stats.n - survey->stats.zeros;
    double low = 0, high = 0; /* the last thresholds that were too low and too high; 0: none yet */
    double threshold =
        gaussiank_first(&survey->stats, sparsifier_density(turn->params, turn->turn));

    (void)state;
    for (unsigned round = 0;; round++) {
        const uint64_t count = sparsifier_count(survey, threshold, most);
        if (count > most) {
            low = threshold;
        } else if (3 * count < 2 * k && count < nonzeros) {
            high = threshold;
        } else {
            break;
        }
        if (round == ROUNDS) {
            threshold = low > 0 ? low : threshold;
            break;
        }
        threshold = low > 0 && high > 0 ? (low + high) / 2 : low > 0 ? low * 1.5 : high * 0.5;
    }
    sparsifier_take(survey, threshold, most, next, out);
}

const struct sparsifier_ops sparsifier_gaussiank = {
    .name = "gaussiank",
    .help = "entries above a threshold that assumes a normal distribution",
    .entries = "2/3 k to 4/3 k; fewer only where no others reach 1/32 of the first threshold",
    .source = "Gaussian-k, Shi et al. 2019, arXiv 1911.08772",
    .choose = gaussiank_choose,
    .select = gaussiank_select,
};
