/*
 * Functions that the sparsifiers share. Internal to daemon/sparsify; other folders call
 * sparsifier_find().
 */
#ifndef ADTOPK_SPARSIFY_BACKEND_H
#define ADTOPK_SPARSIFY_BACKEND_H

#include "daemon/sparsify/sparsifier.h"

/** max(1, floor(length * density)), at most length; 0 for length 0. Products that a rounding of
 * density left just below an integer count as that integer: 100 * 0.29 gives 29. */
uint64_t sparsifier_share(uint64_t length, double density);

/** Biases, norms and other tensors with fewer than two dimensions are never sparsified, and
 * neither are empty ones. */
bool sparsifier_skips(const struct tensor_shape *shape);

/** k: the entries that the density of this turn stands for. */
uint64_t sparsifier_target(const struct sparsifier_turn *turn);

/** floor(k * numerator / denominator), at most the whole tensor: the upper end of a band. */
uint64_t sparsifier_most(
    const struct sparsifier_turn *turn, unsigned numerator, unsigned denominator);

/** The choice of a turn that selects `count` entries of the whole tensor in memory order, or the
 * whole tensor where sparsifier_skips() says so. */
void sparsifier_choose_whole(const struct sparsifier_turn *turn, enum sparsifier_mode mode,
    uint64_t count, struct sparsifier_choice *choice);

/** The same for a rule that takes at most `most` entries, and needs these statistics. */
void sparsifier_choose_rule(const struct sparsifier_turn *turn, uint64_t most, unsigned need,
    struct sparsifier_choice *choice);

/** The variance of a set from its sums; 0 where it is no more than their rounding. */
double sparsifier_variance(double count, double sum, double sum_squares);

/** The float that a magnitude must reach to reach the threshold; above 0, whatever that is. */
float sparsifier_reach(double threshold);

/** How many magnitudes reach the threshold, `most` + 1 if more than `most` do. Zeros never do,
 * whatever it is. */
uint64_t sparsifier_count(struct survey *survey, double threshold, uint64_t most);

/** Takes these entries, or the `most` largest of them. Notes in *next the magnitude from which the
 * next pass should collect: `most` + 1 candidates answer all questions of a rule. */
void sparsifier_take(struct survey *survey, double threshold, uint64_t most,
    struct sparsifier_state *next, struct sparse *out);

/** The smallest magnitude of a list, `otherwise` if it is empty. */
float sparsifier_least(const struct sparse *list, float otherwise);

/** Number `counter` of the random numbers of a seed: evenly spread over 64 bits. */
uint64_t sparsifier_random(uint64_t seed, uint64_t counter);

/** A random number brought into 0..bound-1, bound < 2^32; uneven by at most bound * 2^-64. */
uint64_t sparsifier_below(uint64_t random, uint64_t bound);

#endif
