/*
 * Exclusive partitions by a carrier: the frames of exclusive.c in three operations. Positions are
 * gathered, values there are dealt to who selected them, and the sums are gathered.
 */
#include "daemon/collective/carried.h"
#include "daemon/collective/carried_frames.h"

const struct collective_ops collective_nccl_exclusive = {
    .name = "nccl-exclusive",
    .traits = {.picks = PICKS_POSITIONS,
        .node_only = true,
        .values = COLLECTIVE_VALUES_CUT,
        .rerounds = true,
        .framed = &collective_exclusive},
    .phases = carried_frames_phases,
    .expects = exchange_expects_all,
    .produce = carried_frames_produce,
    .finish = carried_frames_finish,
    .drop = carried_frames_drop,
};
