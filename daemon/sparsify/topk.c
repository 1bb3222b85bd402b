/* Traditional top-k: the largest magnitudes of the whole tensor, every turn. */
#include "daemon/sparsify/backend.h"

static void topk_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_global(turn, SPARSIFIER_TOP, choice);
}

const struct sparsifier_ops sparsifier_topk = {
    .name = "topk",
    .help = "the largest magnitudes of the tensor",
    .source = "Aji and Heafield 2017",
    .choose = topk_choose,
};
