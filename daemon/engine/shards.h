/*
 * Shards: a job's tensors, spread over several devices of this node.
 *
 * A tensor is in one shard, whole. So no selection and no sum depends on the number of shards. Of
 * the tensors that are committed together, a batch, those of a shard follow one another by their
 * numbers. Then they lie next to each other in every part of the store that has residuals, and a
 * device holds one stretch of each such part. Parts without marks, which are small, are whole on
 * every device.
 *
 * Happy path: the core spreads the tensors of a batch once, when the batch's store is opened.
 * Before it opens a part with residuals, it marks where each tensor begins. The driver makes memory
 * of each stretch, and the engine finds a tensor's device and the stretch that has its places.
 */
#ifndef ADTOPK_ENGINE_SHARDS_H
#define ADTOPK_ENGINE_SHARDS_H

#include "daemon/engine/engine.h"

/** Spreads `count` tensors over at most `most` devices, so that the largest shard is as small as it
 * can be. size: of each tensor, in any unit, above 0. Shards have at least one tensor each, so
 * there may be fewer. */
void shards_spread(
    struct engine_memory *memory, const uint64_t *size, uint32_t count, unsigned most);

/** Spreads the next batch over the same devices. Some may get none of its tensors. */
void shards_spread_more(struct engine_memory *memory, const uint64_t *size, uint32_t count);

/** Tensor t begins at `offset` of the part, or the part ends there: t is the number of the batch's
 * last tensor + 1. To be called for all tensors of a batch, in ascending order. */
void shards_mark(struct engine_memory *memory, unsigned part, uint32_t t, uint64_t offset);

/** The same of a part where tensors follow one another by their shards: this one ends there. */
void shards_cut(struct engine_memory *memory, unsigned part, unsigned shard, uint64_t offset);

/** How many tensors there are in all batches. */
static inline uint32_t shards_tensors(const struct engine_memory *memory)
{
    return memory->shards > 0 ? memory->shard_end[memory->batches - 1][memory->shards - 1] : 0;
}

/** The first tensor of a batch that a shard has, or its end where it has none. */
static inline uint32_t shards_first(
    const struct engine_memory *memory, unsigned batch, unsigned shard)
{
    return shard > 0   ? memory->shard_end[batch][shard - 1]
           : batch > 0 ? memory->shard_end[batch - 1][memory->shards - 1]
                       : 0;
}

/** The shard of a tensor. */
static inline unsigned shards_of(const struct engine_memory *memory, uint32_t tensor)
{
    unsigned batch = 0, shard = 0;

    while (batch + 1 < memory->batches && tensor >= memory->shard_end[batch][memory->shards - 1]) {
        batch++;
    }
    while (shard + 1 < memory->shards && tensor >= memory->shard_end[batch][shard]) {
        shard++;
    }
    return shard;
}

/** Where a shard's stretch of a part begins. */
static inline uint64_t shards_begin(
    const struct engine_memory *memory, unsigned part, unsigned shard)
{
    return shard > 0 ? memory->cut[part][shard - 1] : 0;
}

/** How long the stretch is, in a part of so many bytes. A part without marks is not cut. */
static inline uint64_t shards_size(
    const struct engine_memory *memory, unsigned part, unsigned shard, uint64_t size)
{
    const uint64_t end = memory->shards > 1 ? memory->cut[part][shard] : 0;

    return memory->shards < 2 || memory->cut[part][memory->shards - 1] == 0
               ? size
               : end - shards_begin(memory, part, shard);
}

#endif
