/*
 * Partitions of a tensor's positions: balanced however skewed the entries are, the same on every
 * machine, and without a table.
 *
 * Positions form groups of `parts` consecutive ones. Every group deals one position to each
 * partition, beginning at a place that a hash of the group's number chooses. In group g partition p
 * owns position g * parts + (hash(g) + p) mod parts. So entries that lie close together, or one
 * stride apart, spread over all partitions. (Zen gets its balance from its hash h0, arXiv
 * 2309.13254, section 4; here sizes are equal and known.)
 *
 * A pattern may put entries at the same places of many groups. Such entries are as uneven as if
 * they were thrown at random: with m of them per partition the largest partition hardly has more
 * than m + 4 sqrt(m), which is 1.1 m at m = 1,600. A pattern that was made from the hash itself can
 * put all of them into one partition. That costs time of its own job, and nothing else.
 *
 * A partition has at most one position in each group, and the group's number is its *slot*: slots
 * ascend with positions. If `parts` does not divide the number of positions, the last group is
 * shorter. Partitions whose place in it does not exist are then one position smaller. With one part
 * the partition is the tensor and slots are positions. Needs parts > 0 and part < parts.
 */
#ifndef ADTOPK_KERNELS_PARTITION_H
#define ADTOPK_KERNELS_PARTITION_H

#include "kernels/base/inline.h"
#include "kernels/base/ledger.h"

/* Where the partition `part` sits in a group. */
BASE_INLINE uint64_t partition_place(uint64_t group, uint32_t part, uint32_t parts)
{
    const uint64_t place = ledger_hash(group) % parts + part;
    return place < parts ? place : place - parts;
}

/** The partition that owns a position. */
BASE_INLINE uint32_t partition_of(uint64_t position, uint32_t parts)
{
    const uint64_t place = position % parts;
    const uint64_t first = ledger_hash(position / parts) % parts;
    return (uint32_t)(place >= first ? place - first : place + parts - first);
}

/** The slot of a position in the partition that owns it. */
BASE_INLINE uint64_t partition_slot(uint64_t position, uint32_t parts)
{
    return position / parts;
}

/** The position of a slot: the inverse of the two above. */
BASE_INLINE uint64_t partition_position(uint64_t slot, uint32_t part, uint32_t parts)
{
    return slot * parts + partition_place(slot, part, parts);
}

/** The number of slots of a partition of n positions: n / parts, or one more. */
BASE_INLINE uint64_t partition_size(uint64_t n, uint32_t part, uint32_t parts)
{
    const uint64_t groups = n / parts;
    return groups + (partition_place(groups, part, parts) < n % parts);
}

#endif
