/* Traditional top-k: the largest magnitudes of the whole tensor, every turn. */
#include "daemon/sparsify/backend.h"

static uint64_t topk_count(
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn)
{
    (void)turn;
    return sparsifier_skips(shape) ? 0 : sparsifier_share(tensor_numel(shape), params->density);
}

const struct sparsifier_ops sparsifier_topk = {
    .name = "topk",
    .view = sparsifier_identity,
    .count = topk_count,
    .per_fibre = sparsifier_per_fibre_none,
    .settle = sparsifier_settle,
};
