#include "sampler.h"

#include <stdlib.h>

#include "random.h"

struct sampler {
    size_t count;
    size_t batch;
    uint64_t seed;
    uint64_t epoch; /* that `order` belongs to */
    size_t *order;
};

static void sampler_shuffle(struct sampler *sampler, uint64_t epoch)
{
    /* Streams 0..255 are reserved for other code that draws from the same seed. */
    struct random random = random_start(sampler->seed, 256 + epoch);
    for (size_t i = 0; i < sampler->count; i++) {
        sampler->order[i] = i;
    }
    random_shuffle(&random, sampler->order, sampler->count);
    sampler->epoch = epoch;
}

struct sampler *sampler_create(size_t count, size_t batch, uint64_t seed)
{
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) {
        return NULL;
    }
    sampler->count = count;
    sampler->batch = batch;
    sampler->seed = seed;
    sampler->order = malloc(count * sizeof *sampler->order);
    if (!sampler->order) {
        sampler_destroy(sampler);
        return NULL;
    }
    sampler_shuffle(sampler, 0);
    return sampler;
}

void sampler_destroy(struct sampler *sampler)
{
    if (!sampler) {
        return;
    }
    free(sampler->order);
    free(sampler);
}

const size_t *sampler_batch(struct sampler *sampler, uint64_t step)
{
    const size_t batches = sampler->count / sampler->batch;
    const uint64_t epoch = step / batches;
    if (epoch != sampler->epoch) {
        sampler_shuffle(sampler, epoch);
    }
    return sampler->order + (size_t)(step % batches) * sampler->batch;
}
