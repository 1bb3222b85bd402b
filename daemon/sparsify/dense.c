/* No sparsification: every tensor travels whole. */
#include "daemon/sparsify/backend.h"

static void dense_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_whole(turn, SPARSIFIER_DENSE, 0, choice);
}

const struct sparsifier_ops sparsifier_dense = {
    .name = "dense",
    .help = "every tensor travels whole, and nothing stays behind",
    .entries = "all",
    .source = "data-parallel training without sparsification",
    .choose = dense_choose,
};
