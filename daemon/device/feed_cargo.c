/*
 * Operations of NCCL through a worker's page. The values are in memory of the daemon, and are
 * copied in and out. Or they are a vector on the device, at the beginning of the worker's scratch
 * memory: READ orders bring residuals there, NCCL sums it in place, and SUMMED orders take the
 * update from there. Then only the host form of the update is copied.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/device/feeding.h"
#include "daemon/device/order.h"
#include "daemon/device/rule.h"
#include "daemon/device/tables.h"

void feed_carried(const struct feed *feed, const struct flight *flight)
{
    const struct page_carry *carry =
        (const struct page_carry *)(const void *)(feed->page->staging + flight->staging);

    *feed->said = carry->error;
    feed->said->text[sizeof(carry->error.text) - 1] = '\0'; /* whatever the worker wrote */
    if (feed->said->code != ADTOPK_OK) {
        feed->said->code = ADTOPK_ERR_SYSTEM;
    } else {
        feed_note_room(feed, flight);
    }
    if (feed->cargo->kind == CARGO_NAME) {
        (void)memcpy(feed->cargo->input, carry->group.name, sizeof(carry->group.name));
    }
}

static void feed_carry(struct feed *feed, uint64_t bytes, uint64_t output)
{
    const struct cargo *cargo = feed->cargo;
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_CARRY, sizeof(struct page_carry), &flight);
    struct page_carry *carry;

    if (entry == NULL) {
        return;
    }
    carry = (struct page_carry *)(void *)(feed->page->staging + entry->staging);
    *carry = (struct page_carry){.kind = cargo->kind,
        .arena = feed_home(feed, cargo->job)->arena,
        .device = feed->shard,
        .group = cargo->group,
        .bytes = bytes,
        .output = output};
    flight->carries = true;
    feed_post(feed);
    feed->carry = feed->posted;
}

/* ------------------------------------------------------------------ values of the daemon */

/* The worker's stretch of so many pieces, from or to scratch memory. */
static void feed_stretches(
    struct feed *feed, enum page_command command, uint8_t *bytes, uint64_t scratch, unsigned pieces)
{
    const struct cargo_stretch stretch = cargo_stretch(feed->cargo, feed->shard);

    for (unsigned p = 0; p < pieces; p++) {
        feed_copy(feed, command, bytes + p * feed->cargo->bytes + stretch.first,
            scratch + p * stretch.size, stretch.size);
    }
}

static void feed_values(struct feed *feed)
{
    const struct cargo *cargo = feed->cargo;
    const uint64_t size = cargo_stretch(cargo, feed->shard).size;
    const unsigned given = cargo->kind == CARGO_DEAL ? cargo->group.members : 1;
    const unsigned got = cargo_has_pieces(cargo) ? cargo->group.members : 1;
    const uint64_t output = cargo_has_pieces(cargo) ? page_align(given * size) : 0;

    feed_ask_room(feed, output + got * size);
    feed_stretches(feed, PAGE_COPY_IN, cargo->input, 0, given);
    feed_carry(feed, size, output);
    feed_stretches(
        feed, PAGE_COPY_OUT, cargo_has_pieces(cargo) ? cargo->output : cargo->input, output, got);
}

/* ------------------------------------------------------------------ values on the device */

static bool feed_is_mine(const struct feed *feed, unsigned at, enum engine_kind kind)
{
    return feed->batch->order[at].kind == kind && feed_has(feed, at);
}

/* Scratch memory for the vector and for any run of orders of this kind. */
static uint64_t feed_vector_room(const struct feed *feed, enum engine_kind kind)
{
    const struct engine_batch *batch = feed->batch;
    struct tables_scratch scratch;
    unsigned orders = 0, parts = 0;

    for (unsigned i = 0; i < batch->count; i++) {
        orders += feed_is_mine(feed, i, kind);
        parts += feed_is_mine(feed, i, kind) ? batch->order[i].parts : 0;
    }
    scratch = tables_scratch(feed->vector, orders, parts, feed_blocks(feed));
    for (unsigned i = 0; i < batch->count; i++) {
        if (feed_is_mine(feed, i, kind)) {
            (void)tables_own(&scratch, &batch->order[i], &rule_none.ask);
        }
    }
    return scratch.size;
}

static void feed_clear(struct feed *feed, uint64_t at, uint64_t size)
{
    struct flight *flight;
    struct page_entry *entry = size > 0 ? feed_entry(feed, PAGE_CLEAR, 0, &flight) : NULL;

    if (entry != NULL) {
        entry->scratch = at;
        entry->size = size;
        feed_post(feed);
    }
}

/* The tensor's values come into the vector, with zeros behind them. */
static void feed_give(struct feed *feed, struct feed_item *item)
{
    const struct engine_place from = item->order->residual.element;
    const uint64_t at = item->order->gather.list.value.offset;
    const uint64_t size = item->order->numel * sizeof(float);

    if (!engine_is_there(from)) {
        feed_clear(feed, at, page_align(size));
        return;
    }
    if (from.arena == ENGINE_HERE) {
        feed_copy(feed, PAGE_COPY_IN, engine_address(feed->batch->memory, from), at, size);
    } else {
        feed_add(feed, &feed->group, item);
    }
    feed_clear(feed, at + size, page_align(size) - size);
}

/* The host form of the update comes out. */
static void feed_take(struct feed *feed, const struct engine_order *order)
{
    feed_copy(feed, PAGE_COPY_OUT, engine_address(feed->batch->memory, order->summed.dense),
        order->summed.sum.offset, order->numel * sizeof(float));
}

static struct feed_item *feed_item_of(struct feed *feed, unsigned at)
{
    struct engine_order *order = &feed->batch->order[at];

    feed->item[at] = (struct feed_item){.order = order,
        .part = feed->batch->part + order->first,
        .result = &feed->batch->result[at],
        .ask = rule_none.ask};
    return &feed->item[at];
}

static void feed_give_all(struct feed *feed)
{
    for (unsigned i = 0; i < feed->batch->count; i++) {
        if (feed_is_mine(feed, i, ENGINE_READ)) {
            feed_give(feed, feed_item_of(feed, i));
        }
    }
    feed_close(feed, &feed->group);
}

static void feed_take_all(struct feed *feed)
{
    for (unsigned i = 0; i < feed->batch->count; i++) {
        if (feed_is_mine(feed, i, ENGINE_SUMMED)) {
            feed_add(feed, &feed->group, feed_item_of(feed, i));
        }
    }
    feed_close(feed, &feed->group);
    for (unsigned i = 0; i < feed->batch->count; i++) {
        if (feed_is_mine(feed, i, ENGINE_SUMMED)) {
            feed_take(feed, &feed->batch->order[i]);
        }
    }
}

static void feed_vector(struct feed *feed)
{
    const uint64_t reads = feed_vector_room(feed, ENGINE_READ);
    const uint64_t sums = feed_vector_room(feed, ENGINE_SUMMED);

    feed_ask_room(feed, reads > sums ? reads : sums);
    feed_give_all(feed);
    feed_carry(feed, feed->vector, 0);
    feed_take_all(feed);
}

static void feed_carry_vector(struct feed *feed)
{
    feed->batch = feed->cargo->orders;
    feed->vector = feed->cargo->share[feed->shard];
    feed->item = calloc(feed->batch->count + 1, sizeof(*feed->item));
    if (feed->item == NULL) {
        (void)error_set(feed->said, ADTOPK_ERR_MEMORY, "no memory for its orders");
        return;
    }
    feed_vector(feed);
    (void)feed_drain(feed);
    free(feed->item);
}

/* ------------------------------------------------------------------ an operation */

enum adtopk_status feed_cargo(struct worker *worker, struct cargo *cargo, unsigned device,
    struct error *said, struct error *err)
{
    struct feed *feed = feed_begin(worker);

    *said = (struct error){.code = ADTOPK_OK};
    feed->cargo = cargo;
    feed->shard = device;
    feed->said = said;
    if (cargo->kind == CARGO_NAME) {
        feed_carry(feed, 0, 0);
    } else if (cargo->orders != NULL) {
        feed_carry_vector(feed);
    } else {
        feed_values(feed);
    }
    return feed_end(feed, err);
}
