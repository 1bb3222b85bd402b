/*
 * Sparse all-gather by a carrier: the frames of allgather.c, of one segment, in one operation. Each
 * node forms the sum itself, in the order of the nodes.
 */
#include "daemon/collective/carried.h"
#include "daemon/collective/carried_frames.h"
#include "daemon/collective/predict.h"

static double nccl_allgather_messages(const struct collective_load *load)
{
    return (CARRIED_PHASES + 1) * predict_others(load);
}

/* After both frames the pieces go round. */
static double nccl_allgather_hops(const struct collective_load *load)
{
    return CARRIED_PHASES + predict_others(load);
}

static const struct collective_cost nccl_allgather_cost = {
    .bytes = predict_all_lists,
    .messages = nccl_allgather_messages,
    .hops = nccl_allgather_hops,
    .summed = predict_all_entries,
};

const struct collective_ops collective_nccl_allgather = {
    .name = "nccl-allgather",
    .traits = {.values = COLLECTIVE_VALUES_ALL,
        .scatters = true,
        .framed = &collective_allgather,
        .cost = &nccl_allgather_cost},
    .phases = carried_frames_phases,
    .expects = exchange_expects_all,
    .produce = carried_frames_produce,
    .finish = carried_frames_finish,
    .drop = carried_frames_drop,
};
