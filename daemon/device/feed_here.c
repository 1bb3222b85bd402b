/* Orders that the daemon carries out itself, because all of them lies in its memory, or nearly. */
#include <stdlib.h>

#include "daemon/device/feeding.h"
#include "kernels/base/dtype.h"
#include "proto/local.h"

/* Copies a gradient out of its arena, and makes that its place. */
static enum adtopk_status feed_fetch(struct feed *feed, struct engine_part *part, uint64_t size)
{
    const struct part *arena = feed_arena(feed, &part->element);
    const uint64_t offset = part->element.offset;
    void *copy;

    if (arena == NULL) {
        return ADTOPK_OK;
    }
    copy = malloc(size);
    if (copy == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    part->element = engine_here(copy);
    feed_copy_with(
        feed, PAGE_COPY_OUT, copy, PAGE_ARENA + arena->arena, offset - arena->of->begin, size);
    return ADTOPK_OK;
}

/* The processor's kernels carry the order out. */
static void feed_on_host(struct feed *feed, unsigned at, struct engine_part *part)
{
    const struct parallel alone = {.threads = 0};
    struct engine_order order = feed->batch->order[at];
    const struct engine_batch single = {.memory = feed->batch->memory,
        .order = &order,
        .result = &feed->batch->result[at],
        .count = 1,
        .part = part};

    order.first = 0;
    engine_host.run(NULL, &single, &alone);
}

static bool feed_is_copy(const struct engine_part *part, const struct engine_part *given)
{
    return part->element.arena != given->element.arena;
}

/* Drops the copies of an order's gradients. If the worker failed, nothing may come back to them. */
static void feed_drop_copies(
    struct feed *feed, struct engine_part *part, const struct engine_part *given, unsigned parts)
{
    for (unsigned i = 0; feed->status != ADTOPK_OK && i < PAGE_ENTRIES; i++) {
        feed->flight[i].to = NULL;
    }
    for (unsigned p = 0; p < parts; p++) {
        if (feed_is_copy(&part[p], &given[p])) {
            free((void *)(uintptr_t)part[p].element.offset);
        }
    }
    free(part);
}

/* Says where a rank sees lists that there is none. */
static void feed_no_list(
    struct feed *feed, const struct part *arena, const struct engine_list *list)
{
    uint32_t none = LOCAL_NO_LIST;

    if (engine_is_there(list->position)) {
        feed_copy_with(feed, PAGE_COPY_IN, &none, PAGE_ARENA + arena->arena,
            list->position.offset - LOCAL_LIST_BEGIN - arena->of->begin, sizeof(none));
    }
}

/* Copies an update that lies whole in memory of this process to where ranks see it. */
static void feed_show(struct feed *feed, const struct engine_order *order)
{
    const uint64_t size =
        order->numel * (order->show.half ? dtype_size(order->dtype) : sizeof(float));
    const struct engine_part *part = feed->batch->part + order->first;

    for (unsigned p = 0; p < order->parts; p++) {
        const struct part *arena = feed_arena(feed, &part[p].element);

        if (arena != NULL) {
            feed_copy_with(feed, PAGE_COPY_IN,
                engine_address(feed->batch->memory, order->show.whole), PAGE_ARENA + arena->arena,
                part[p].element.offset - arena->of->begin, size);
            feed_no_list(feed, arena, &part[p].list);
        }
    }
}

/* Clears what ranks see that their updates lack. */
static void feed_clear_pending(struct feed *feed, const struct engine_order *order)
{
    const uint64_t size = order->numel * sizeof(float);
    const struct engine_part *part = feed->batch->part + order->first;
    void *zeros = calloc(1, size);

    if (zeros == NULL) {
        feed->batch->result[order - feed->batch->order].status = ADTOPK_ERR_MEMORY;
        return;
    }
    for (unsigned p = 0; p < order->parts; p++) {
        const struct part *arena = feed_arena(feed, &part[p].element);

        if (arena != NULL) {
            feed_copy_with(feed, PAGE_COPY_IN, zeros, PAGE_ARENA + arena->arena,
                part[p].element.offset - arena->of->begin, size);
        }
    }
    free(zeros);
}

void feed_here(struct feed *feed, unsigned at)
{
    const struct engine_order *order = &feed->batch->order[at];
    const struct engine_part *given = feed->batch->part + order->first;
    struct engine_part *part = malloc((order->parts + 1) * sizeof(*part));
    enum adtopk_status status = part != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    unsigned seen = 0;
    bool copies = false;

    if (order->kind == ENGINE_SHOW || order->kind == ENGINE_READ) {
        free(part);
        if (order->kind == ENGINE_SHOW) {
            feed_show(feed, order);
        } else {
            feed_clear_pending(feed, order);
        }
        return;
    }
    for (; status == ADTOPK_OK && seen < order->parts; seen++) {
        part[seen] = given[seen];
        status = feed_fetch(feed, &part[seen], order->numel * dtype_size(order->dtype));
        copies |= feed_is_copy(&part[seen], &given[seen]);
    }
    if (status != ADTOPK_OK) {
        feed->batch->result[at].status = status;
    }
    if ((!copies || feed_drain(feed)) && status == ADTOPK_OK) {
        feed_on_host(feed, at, part);
    }
    feed_drop_copies(feed, part, given, seen);
}
