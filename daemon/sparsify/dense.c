/* No sparsification: every tensor is sent whole. */
#include "daemon/sparsify/backend.h"

static void dense_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_whole(turn, SPARSIFIER_DENSE, 0, choice);
}

const struct sparsifier_ops sparsifier_dense = {
    .name = "dense",
    .help = "every tensor is sent whole, and nothing stays in the residual",
    .entries = "all",
    .source = "data-parallel training without sparsification",
    .node_only = true,
    .bf16_residual = true,
    .choose = dense_choose,
};
