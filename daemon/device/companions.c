#include "daemon/device/companions.h"

/* A device adds so many elements in about the time that the way there and back takes. */
#define COMPANIONS_ELEMENTS (UINT64_C(1) << 24)
#define COMPANIONS_ORDERS 256u

static void companions_count(struct companions *all, const struct engine_batch *batch)
{
    all->batches++;
    all->orders += batch->count;
    for (unsigned i = 0; i < batch->count; i++) {
        all->elements += batch->order[i].numel;
    }
}

struct companions companions_of(const struct engine_wait *first)
{
    struct companions all = {.batches = 0};

    for (const struct engine_wait *at = first; at != NULL; at = at->next) {
        companions_count(&all, at->batch);
    }
    return all;
}

uint64_t companions_share(
    const struct companions *all, const struct engine_wait *waiting, uint64_t time_us)
{
    struct companions own = {.batches = 0};

    companions_count(&own, waiting->batch);
    return (uint64_t)((double)time_us * (double)(own.elements + 1) /
                      (double)(all->elements + all->batches));
}

static bool companions_has_tensor(const struct engine_batch *batch, uint32_t tensor)
{
    unsigned i = 0;

    while (i < batch->count && batch->order[i].tensor != tensor) {
        i++;
    }
    return i < batch->count;
}

/* Whether both have orders for some tensor, which then have to follow one another. */
static bool companions_share_tensor(const struct engine_batch *a, const struct engine_batch *b)
{
    bool shared = false;

    for (unsigned i = 0; i < a->count && !shared; i++) {
        shared = companions_has_tensor(b, a->order[i].tensor);
    }
    return shared;
}

static bool companions_fits(const struct engine_wait *first, const struct engine_wait *next)
{
    struct companions all = companions_of(first);
    bool fits = next->batch != NULL && next->batch->memory == first->batch->memory &&
                next->shard == first->shard;

    if (fits) {
        companions_count(&all, next->batch);
        fits = all.orders <= COMPANIONS_ORDERS && all.elements <= COMPANIONS_ELEMENTS;
    }
    for (const struct engine_wait *at = first; at != NULL && fits; at = at->next) {
        fits = !companions_share_tensor(at->batch, next->batch);
    }
    return fits;
}

struct engine_wait *companions_take(struct queue *queue)
{
    struct engine_wait *first = queue_take(queue), *last = first;

    while (first != NULL && first->batch != NULL && queue->first != NULL &&
           companions_fits(first, queue->first)) {
        last->next = queue_take(queue);
        last = last->next;
    }
    return first;
}
