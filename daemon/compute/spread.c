#include "daemon/compute/spread.h"

#include <stdlib.h>

#include "daemon/compute/layout.h"
#include "daemon/engine/shards.h"

unsigned spread_devices(const struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;
    const unsigned devices = memory->devices != NULL ? memory->devices(memory->context, job->number)
                                                     : job->core->config.devices;

    return devices < job->ranks ? devices : job->ranks;
}

/* Later batches go to the devices of the first one. */
static void spread_over(
    struct job *job, const struct batch *batch, const uint64_t *size, uint32_t count)
{
    struct engine_memory *arenas = &job->layout.arenas;
    const unsigned devices = spread_devices(job);

    if (batch->first > 0 && arenas->shards > 0) {
        shards_spread_more(arenas, size, count);
    } else if (devices > 0) {
        shards_spread(arenas, size, count, devices);
    }
}

enum adtopk_status spread_batch(struct job *job, const struct batch *batch, struct error *err)
{
    const uint32_t count = batch->end - batch->first;
    uint64_t *size = malloc(count * sizeof(*size) + 1);

    if (size == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
    }
    for (uint32_t t = 0; t < count; t++) {
        size[t] = 1 + layout_pad(job, job->tensor[batch->first + t].numel * sizeof(float));
    }
    if (count > 0) {
        spread_over(job, batch, size, count);
    }
    free(size);
    return ADTOPK_OK;
}
