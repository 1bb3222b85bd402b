#include "daemon/engine/shards.h"

#include <assert.h>

/* Fills shards of at most `most` one after the other, with `count` tensors from `first` on. Returns
 * how many it takes, or more than ENGINE_SHARDS. */
static unsigned shards_fill(uint32_t end[ENGINE_SHARDS], uint32_t first, const uint64_t *size,
    uint32_t count, uint64_t most)
{
    unsigned shard = 0;
    uint64_t filled = 0;

    for (uint32_t t = 0; t < count; t++) {
        if (filled > 0 && filled + size[t] > most) {
            if (shard + 1 == ENGINE_SHARDS) {
                return ENGINE_SHARDS + 1;
            }
            end[shard++] = first + t;
            filled = 0;
        }
        filled += size[t];
    }
    end[shard] = first + count;
    return shard + 1;
}

/* Spreads a batch over at most `most` devices. Returns how many have some of it. */
static unsigned shards_spread_batch(uint32_t end[ENGINE_SHARDS], uint32_t first,
    const uint64_t *size, uint32_t count, unsigned most)
{
    uint64_t low = 0, high = 0; /* the largest shard is above the one, and at most the other */

    assert(most > 0 && count > 0);
    for (uint32_t t = 0; t < count; t++) {
        low = size[t] > low + 1 ? size[t] - 1 : low;
        high += size[t];
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;

        if (shards_fill(end, first, size, count, middle) <= most) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return shards_fill(end, first, size, count, high);
}

void shards_spread(
    struct engine_memory *memory, const uint64_t *size, uint32_t count, unsigned most)
{
    memory->shards = shards_spread_batch(
        memory->shard_end[0], 0, size, count, most < ENGINE_SHARDS ? most : ENGINE_SHARDS);
    memory->batches = 1;
}

void shards_spread_more(struct engine_memory *memory, const uint64_t *size, uint32_t count)
{
    const uint32_t first = shards_tensors(memory);
    uint32_t *end = memory->shard_end[memory->batches];

    assert(memory->batches > 0 && memory->batches < ENGINE_BATCHES);
    for (unsigned s = shards_spread_batch(end, first, size, count, memory->shards);
         s < memory->shards; s++) {
        end[s] = first + count;
    }
    memory->batches++;
}

void shards_mark(struct engine_memory *memory, unsigned part, uint32_t t, uint64_t offset)
{
    for (unsigned b = 0; b < memory->batches; b++) {
        for (unsigned s = 0; s < memory->shards; s++) {
            if (memory->shard_end[b][s] == t) {
                shards_cut(memory, part, s, offset);
            }
        }
    }
}

void shards_cut(struct engine_memory *memory, unsigned part, unsigned shard, uint64_t offset)
{
    memory->cut[part][shard] = offset;
}
