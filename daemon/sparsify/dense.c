/* No sparsification: every tensor travels whole. */
#include "daemon/sparsify/backend.h"

static void dense_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    *choice = (struct sparsifier_choice){
        .mode = SPARSIFIER_DENSE, .view = sparsifier_identity(turn->shape)};
}

const struct sparsifier_ops sparsifier_dense = {
    .name = "dense",
    .help = "every tensor travels whole",
    .source = "none",
    .choose = dense_choose,
};
