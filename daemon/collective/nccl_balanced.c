/*
 * Balanced parallelism by a carrier: the frames of balanced.c in two operations. The partitions of
 * the lists are dealt to their owners, then the sums are gathered. Pieces are padded to the
 * largest, and a hash makes partitions about equal.
 */
#include "daemon/collective/carried.h"
#include "daemon/collective/carried_frames.h"
#include "daemon/collective/predict.h"

#define OPERATIONS 2u

static double nccl_balanced_messages(const struct collective_load *load)
{
    return OPERATIONS * (CARRIED_PHASES + 1) * predict_others(load);
}

/* After both frames, pieces go to their owners at once, and those of sums go round. */
static double nccl_balanced_hops(const struct collective_load *load)
{
    return OPERATIONS * CARRIED_PHASES + 1 + predict_others(load);
}

static const struct collective_cost nccl_balanced_cost = {
    .bytes = predict_balanced,
    .messages = nccl_balanced_messages,
    .hops = nccl_balanced_hops,
    .summed = predict_balanced_entries,
};

const struct collective_ops collective_nccl_balanced = {
    .name = "nccl-balanced",
    .traits = {.values = COLLECTIVE_VALUES_CUT,
        .scatters = true,
        .rerounds = true,
        .framed = &collective_balanced,
        .cost = &nccl_balanced_cost},
    .phases = carried_frames_phases,
    .expects = exchange_expects_all,
    .produce = carried_frames_produce,
    .finish = carried_frames_finish,
    .drop = carried_frames_drop,
};
