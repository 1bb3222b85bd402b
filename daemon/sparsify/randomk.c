/*
 * Random-k: the turn's seed draws the positions. All nodes know them, so no positions are sent, and
 * the values are summed like a dense tensor of k elements.
 *
 * The tensor is cut into k stretches that are as equal as possible, and one position of each is
 * chosen uniformly. This gives k distinct positions in ascending order in O(k), without memory of
 * earlier draws. Each position is as likely as any other of its stretch; two positions of one
 * stretch are never drawn together.
 */
#include "daemon/sparsify/backend.h"

static void randomk_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    sparsifier_choose_whole(turn, SPARSIFIER_KNOWN, sparsifier_target(turn), choice);
}

static void randomk_known(const struct sparsifier_turn *turn, struct sparse *out)
{
    const uint64_t n = tensor_numel(turn->shape);
    const uint64_t k = sparsifier_target(turn);
    uint64_t begin = 0;

    /* i * n stays below 2^64: both fit 32 bits. */
    for (uint64_t i = 0; i < k; i++) {
        const uint64_t end = (i + 1) * n / k;
        const uint64_t offset = sparsifier_below(sparsifier_random(turn->seed, i), end - begin);
        out->position[i] = (uint32_t)(begin + offset);
        begin = end;
    }
    out->count = k;
}

const struct sparsifier_ops sparsifier_randomk = {
    .name = "randomk",
    .help = "one entry drawn at random from each of k equal stretches; positions are not sent",
    .entries = "k",
    .source = "random masks, Konecny et al. 2016, arXiv 1610.05492",
    .choose = randomk_choose,
    .known = randomk_known,
};
