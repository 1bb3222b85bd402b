/* Traditional top-k: the largest magnitudes of the whole tensor, every turn. */
#include "daemon/sparsify/backend.h"

static void topk_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_whole(turn, SPARSIFIER_TOP, sparsifier_target(turn), choice);
}

const struct sparsifier_ops sparsifier_topk = {
    .name = "topk",
    .help = "the k largest magnitudes of the whole tensor, exact",
    .entries = "k",
    .source = "Aji and Heafield, EMNLP 2017",
    .plain = true,
    .bf16_residual = true,
    .choose = topk_choose,
};
