/*
 * How a part of a store with residuals lies in device memory: slots, entries, owners, records and
 * carries (kernels/cuda/slots.h), and what selections remember from turn to turn.
 *
 * The slots begin where the part does, and first come the *homes*. A residual begins at a multiple
 * of POOL_SLOT, so its offset in the part names its homes. Behind them are spare slots, one per
 * block of the largest launch. A part without residuals has no slots.
 *
 * Residuals in f32 and in bf16 share the homes, but are in two pools, with slots of two sizes. A
 * home that no residual owns is nobody's spare. So to either pool the other one's homes are homes
 * that are never written. The spares of bf16 come first; they look like homes of f32.
 *
 *     homes of both           spares of bf16    spares of f32     entries, owners, ... of both
 *     |-----------------------|-----------------|-----------------|
 *
 * Slots are numbered from the beginning of the window, in each pool by the size of its slots.
 *
 * At the end of the part a residual has *hints*, the last thresholds of its tensor and of its
 * fibres. No result depends on them. They begin as zeros, may be of another policy, and may go with
 * the part's memory.
 */
#ifndef ADTOPK_DEVICE_POOL_H
#define ADTOPK_DEVICE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/engine/engine.h"
#include "kernels/cuda/slots.h"

#define POOL_SLOT ((uint64_t)CHUNK * sizeof(float))    /* bytes of a slot in f32 */
#define POOL_HALF ((uint64_t)CHUNK * sizeof(uint16_t)) /* and in bf16: half of it */
#define POOL_HINTS (1u + CHUNK / ENGINE_HINTED)        /* hints per home */

/* The slots of one type, and offsets in the part. */
struct pool_of {
    uint32_t homes;   /* slots from this one on are spares */
    uint32_t slots;   /* with the spares */
    uint64_t entries; /* one per home */
    uint64_t owners;  /* one per slot */
    uint64_t records; /* one per slot */
    uint64_t carries; /* bf16: one per slot */
};

struct pool {
    struct pool_of f32, bf16; /* without slots: there are none of this type */
    uint64_t hints;           /* offset in the part of floats: POOL_HINTS per home */
    uint64_t size;            /* bytes in all */
};

/* Makes room for the arrays of a type behind the rest. */
static inline void pool_arrays(struct pool *pool, struct pool_of *of, bool rounded)
{
    of->entries = pool->size;
    of->owners = of->entries + of->homes * sizeof(uint64_t);
    of->records = of->owners + of->slots * sizeof(uint64_t);
    of->carries = of->records + of->slots * sizeof(struct slot_record);
    pool->size = of->carries + (rounded ? of->slots * sizeof(struct carry) : 0);
}

/** The slots for this many bytes of residuals, with spares for launches of `blocks` blocks.
 * rounded: some may be in bf16. */
static inline struct pool pool_for(uint64_t bytes, uint32_t blocks, bool rounded)
{
    const uint32_t homes = (uint32_t)((bytes + POOL_SLOT - 1) / POOL_SLOT);
    const uint32_t spares = blocks < homes ? blocks : homes;
    struct pool pool = {.f32 = {.homes = homes}};

    if (rounded) {
        pool.bf16.homes = 2 * homes;
        pool.bf16.slots = 2 * homes + 2 * spares;
        pool.f32.homes += spares;
    }
    pool.f32.slots = pool.f32.homes + spares;
    pool.size = pool.f32.slots * POOL_SLOT;
    pool_arrays(&pool, &pool.f32, false);
    pool_arrays(&pool, &pool.bf16, true);
    pool.hints = pool.size;
    pool.size += homes * POOL_HINTS * sizeof(float);
    return pool;
}

static inline const struct pool_of *pool_type(const struct pool *pool, bool rounded)
{
    return rounded ? &pool->bf16 : &pool->f32;
}

/** Hints that a residual of so many elements has room for. */
static inline uint64_t pool_hints(uint64_t numel, bool rounded)
{
    const uint64_t bytes = numel * (rounded ? sizeof(uint16_t) : sizeof(float));

    return (bytes + POOL_SLOT - 1) / POOL_SLOT * POOL_HINTS;
}

/** Bytes of a slot. */
static inline uint64_t pool_slot(bool rounded)
{
    return rounded ? POOL_HALF : POOL_SLOT;
}

#endif
