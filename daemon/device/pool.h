/*
 * How a part of a store with residuals lies in device memory: slots, entries, owners, records
 * (kernels/cuda/slots.h).
 *
 * The slots begin where the part does, and first come the *homes*. A residual begins at a multiple
 * of a slot's size, so its offset in the part names its homes. Behind them are spare slots, one per
 * block of the largest launch. A part without residuals has no slots.
 */
#ifndef ADTOPK_DEVICE_POOL_H
#define ADTOPK_DEVICE_POOL_H

#include <stdint.h>

#include "kernels/cuda/slots.h"

#define POOL_SLOT ((uint64_t)CHUNK * sizeof(float)) /* bytes of a slot */

struct pool {
    uint32_t homes; /* 0: there are no slots */
    uint32_t slots; /* with the spares */
};

/** The slots for this many bytes of residuals, with spares for launches of `blocks` blocks. */
static inline struct pool pool_for(uint64_t bytes, uint32_t blocks)
{
    const uint32_t homes = (uint32_t)((bytes + POOL_SLOT - 1) / POOL_SLOT);

    return (struct pool){homes, homes + (blocks < homes ? blocks : homes)};
}

/** Offset of the entries: one per home. */
static inline uint64_t pool_entries(const struct pool *pool)
{
    return pool->slots * POOL_SLOT;
}

/** Offset of the owners: one per slot. */
static inline uint64_t pool_owners(const struct pool *pool)
{
    return pool_entries(pool) + pool->homes * sizeof(uint64_t);
}

/** Offset of the records: one per slot. */
static inline uint64_t pool_records(const struct pool *pool)
{
    return pool_owners(pool) + pool->slots * sizeof(uint64_t);
}

/** Bytes in all. */
static inline uint64_t pool_size(const struct pool *pool)
{
    return pool_records(pool) + pool->slots * sizeof(struct slot_record);
}

#endif
