/*
 * What the sparsifiers share among themselves. Internal to daemon/sparsify; everybody else goes
 * through sparsifier_find().
 */
#ifndef ADTOPK_SPARSIFY_BACKEND_H
#define ADTOPK_SPARSIFY_BACKEND_H

#include "daemon/sparsify/sparsifier.h"

extern const struct sparsifier_ops sparsifier_dense;
extern const struct sparsifier_ops sparsifier_topk;
extern const struct sparsifier_ops sparsifier_adtopk;

/** max(1, floor(length * density)), at most length; 0 for length 0. Products that a rounding of
 * density left just below an integer count as that integer: 100 * 0.29 gives 29. */
uint64_t sparsifier_share(uint64_t length, double density);

/** Biases, norms and other tensors with fewer than two dimensions are never sparsified, and
 * neither are empty ones. */
bool sparsifier_skips(const struct tensor_shape *shape);

/** The whole tensor in memory order: one fibre. */
struct view sparsifier_identity(const struct tensor_shape *shape);

/** The turn's share of the whole tensor, in that mode; dense for what is never sparsified. */
void sparsifier_choose_global(const struct sparsifier_turn *turn, enum sparsifier_mode mode,
    struct sparsifier_choice *choice);

#endif
