#include "daemon/engine/shards.h"

#include <assert.h>

/* Fills shards of at most `most` one after the other. Returns how many it takes, or more than
 * ENGINE_SHARDS. */
static unsigned shards_fill(
    struct engine_memory *memory, const uint64_t *size, uint32_t count, uint64_t most)
{
    unsigned shard = 0;
    uint64_t filled = 0;

    for (uint32_t t = 0; t < count; t++) {
        if (filled > 0 && filled + size[t] > most) {
            if (shard + 1 == ENGINE_SHARDS) {
                return ENGINE_SHARDS + 1;
            }
            memory->shard_end[shard++] = t;
            filled = 0;
        }
        filled += size[t];
    }
    memory->shard_end[shard] = count;
    return shard + 1;
}

void shards_spread(
    struct engine_memory *memory, const uint64_t *size, uint32_t count, unsigned most)
{
    uint64_t low = 0, high = 0; /* the largest shard is above the one, and at most the other */

    assert(most > 0 && count > 0);
    most = most < ENGINE_SHARDS ? most : ENGINE_SHARDS;
    for (uint32_t t = 0; t < count; t++) {
        low = size[t] > low + 1 ? size[t] - 1 : low;
        high += size[t];
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;

        if (shards_fill(memory, size, count, middle) <= most) {
            high = middle;
        } else {
            low = middle;
        }
    }
    memory->shards = shards_fill(memory, size, count, high);
}

void shards_mark(struct engine_memory *memory, unsigned part, uint32_t t, uint64_t offset)
{
    for (unsigned s = 0; s < memory->shards; s++) {
        if (memory->shard_end[s] == t) {
            memory->cut[part][s] = offset;
        }
    }
}
