/* Shared by the sparsifiers: see backend.h. */
#include "daemon/sparsify/backend.h"

#include <math.h>

#define MAX_NUMEL (UINT64_C(1) << 40)

uint64_t tensor_numel(const struct tensor_shape *shape)
{
    if (shape->dims > TENSOR_MAX_DIMS) {
        return 0;
    }
    uint64_t numel = 1;
    for (unsigned d = 0; d < shape->dims; d++) {
        if (shape->size[d] == 0 || shape->size[d] > MAX_NUMEL / numel) {
            return 0;
        }
        numel *= shape->size[d];
    }
    return numel;
}

uint64_t sparsifier_share(uint64_t length, double density)
{
    /* A decimal density is off by up to 2^-53, and the product by as much again. 2^-40 leaves room
     * for densities that were computed, and only moves products that are close to an integer. */
    const double share = floor((double)length * density * (1.0 + 0x1p-40));
    if (share >= (double)length) {
        return length;
    }
    return share >= 1.0 ? (uint64_t)share : length > 0;
}

bool sparsifier_skips(const struct tensor_shape *shape)
{
    return shape->dims < 2 || tensor_numel(shape) == 0;
}

uint64_t sparsifier_target(const struct sparsifier_turn *turn)
{
    return sparsifier_share(
        tensor_numel(turn->shape), sparsifier_density(turn->params, turn->turn));
}

uint64_t sparsifier_most(
    const struct sparsifier_turn *turn, unsigned numerator, unsigned denominator)
{
    const uint64_t most = sparsifier_target(turn) * numerator / denominator;
    const uint64_t numel = tensor_numel(turn->shape);
    return most < numel ? most : numel;
}

void sparsifier_choose_whole(const struct sparsifier_turn *turn, enum sparsifier_mode mode,
    uint64_t count, struct sparsifier_choice *choice)
{
    const bool dense = mode == SPARSIFIER_DENSE || sparsifier_skips(turn->shape);
    *choice = (struct sparsifier_choice){
        .mode = dense ? SPARSIFIER_DENSE : mode,
        .view = {.fibres = 1, .length = tensor_numel(turn->shape), .stride = 1},
        .count = dense ? 0 : count,
    };
}

void sparsifier_choose_rule(const struct sparsifier_turn *turn, uint64_t most, unsigned need,
    struct sparsifier_choice *choice)
{
    sparsifier_choose_whole(turn, SPARSIFIER_RULE, most, choice);
    if (choice->mode == SPARSIFIER_RULE) {
        choice->need = need;
    }
}

/* ------------------------------------------------------------------ densities */

static double power(double base, uint64_t exponent)
{
    double product = 1.0;
    for (uint64_t i = 0; i < exponent; i++) {
        product *= base;
    }
    return product;
}

/* The largest double whose exponent-th power is at most `value`, in 0..1. It only multiplies: pow()
 * may differ between machines, and all nodes must get the same count. */
static double root(double value, uint64_t exponent)
{
    double low = 0.0;
    double high = 1.0;
    for (;;) {
        const double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) {
            return low;
        }
        if (power(middle, exponent) <= value) {
            low = middle;
        } else {
            high = middle;
        }
    }
}

double sparsifier_density(const struct sparsifier_params *params, uint64_t turn)
{
    const uint64_t epoch = params->epoch_turns > 0 ? turn / params->epoch_turns : turn;
    if (epoch >= params->warmup_epochs) {
        return params->density;
    }
    const double step = root(params->density, params->warmup_epochs + 1);
    const double density = power(step, epoch + 1);
    return density > params->density ? density : params->density;
}

/* ------------------------------------------------------------------ thresholds */

double sparsifier_variance(double count, double sum, double sum_squares)
{
    const double mean = sum / count;
    const double mean_square = sum_squares / count;
    const double variance = mean_square - mean * mean;
    return variance > 1e-10 * mean_square ? variance : 0;
}

float sparsifier_reach(double threshold)
{
    return threshold > 0 ? survey_threshold(threshold, false) : survey_threshold(0, true);
}

uint64_t sparsifier_count(struct survey *survey, double threshold, uint64_t most)
{
    return survey_count(survey, sparsifier_reach(threshold), most);
}

void sparsifier_take(struct survey *survey, double threshold, uint64_t most,
    struct sparsifier_state *next, struct sparse *out)
{
    survey_take(survey, sparsifier_reach(threshold), most, out);
    next->threshold = survey_hint(survey, most);
}

float sparsifier_least(const struct sparse *list, float otherwise)
{
    float least = list->count > 0 ? fabsf(list->value[0]) : otherwise;
    for (size_t i = 1; i < list->count; i++) {
        const float magnitude = fabsf(list->value[i]);
        least = magnitude < least ? magnitude : least;
    }
    return least;
}

/* ------------------------------------------------------------------ chance */

/* SplitMix64 (Steele, Lea, Flood 2014) by its counter. */
uint64_t sparsifier_random(uint64_t seed, uint64_t counter)
{
    uint64_t x = seed + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The upper 64 bits of random * bound, which has 96. */
uint64_t sparsifier_below(uint64_t random, uint64_t bound)
{
    return ((random >> 32) * bound + ((random & UINT32_MAX) * bound >> 32)) >> 32;
}
