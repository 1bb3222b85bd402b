/* No sparsification: every tensor travels whole. */
#include "daemon/sparsify/backend.h"

static uint64_t dense_count(
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn)
{
    (void)shape;
    (void)params;
    (void)turn;
    return 0;
}

const struct sparsifier_ops sparsifier_dense = {
    .name = "dense",
    .view = sparsifier_identity,
    .count = dense_count,
    .per_fibre = sparsifier_per_fibre_none,
    .settle = sparsifier_settle,
};
