/*
 * Residuals that were lost with a device's memory: the results of each tensor say so once, and
 * gradients that were in it are not withdrawn. Until the job's store says so of all tensors, the
 * next daemon must not take the memory for what the job believes to have (left_vouch()). The core
 * notes it there when it reads the results, before it gives the next order for that tensor.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/device/feeding.h"
#include "daemon/engine/shards.h"

/* Bits of a tensor whose residual is lost. */
enum {
    FEED_UNTOLD = 1,  /* no result has said so */
    FEED_NOTHING = 2, /* nothing was added since, so nothing is withdrawn */
    FEED_UNNOTED = 4  /* a result has said so, which the core may not have read */
};

bool feed_note_loss(const struct feed *feed, struct part *first)
{
    const uint32_t tensors = shards_tensors(feed->batch->memory);
    uint8_t *emptied = first->anew ? realloc(first->emptied, tensors + 1) : NULL;

    if (emptied != NULL) {
        (void)memset(emptied, FEED_UNTOLD | FEED_NOTHING, tensors);
        first->emptied = emptied;
        first->tensors = tensors;
        first->anew = false;
    }
    return !first->anew;
}

/* The bits of a tensor; NULL: nothing of it was lost. */
static uint8_t *feed_lost_bits(const struct feed *feed, uint32_t tensor)
{
    return tensor < feed->first->tensors ? &feed->first->emptied[tensor] : NULL;
}

/* Whether the order replaces what was lost. */
static bool feed_replaces(const struct engine_order *order)
{
    return order->kind == ENGINE_LOAD && order->image.count == order->numel;
}

bool feed_is_lost(const struct feed *feed, const struct engine_order *order)
{
    uint8_t *bits = feed_lost_bits(feed, order->tensor);

    if (bits != NULL) {
        *bits = feed_replaces(order) ? 0 : *bits & (uint8_t)~FEED_UNNOTED;
    }
    if (bits != NULL && order->kind == ENGINE_ADD) {
        *bits &= (uint8_t)~FEED_NOTHING;
    }
    return bits != NULL && order->kind == ENGINE_WITHDRAW && (*bits & FEED_NOTHING) != 0;
}

/* Whether the core has noted the losses of all tensors that this worker has. */
static bool feed_all_are_noted(const struct feed *feed)
{
    bool noted = !feed->first->anew;

    for (uint32_t t = 0; noted && t < feed->first->tensors; t++) {
        noted = shards_of(feed->batch->memory, t) != feed->shard ||
                (feed->first->emptied[t] & (FEED_UNTOLD | FEED_UNNOTED)) == 0;
    }
    return noted;
}

void feed_tell_losses(const struct feed *feed)
{
    const struct engine_batch *batch = feed->batch;

    for (unsigned i = 0; i < batch->count; i++) {
        const struct engine_order *order = &batch->order[i];
        uint8_t *bits = feed_lost_bits(feed, order->tensor);

        if (feed_has(feed, i) && engine_is_there(order->residual.element) && bits != NULL &&
            (*bits & FEED_UNTOLD) != 0) {
            batch->result[i].emptied = 1;
            *bits = (*bits & (uint8_t)~FEED_UNTOLD) | FEED_UNNOTED;
        }
    }
    if (feed->first->untold && feed_all_are_noted(feed)) {
        feed->first->untold = false;
        left_vouch(feed->worker->device, feed->first);
    }
}
