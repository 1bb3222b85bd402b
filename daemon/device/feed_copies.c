/*
 * The copies of a run. The inputs of its orders lie one behind the other in scratch memory, and the
 * outputs behind them. So all inputs are one stretch, and all outputs are another, which are copied
 * in slices of staging memory: the driver makes as few copies for hundreds of small tensors as for
 * a large one.
 */
#include <assert.h>
#include <string.h>

#include "daemon/device/feeding.h"
#include "daemon/engine/shards.h"

/* ------------------------------------------------------------------ places */

/* Only this thread frees parts; the loop adds some. */
static const struct part *feed_part(const struct feed *feed, uint64_t job, uint32_t number)
{
    struct device *device = feed->worker->device;
    const struct part *part;

    (void)pthread_mutex_lock(&device->mutex);
    part = feed->worker->parts;
    while (part->dropped || part->job != job || part->number != number) {
        part = part->next;
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return part;
}

struct part *feed_home(const struct feed *feed, uint64_t job)
{
    struct device *device = feed->worker->device;
    struct part *part;

    (void)pthread_mutex_lock(&device->mutex);
    part = feed->worker->parts;
    while (part->job != job || part->number != 0) {
        part = part->next;
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return part;
}

const struct part *feed_arena(const struct feed *feed, const struct engine_place *place)
{
    struct device *device = feed->worker->device;
    const struct part *arena;

    if (place->arena < ENGINE_GRADIENTS) {
        return NULL;
    }
    (void)pthread_mutex_lock(&device->mutex);
    arena = arena_of(feed->worker, feed->batch->memory->gradients[place->arena - ENGINE_GRADIENTS]);
    (void)pthread_mutex_unlock(&device->mutex);
    return arena;
}

/* Gradients on a device are read where they lie, and so is an operation's vector. */
static enum order_way feed_way(
    const struct feed *feed, const struct engine_place *place, enum order_way way)
{
    return place->arena == ENGINE_CARRIED || feed_arena(feed, place) != NULL ? ORDER_STAYS : way;
}

/* Calls `visit` for the places of an order, and then those of the list that is asked for. */
static void feed_visit(struct feed_item *item, order_visit visit, void *context)
{
    struct engine_list *list = &item->ask.list;

    order_places(item->order, item->part, visit, context);
    if (engine_is_there(list->position)) {
        visit(context, &list->position, list->count * sizeof(uint32_t), ORDER_OUT);
        visit(context, &list->value, list->count * sizeof(float), ORDER_OUT);
    }
}

static void feed_place(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;
    const struct part *arena = feed_arena(feed, place);
    uint64_t *next = way == ORDER_IN ? &feed->input : &feed->output;

    if (place->arena == ENGINE_CARRIED) {
        place->arena = ENGINE_HERE;
    } else if (arena != NULL) {
        *place = (struct engine_place){
            .arena = PAGE_ARENA + arena->arena, .offset = place->offset - arena->of->begin};
    } else if (way == ORDER_STAYS) {
        place->offset -= shards_begin(feed->batch->memory, place->arena, feed->shard);
        place->arena = PAGE_ARENA + feed_part(feed, feed->batch->memory->job, place->arena)->arena;
    } else {
        *place = (struct engine_place){.arena = ENGINE_HERE, .offset = *next};
        *next += page_align(size);
    }
}

void feed_places(struct feed *feed, struct feed_item *item)
{
    feed_visit(item, feed_place, feed);
}

/* ------------------------------------------------------------------ how much */

struct measuring {
    const struct feed *feed;
    struct feed_item *item;
};

static void feed_note_output(const struct feed *feed, struct feed_item *item,
    const struct engine_place *place, uint64_t size)
{
    unsigned o = 0;

    while (o < FEED_OUTPUTS && item->output[o].to != NULL) {
        o++;
    }
    assert(o < FEED_OUTPUTS);
    item->output[o] = (struct feed_output){engine_address(feed->batch->memory, *place), size};
    item->outputs += page_align(size);
}

static void feed_size(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    const struct measuring *measuring = context;

    way = feed_way(measuring->feed, place, way);
    if (way == ORDER_IN) {
        measuring->item->inputs += page_align(size);
    } else if (way == ORDER_OUT) {
        feed_note_output(measuring->feed, measuring->item, place, size);
    }
}

void feed_measure(const struct feed *feed, struct feed_item *item)
{
    struct measuring measuring = {.feed = feed, .item = item};

    feed_visit(item, feed_size, &measuring);
}

/* ------------------------------------------------------------------ inputs */

/* Begins the next slice of the inputs. False: the worker is to be ended, and there is no room. */
static bool feed_slice(struct feed *feed)
{
    struct feed_slice *slice = &feed->slice;
    const uint64_t size = slice->left < PAGE_SLICE ? slice->left : PAGE_SLICE;
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_COPY_IN, size, &flight);

    if (entry == NULL) {
        return false;
    }
    entry->scratch = slice->scratch;
    slice->to = feed->page->staging + entry->staging;
    slice->room = size;
    slice->scratch += size;
    slice->left -= size;
    return true;
}

/* Puts an input into slices, and the padding behind it. A slice that is full is the worker's. */
static void feed_pack(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;
    struct feed_slice *slice = &feed->slice;
    const bool packed = feed_way(feed, place, way) == ORDER_IN;
    const uint8_t *from = packed ? engine_address(feed->batch->memory, *place) : NULL;
    const uint64_t padded = packed ? page_align(size) : 0;
    uint64_t step;

    for (uint64_t at = 0; at < padded; at += step) {
        if (slice->room == 0 && !feed_slice(feed)) {
            return;
        }
        step = padded - at < slice->room ? padded - at : slice->room;
        if (at < size) {
            (void)memcpy(slice->to, from + at, size - at < step ? size - at : step);
        }
        slice->to += step;
        slice->room -= step;
        if (slice->room == 0) {
            feed_post(feed);
        }
    }
}

void feed_inputs(struct feed *feed, const struct feed_group *group)
{
    feed->slice = (struct feed_slice){.left = group->inputs, .scratch = feed->vector};
    for (struct feed_item *item = group->first; item != NULL; item = item->next) {
        feed_visit(item, feed_pack, feed);
    }
}

/* ------------------------------------------------------------------ outputs */

void feed_outputs(struct feed *feed, const struct feed_group *group)
{
    for (uint64_t at = 0; at < group->outputs; at += PAGE_SLICE) {
        const uint64_t rest = group->outputs - at;
        struct flight *flight;
        struct page_entry *entry =
            feed_entry(feed, PAGE_COPY_OUT, rest < PAGE_SLICE ? rest : PAGE_SLICE, &flight);

        if (entry == NULL) {
            return;
        }
        entry->scratch = feed->vector + group->inputs + at;
        flight->outputs = group->first;
        flight->at = at;
        feed_post(feed);
    }
}

/* What a slice has of an output. Both begin there in the stretch of all outputs. */
static void feed_unpack(const struct flight *flight, const uint8_t *slice,
    const struct feed_output *output, uint64_t at)
{
    const uint64_t end = flight->at + flight->size, output_end = at + output->size;
    const uint64_t first = flight->at > at ? flight->at : at;
    const uint64_t last = end < output_end ? end : output_end;

    if (first < last) {
        (void)memcpy(output->to + (first - at), slice + (first - flight->at), last - first);
    }
}

void feed_land(const struct feed *feed, const struct flight *flight)
{
    const uint8_t *slice = feed->page->staging + flight->staging;
    uint64_t at = 0;

    for (const struct feed_item *item = flight->outputs; item != NULL; item = item->next) {
        for (unsigned o = 0; o < FEED_OUTPUTS; o++) {
            feed_unpack(flight, slice, &item->output[o], at);
            at += page_align(item->output[o].size);
        }
    }
}
