#include "daemon/device/feed.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/device/order.h"
#include "daemon/device/process.h"
#include "daemon/device/tables.h"

#define LISTEN_MS 50

/* What is to be done here when an entry is done. */
struct flight {
    void *to; /* copy `size` bytes of staging memory there; NULL: nothing */
    uint64_t staging, size;
    uint64_t end;                 /* staging memory is free up to here */
    struct engine_result *result; /* not NULL: of the order at `staging`, as kernels have left it */
    const struct engine_order *order; /* as the daemon has it */
    bool carries;                     /* a struct page_carry is at `staging` */
};

struct feed {
    struct worker *worker;
    struct engine_batch *batch;
    struct page *page;
    uint32_t posted, retired;   /* numbers of entries */
    uint64_t staged, freed;     /* bytes of staging memory that were ever used, and given back */
    uint64_t scratch;           /* bytes that the order at hand has placed */
    struct engine_order *order; /* at hand, as the daemon has it */
    struct cargo *cargo;        /* instead of a batch */
    uint32_t carry;             /* the entry that makes it; 0: it is not posted */
    struct error error;
    enum adtopk_status status;
    struct flight flight[PAGE_ENTRIES];
};

/* ------------------------------------------------------------------ what is done */

/* The result of an order, and its ledger. */
static void feed_result(const struct feed *feed, const struct flight *flight)
{
    const struct page_order *order =
        (const struct page_order *)(const void *)(feed->page->staging + flight->staging);

    const struct order_ledger ledger = {
        .sums = engine_address(feed->batch->memory, flight->order->ledger),
        .lost = engine_address(feed->batch->memory, flight->order->lost)};

    flight->result->status = (enum adtopk_status)order->status;
    if (order->status == ADTOPK_OK) {
        order_result(flight->order, &order->result, flight->result, &ledger);
    }
}

/* What NCCL said of the operation. */
static void feed_carried(const struct feed *feed, const struct flight *flight)
{
    const struct page_carry *carry =
        (const struct page_carry *)(const void *)(feed->page->staging + flight->staging);

    feed->cargo->error = carry->error;
    feed->cargo->error.text[sizeof(carry->error.text) - 1] = '\0'; /* whatever the worker wrote */
    if (feed->cargo->error.code != ADTOPK_OK) {
        feed->cargo->error.code = ADTOPK_ERR_SYSTEM;
    }
    if (feed->cargo->kind == CARGO_NAME) {
        (void)memcpy(feed->cargo->input, carry->group.name, CARGO_NAME_SIZE);
    }
}

/* Takes what the worker has done. False: nothing is new. */
static bool feed_retire(struct feed *feed)
{
    bool any = false;

    while (feed->retired != feed->posted && page_is_done(feed->page, feed->retired + 1)) {
        const struct flight *flight = &feed->flight[++feed->retired % PAGE_ENTRIES];

        if (flight->to != NULL) {
            (void)memcpy(flight->to, feed->page->staging + flight->staging, flight->size);
        }
        if (flight->result != NULL) {
            feed_result(feed, flight);
        }
        if (flight->carries) {
            feed_carried(feed, flight);
        }
        feed->freed = flight->end;
        any = true;
    }
    return any;
}

/* Sleeps until the worker says something, or for a while. */
static void feed_sleep(struct feed *feed)
{
    atomic_store(&feed->page->daemon_asleep, 1);
    if (!page_is_done(feed->page, feed->retired + 1)) {
        feed->status = process_listen(feed->worker, LISTEN_MS, &feed->error);
    }
    atomic_store(&feed->page->daemon_asleep, 0);
}

/* Tells the worker that nobody wants the operation any more. */
static void feed_abort(const struct feed *feed)
{
    if (feed->carry != 0 && atomic_load(&feed->cargo->aborted)) {
        atomic_store(&feed->page->abort, feed->carry);
    }
}

static const char *feed_doing(const struct feed *feed)
{
    return feed->cargo != NULL   ? "an operation of NCCL"
           : feed->order != NULL ? order_kinds[feed->order->kind].name
                                 : "an order";
}

/* Waits until another entry is done. False, with a status, if that will not happen. A worker that
 * waits for NCCL shows that it does. */
static bool feed_await(struct feed *feed)
{
    const unsigned patience_ms = feed->worker->device->config.patience_ms;

    feed->worker->spin.active_us = 0;
    do {
        if (feed_retire(feed)) {
            return true;
        }
    } while (page_pass_time(&feed->worker->spin));
    for (unsigned waited_ms = 0; feed->status == ADTOPK_OK; waited_ms += LISTEN_MS) {
        const uint32_t beat = atomic_load(&feed->page->beat);

        feed_abort(feed);
        feed_sleep(feed);
        if (feed_retire(feed)) {
            return true;
        }
        waited_ms = beat == atomic_load(&feed->page->beat) ? waited_ms : 0;
        if (device_stops(feed->worker->device)) {
            feed->status = error_set(&feed->error, ADTOPK_ERR_STATE, "the daemon stops");
        } else if (feed->status == ADTOPK_OK && waited_ms >= patience_ms) {
            feed->status = process_hangs(feed->worker, feed_doing(feed), patience_ms, &feed->error);
        }
    }
    return false;
}

static bool feed_drain(struct feed *feed)
{
    while (feed->retired != feed->posted && feed_await(feed)) {
    }
    return feed->status == ADTOPK_OK;
}

/* ------------------------------------------------------------------ entries */

/* Makes an entry with so many bytes of staging memory, which its flight says where; NULL if the
 * worker is to be ended. It is the worker's with feed_post(). */
static struct page_entry *feed_entry(
    struct feed *feed, enum page_command command, uint64_t size, struct flight **made)
{
    const uint64_t wanted = page_align(size);
    struct page_entry *entry;
    uint64_t begin = feed->staged;

    if (begin % PAGE_STAGING + wanted > PAGE_STAGING) {
        begin += PAGE_STAGING - begin % PAGE_STAGING;
    }
    while (feed->posted - feed->retired == PAGE_ENTRIES ||
           begin + wanted - feed->freed > PAGE_STAGING) {
        if (!feed_await(feed)) {
            return NULL;
        }
    }
    feed->staged = begin + wanted;
    *made = &feed->flight[(feed->posted + 1) % PAGE_ENTRIES];
    **made = (struct flight){.staging = begin % PAGE_STAGING, .size = size, .end = feed->staged};
    entry = &feed->page->entry[(feed->posted + 1) % PAGE_ENTRIES];
    *entry = (struct page_entry){.command = command, .staging = begin % PAGE_STAGING, .size = size};
    return entry;
}

static void feed_post(struct feed *feed)
{
    const struct message wake = {.type = MESSAGE_WAKE};

    atomic_store(&feed->page->tail, ++feed->posted);
    if (atomic_load(&feed->page->worker_asleep) != 0) {
        (void)message_send(feed->worker->socket, &wake, -1);
    }
}

/* In slices, between `bytes` here and scratch memory there. */
static void feed_copy(
    struct feed *feed, enum page_command command, void *bytes, uint64_t scratch, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += PAGE_SLICE) {
        const uint64_t slice = size - at < PAGE_SLICE ? size - at : PAGE_SLICE;
        struct flight *flight;
        struct page_entry *entry = feed_entry(feed, command, slice, &flight);

        if (entry == NULL) {
            return;
        }
        entry->scratch = scratch + at;
        if (command == PAGE_COPY_IN) {
            (void)memcpy(feed->page->staging + entry->staging, (const uint8_t *)bytes + at, slice);
        } else {
            flight->to = (uint8_t *)bytes + at;
        }
        feed_post(feed);
    }
}

/* ------------------------------------------------------------------ orders */

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

/* The places of an order become the worker's. */
static void feed_place(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;

    if (way == ORDER_STAYS) {
        place->arena = PAGE_ARENA + feed_part(feed, feed->batch->memory->job, place->arena)->arena;
    } else {
        *place = (struct engine_place){.arena = ENGINE_HERE, .offset = feed->scratch};
        feed->scratch += page_align(size);
    }
}

static void feed_size(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;

    (void)place;
    feed->scratch += way != ORDER_STAYS ? page_align(size) : 0;
}

static void feed_in(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;

    if ((way & ORDER_IN) != 0) {
        feed_copy(
            feed, PAGE_COPY_IN, engine_address(feed->batch->memory, *place), feed->scratch, size);
    }
    feed->scratch += way != ORDER_STAYS ? page_align(size) : 0;
}

static void feed_out(void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    struct feed *feed = context;

    if ((way & ORDER_OUT) != 0) {
        feed_copy(
            feed, PAGE_COPY_OUT, engine_address(feed->batch->memory, *place), feed->scratch, size);
    }
    feed->scratch += way != ORDER_STAYS ? page_align(size) : 0;
}

/* The order itself, with places of the worker's, and room for its tables. */
static void feed_run(struct feed *feed, unsigned at, struct engine_part *part, uint64_t copies)
{
    const unsigned parts = feed->order->parts;
    const uint64_t size = page_order_size(parts) + tables_in(NULL, parts).size;
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_RUN, size, &flight);
    struct page_order *order;

    if (entry == NULL) {
        return;
    }
    order = (struct page_order *)(void *)(feed->page->staging + entry->staging);
    (void)memset(order, 0, size);
    order->order = *feed->order;
    order->status = ADTOPK_OK;
    order->copies = copies;
    (void)memcpy(order->part, part, parts * sizeof(*part));
    feed->scratch = 0;
    order_places(&order->order, order->part, feed_place, feed);
    flight->result = &feed->batch->result[at];
    flight->order = feed->order;
    feed_post(feed);
}

static unsigned feed_blocks(const struct feed *feed)
{
    return PAGE_BLOCKS * feed->worker->device->gpu[feed->worker->gpu].multiprocessors;
}

static void feed_order(struct feed *feed, unsigned at)
{
    struct engine_part *part = feed->batch->part + feed->batch->order[at].first;
    uint64_t copies;
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_ROOM, 0, &flight);

    feed->order = &feed->batch->order[at];
    if (entry == NULL) {
        return;
    }
    order_prepare(feed->batch->memory, feed->order);
    feed->scratch = 0;
    order_places(feed->order, part, feed_size, feed);
    copies = feed->scratch;
    entry->size = tables_scratch(feed->order, copies, feed_blocks(feed)).size;
    feed_post(feed);
    feed->scratch = 0;
    order_places(feed->order, part, feed_in, feed);
    feed_run(feed, at, part, copies);
    feed->scratch = 0;
    order_places(feed->order, part, feed_out, feed);
}

/* An order whose places are all in memory of this process. */
static void feed_here(struct feed *feed, unsigned at)
{
    const struct parallel alone = {.threads = 0};
    const struct engine_batch single = {.memory = feed->batch->memory,
        .order = &feed->batch->order[at],
        .result = &feed->batch->result[at],
        .count = 1,
        .part = feed->batch->part};

    engine_host.run(NULL, &single, &alone);
}

enum adtopk_status feed_batch(struct worker *worker, struct engine_batch *batch, struct error *err)
{
    struct feed *feed = calloc(1, sizeof(*feed));
    enum adtopk_status status;

    if (feed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to feed it");
    }
    feed->worker = worker;
    feed->batch = batch;
    feed->page = worker->page;
    feed->posted = feed->retired = atomic_load(&worker->page->done);
    for (unsigned i = 0; i < batch->count && feed->status == ADTOPK_OK; i++) {
        const struct engine_order *order = &batch->order[i];

        if (i > 0 && order->tensor == order[-1].tensor && !feed_drain(feed)) {
            break;
        }
        batch->result[i] = (struct engine_result){.status = ADTOPK_OK};
        if (engine_leaves_out(batch, i)) {
            continue;
        }
        if (order_kinds[order->kind].here) {
            feed_here(feed, i);
        } else {
            feed_order(feed, i);
        }
    }
    (void)feed_drain(feed);
    status = feed->status;
    *err = feed->error;
    free(feed);
    return status;
}

/* ------------------------------------------------------------------ operations of NCCL */

/* Scratch memory for the values: a sum is made in place. */
static void feed_carry_room(struct feed *feed, uint64_t size)
{
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_ROOM, 0, &flight);

    if (entry != NULL) {
        entry->size = size;
        feed_post(feed);
    }
}

static void feed_carry(struct feed *feed, uint64_t output)
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
        .arena = feed_part(feed, cargo->job, 0)->arena,
        .group = cargo->group,
        .bytes = cargo->bytes,
        .output = output};
    flight->carries = true;
    feed_post(feed);
    feed->carry = feed->posted;
}

static void feed_values(struct feed *feed)
{
    const struct cargo *cargo = feed->cargo;
    const bool gathers = cargo->kind == CARGO_GATHER;
    const uint64_t output = gathers ? page_align(cargo->bytes) : 0;
    const uint64_t gathered = gathers ? cargo->group.members * cargo->bytes : cargo->bytes;

    feed_carry_room(feed, output + gathered);
    feed_copy(feed, PAGE_COPY_IN, cargo->input, 0, cargo->bytes);
    feed_carry(feed, output);
    feed_copy(feed, PAGE_COPY_OUT, gathers ? cargo->output : cargo->input, output, gathered);
}

enum adtopk_status feed_cargo(struct worker *worker, struct cargo *cargo, struct error *err)
{
    struct feed *feed = calloc(1, sizeof(*feed));
    enum adtopk_status status;

    if (feed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to feed it");
    }
    feed->worker = worker;
    feed->cargo = cargo;
    feed->page = worker->page;
    feed->posted = feed->retired = atomic_load(&worker->page->done);
    if (cargo->kind == CARGO_NAME) {
        feed_carry(feed, 0);
    } else {
        feed_values(feed);
    }
    (void)feed_drain(feed);
    status = feed->status;
    *err = feed->error;
    free(feed);
    return status;
}
