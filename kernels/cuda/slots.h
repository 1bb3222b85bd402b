/*
 * Residuals on a device: chunks that are written elsewhere, then published.
 *
 * The residuals of a job lie in *slots* of CHUNK elements, zeros behind a tensor's last one. Each
 * chunk of a tensor has an *entry*: the number of the slot where it lies, and the stamp of the last
 * pass that changed it. A block of a pass has a *spare* slot. It writes the chunk's new elements
 * and its record there, publishes them by replacing the chunk's entry, and keeps the old slot as
 * its spare. So a pass may be stopped at any instruction and repeated: a chunk's entry says whether
 * the pass has changed the chunk.
 *
 * Blocks of a pass that was given up may go on beside its repetition, if they write to other spare
 * slots. An entry changes only if it is what the block has read; one of two blocks that do the same
 * chunk keeps its slot. Stamps of one tensor grow, and may pass 2^32: they are compared by
 * their difference, and must not lie 2^31 apart.
 *
 * Slots that no entry names are spares. After a pass that was stopped, its list of spares is old.
 * So a slot has an *owner*, too: the entry that names it, if any does. slots_begin gives chunks
 * that were never written their first slots, their *homes*, and slots_spare finds the spares. Both
 * want that no block of a pass that was given up runs any more.
 *
 * A job's residuals and velocities may be in several *pools*, each of which begins as zeros and has
 * entries, owners and records of its own. Slots of all pools are numbered from one address,
 * `element`. No pool has slot 0, so an entry is 0 only if its chunk was never written.
 *
 * Residuals in bf16 have a pool of slots of their own, with half the bytes per element. Such a slot
 * has the chunk's carry, too: what rounding cut off (kernels/cpu/rounded.h).
 */
#ifndef ADTOPK_KERNELS_SLOTS_H
#define ADTOPK_KERNELS_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/chunks.h"
#include "kernels/base/inline.h"
#include "kernels/base/rounded.h"

/* What the last pass added to a chunk, as struct chunk_record has it. */
struct slot_record {
    double sums[2];     /* plain and sign-hashed */
    double lost[2];     /* the same of what decay took from the chunk */
    uint64_t nonfinite; /* elements left out */
};

/* A pool of slots. Arrays are device memory, and slots are their indices: `owner` and `record` have
 * elements from `first` on only. */
struct slots {
    float *element;             /* CHUNK per slot, aligned to 16 bytes. NULL: they are in bf16: */
    uint16_t *half;             /* CHUNK per slot, aligned to 8 bytes */
    struct carry *carry;        /* one per slot */
    struct slot_record *record; /* one per slot */
    uint32_t *spare;            /* one per block of a launch: the slot it writes to next */
    uint64_t *owner;            /* one per slot, zeros at first: see slot_owner() */
    const uint64_t *entries;    /* any entry of the pool: owners are numbered from there */
    uint32_t first;             /* the pool's first slot */
    uint32_t homes;             /* slots from this one on are no homes */
    uint32_t count;             /* the pool ends before this one */
    uint32_t spares;            /* that slots_spare is to find */
    uint32_t *found;            /* how many it has found; slots_begin clears it */
};

BASE_INLINE uint64_t slot_entry(uint32_t stamp, uint32_t slot)
{
    return (uint64_t)stamp << 32 | slot;
}

BASE_INLINE uint32_t slot_of(uint64_t entry)
{
    return (uint32_t)entry;
}

/* What an entry is called as an owner: never 0, and the same wherever memory is mapped. */
BASE_INLINE uint64_t slot_owner(const struct slots *slots, const uint64_t *entry)
{
    return (uint64_t)((uintptr_t)entry - (uintptr_t)slots->entries) + 1;
}

BASE_INLINE const uint64_t *slot_owned_by(const struct slots *slots, uint64_t owner)
{
    return (const uint64_t *)((uintptr_t)slots->entries + (uintptr_t)(owner - 1));
}

/* Whether a chunk has been changed by this pass, or a later one. */
BASE_INLINE bool slot_is_done(uint64_t entry, uint32_t stamp)
{
    return (int32_t)((uint32_t)(entry >> 32) - stamp) >= 0;
}

#endif
