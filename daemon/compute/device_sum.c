#include "daemon/compute/device_sum.h"

#include <stdlib.h>

#include "daemon/compute/orders.h"
#include "daemon/engine/shards.h"
#include "daemon/job/plan_query.h"

bool device_sum_can(const struct round *round)
{
    const struct job *job = round->job;
    const struct core_config *config = &job->core->config;

    return job->plan->tensor[round->tensor[0]].dense && config->carrier->on_devices &&
           !engine_is_near(plan_engine(job)) && job->layout.arenas.shards <= CARGO_DEVICES;
}

bool device_sum_shows(const struct round *round, const struct exchange_tensor *entry)
{
    return round->exchange.carried.on_devices &&
           !(entry->nonfinite && plan_propagates(round->job->plan));
}

static void device_sum_drop(struct engine_batch *orders)
{
    engine_batch_free(orders);
    free(orders);
}

static struct engine_batch *device_sum_batch(const struct round *round)
{
    const struct job *job = round->job;
    struct engine_batch *batch = malloc(sizeof(*batch));

    if (batch != NULL && !engine_batch_init(batch, &job->layout.arenas, 2 * round->tensors,
                             round->tensors * orders_parts(job))) {
        free(batch);
        batch = NULL;
    }
    return batch;
}

/* The tensor gets a place in the vector of its device. */
static void device_sum_tensor(const struct round *round, uint32_t item, struct cargo *cargo)
{
    const struct job *job = round->job;
    const uint32_t t = round->tensor[item];
    const struct exchange_tensor *entry = &round->exchange.tensor[item];
    uint64_t *share = &cargo->share[shards_of(&job->layout.arenas, t)];
    const struct engine_place place = {.arena = ENGINE_CARRIED, .offset = *share};

    orders_give(job, cargo->orders, t, entry, place);
    orders_summed(job, cargo->orders, t, place, exchange_factor(&round->exchange),
        device_sum_shows(round, entry));
    *share += cargo_align(entry->numel * sizeof(float));
}

enum adtopk_status device_sum_order(struct work *work)
{
    const struct round *round = work->round;
    struct cargo *cargo = round->exchange.carried.cargo;

    cargo->orders = device_sum_batch(round);
    if (cargo->orders == NULL) {
        return work_no_memory(work);
    }
    cargo->drop_orders = device_sum_drop;
    for (uint32_t item = 0; item < round->tensors; item++) {
        device_sum_tensor(round, item, cargo);
    }
    return ADTOPK_OK;
}
