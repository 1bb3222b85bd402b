/*
 * Deep gradient compression: a threshold from a sample of the entries. Its momentum correction and
 * clipping belong to the pass before (policy keys momentum, nesterov, momentum_masking, clip). Its
 * warm-up belongs to the density.
 *
 * The sample is every stride-th entry from a random start on. The stride is odd, so that it does
 * not run along the columns of power-of-two layouts. The threshold is the smallest magnitude of the
 * density's share of the sample. While fewer than 0.8 k entries reach it, it is lowered, at most
 * ten times. If more than 1.3 k entries reach it, the k largest are taken.
 */
#include <math.h>

#include "daemon/sparsify/backend.h"

#define ROUNDS 10u

struct sample {
    uint64_t start, stride, count;
};

static uint64_t dgc_smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct sample dgc_sample(
    const struct sparsifier_turn *turn, const struct survey *survey, double density)
{
    const uint64_t n = survey->stats.n;
    const double least = ceil(2 / density);
    struct sample sample = {.stride = 1, .count = n};
    if ((double)n > least) {
        const double share = ceil((double)n * turn->params->sample);
        const uint64_t need = (uint64_t)(share > least ? share : least);
        sample.stride = (n + 32 * need - 1) / (32 * need) * 32 + 1;
        sample.start =
            sparsifier_below(sparsifier_random(turn->seed, 0), dgc_smaller(sample.stride, n));
        sample.count = (n - sample.start + sample.stride - 1) / sample.stride;
    }
    return sample;
}

static void dgc_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_rule(turn, sparsifier_most(turn, 13, 10), SURVEY_NO_STATS, choice);
}

static void dgc_select(const struct sparsifier_turn *turn, const struct sparsifier_state *state,
    struct survey *survey, struct sparsifier_state *next, struct sparse *out)
{
    const double density = sparsifier_density(turn->params, turn->turn);
    const uint64_t k = sparsifier_target(turn);
    const uint64_t most = sparsifier_most(turn, 13, 10);
    const struct sample sample = dgc_sample(turn, survey, density);
    const uint64_t rank = dgc_smaller((uint64_t)ceil((double)sample.count * density), sample.count);
    double threshold = (double)survey_ranked(survey, sample.start, sample.stride, rank);
    uint64_t count = sparsifier_count(survey, threshold, most);

    (void)state;
    if (10 * count < 8 * k) {
        const uint64_t nonzeros = sparsifier_count(survey, 0, k);
        for (unsigned round = 0; round < ROUNDS && 10 * count < 8 * k && count < nonzeros;
             round++) {
            threshold *= 0.8;
            count = sparsifier_count(survey, threshold, most);
        }
    }
    sparsifier_take(survey, threshold, count > most ? k : most, next, out);
}

static const char *const parameters[] = {"sample", NULL};

const struct sparsifier_ops sparsifier_dgc = {
    .name = "dgc",
    .help = "entries above a threshold from a sample; if they are too many, the k largest",
    .entries = "0.8 k to 1.3 k; fewer only where all others are below 1/9 of the largest",
    .source = "Deep Gradient Compression, ICLR 2018",
    .parameters = parameters,
    .choose = dgc_choose,
    .select = dgc_select,
};
