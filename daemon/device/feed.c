#include "daemon/device/feeding.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/device/companions.h"
#include "daemon/device/order.h"
#include "daemon/device/process.h"
#include "daemon/device/rule.h"
#include "daemon/device/tables.h"
#include "daemon/engine/shards.h"

#define LISTEN_MS 50

/* ------------------------------------------------------------------ what is done */

/* The process keeps what it once had. */
void feed_note_room(const struct feed *feed, const struct flight *flight)
{
    struct worker *worker = feed->worker;

    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->scratch = flight->room > worker->scratch ? flight->room : worker->scratch;
    (void)pthread_mutex_unlock(&worker->device->mutex);
}

/* The process may have more memory than it once had, because others have given some back. */
static void feed_note_refusal(struct refusal *note, uint64_t room, bool refused)
{
    if (refused) {
        note->least = note->least == 0 || room < note->least ? room : note->least;
    } else if (note->least != 0 && room >= note->least) {
        note->least = room + 1;
    }
}

/* The result of an order, as kernels have left it, and its ledger. */
static void feed_result(
    const struct feed *feed, const struct feed_item *item, const struct page_order *order)
{
    const struct order_ledger ledger = {
        .sums = engine_address(feed->batch->memory, item->order->ledger),
        .lost = engine_address(feed->batch->memory, item->order->lost)};

    order_result(item->order, &order->result, item->result, &ledger);
    if (item->answer != NULL) {
        *item->answer = order->answer;
    }
}

static void feed_results(const struct feed *feed, const struct flight *flight)
{
    const struct page_run *run =
        (const struct page_run *)(const void *)(feed->page->staging + flight->staging);
    const struct page_order *order = run->order;

    (void)pthread_mutex_lock(&feed->worker->device->mutex);
    feed->worker->launches += run->launches;
    (void)pthread_mutex_unlock(&feed->worker->device->mutex);
    if (run->status != ADTOPK_ERR_SYSTEM) { /* the room was there: an operation has failed */
        feed_note_refusal(&feed->worker->refused, flight->room, run->status == ADTOPK_ERR_MEMORY);
    }
    if (run->status == ADTOPK_OK) {
        feed_note_room(feed, flight);
    }
    for (const struct feed_item *item = flight->item; item != NULL; item = item->next, order++) {
        item->result->status = run->status == ADTOPK_OK ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
        if (item->result->status == ADTOPK_OK) {
            feed_result(feed, item, order);
        }
    }
}

/* Takes what the worker has done. False: nothing is new. */
static bool feed_retire(struct feed *feed)
{
    bool any = false;

    while (feed->retired != feed->posted && page_is_done(feed->page, feed->retired + 1)) {
        const struct flight *flight = &feed->flight[++feed->retired % PAGE_ENTRIES];

        if (flight->outputs != NULL) {
            feed_land(feed, flight);
        }
        if (flight->to != NULL) {
            (void)memcpy(flight->to, feed->page->staging + flight->staging, flight->size);
        }
        if (flight->item != NULL) {
            feed_results(feed, flight);
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

/* Waits until another entry is done. False, with a status, if that will not happen. */
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
        const uint32_t beat = feed_beat(feed);

        feed_abort(feed);
        feed_sleep(feed);
        if (feed_retire(feed)) {
            return true;
        }
        waited_ms = beat == feed_beat(feed) ? waited_ms : 0;
        if (device_stops(feed->worker->device)) {
            feed->status = error_set(&feed->error, ADTOPK_ERR_STATE, "the daemon stops");
        } else if (feed->status == ADTOPK_OK && waited_ms >= patience_ms) {
            feed->status = process_hangs(feed->worker, feed_doing(feed), patience_ms, &feed->error);
        }
    }
    return false;
}

bool feed_drain(struct feed *feed)
{
    while (feed->status == ADTOPK_OK && feed->retired != feed->posted && feed_await(feed)) {
    }
    return feed->status == ADTOPK_OK;
}

/* ------------------------------------------------------------------ entries */

struct page_entry *feed_entry(
    struct feed *feed, enum page_command command, uint64_t size, struct flight **made)
{
    const uint64_t wanted = page_align(size);
    struct page_entry *entry;
    uint64_t begin = feed->staged;

    if (begin % PAGE_STAGING + wanted > PAGE_STAGING) {
        begin += PAGE_STAGING - begin % PAGE_STAGING;
    }
    while (feed->status == ADTOPK_OK && (feed->posted - feed->retired == PAGE_ENTRIES ||
                                            begin + wanted - feed->freed > PAGE_STAGING)) {
        (void)feed_await(feed);
    }
    if (feed->status != ADTOPK_OK) {
        return NULL;
    }
    feed->staged = begin + wanted;
    feed->copies += command == PAGE_COPY_IN || command == PAGE_COPY_OUT;
    *made = &feed->flight[(feed->posted + 1) % PAGE_ENTRIES];
    **made = (struct flight){
        .staging = begin % PAGE_STAGING, .size = size, .end = feed->staged, .room = feed->room};
    entry = &feed->page->entry[(feed->posted + 1) % PAGE_ENTRIES];
    *entry = (struct page_entry){.command = command, .staging = begin % PAGE_STAGING, .size = size};
    return entry;
}

void feed_post(struct feed *feed)
{
    const struct message wake = {.type = MESSAGE_WAKE};

    atomic_store(&feed->page->tail, ++feed->posted);
    if (atomic_load(&feed->page->worker_asleep) != 0) {
        (void)message_send(feed->worker->socket, &wake, -1);
    }
}

void feed_copy_with(struct feed *feed, enum page_command command, void *bytes, uint32_t arena,
    uint64_t scratch, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += PAGE_SLICE) {
        const uint64_t slice = size - at < PAGE_SLICE ? size - at : PAGE_SLICE;
        struct flight *flight;
        struct page_entry *entry = feed_entry(feed, command, slice, &flight);

        if (entry == NULL) {
            return;
        }
        entry->arena = arena;
        entry->scratch = scratch + at;
        if (command == PAGE_COPY_IN) {
            (void)memcpy(feed->page->staging + entry->staging, (const uint8_t *)bytes + at, slice);
        } else {
            flight->to = (uint8_t *)bytes + at;
        }
        feed_post(feed);
    }
}

void feed_copy(
    struct feed *feed, enum page_command command, void *bytes, uint64_t scratch, uint64_t size)
{
    feed_copy_with(feed, command, bytes, 0, scratch, size);
}

void feed_ask_room(struct feed *feed, uint64_t size)
{
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_ROOM, 0, &flight);

    if (entry != NULL) {
        entry->size = size;
        entry->keeps = feed->asks;
        feed_post(feed);
        feed->room = size;
    }
}

/* ------------------------------------------------------------------ runs */

#define GROUP_ORDERS 256u                  /* most orders of a run */
#define GROUP_COPIES (UINT64_C(256) << 20) /* most bytes of their copies, but for a single one */
#define GROUP_PAGE (PAGE_STAGING / 4)      /* most bytes of the page */
#define GROUP_SPARED 64u                   /* runs, until the worker asks for more memory again */

unsigned feed_blocks(const struct feed *feed)
{
    return PAGE_BLOCKS * feed->worker->device->gpu[feed->worker->gpu].multiprocessors;
}

/* Bytes of scratch memory that a group needs. */
static uint64_t feed_room(const struct feed *feed, const struct feed_group *group)
{
    struct tables_scratch scratch = tables_scratch(feed->vector + group->inputs + group->outputs,
        group->orders, group->parts, feed_blocks(feed));

    for (const struct feed_item *item = group->first; item != NULL; item = item->next) {
        (void)tables_own(&scratch, item->order, &item->ask);
    }
    return scratch.size;
}

/* The orders of a group, with places of the worker's. */
static void feed_orders(struct feed *feed, const struct feed_group *group, struct page_run *run)
{
    unsigned at = 0, first = 0;

    feed->input = feed->vector;
    feed->output = feed->vector + group->inputs;
    for (const struct feed_item *item = group->first; item != NULL; item = item->next, at++) {
        struct feed_item placed = *item;

        placed.order = &run->order[at].order;
        placed.part = page_parts(run) + first;
        *placed.order = *item->order;
        placed.order->first = first;
        for (unsigned p = 0; p < item->order->parts; p++) {
            placed.part[p] = item->part[p];
        }
        feed_places(feed, &placed);
        run->order[at].ask = placed.ask;
        first += item->order->parts;
    }
}

static uint64_t feed_page(unsigned orders, unsigned parts)
{
    return page_run_size(orders, parts) + tables_in(NULL, orders, parts).size;
}

static void feed_run(struct feed *feed, const struct feed_group *group)
{
    const uint64_t size = feed_page(group->orders, group->parts);
    struct flight *flight;
    struct page_entry *entry = feed_entry(feed, PAGE_RUN, size, &flight);
    struct page_run *run;

    if (entry == NULL) {
        return;
    }
    run = (struct page_run *)(void *)(feed->page->staging + entry->staging);
    (void)memset(run, 0, size);
    run->orders = group->orders;
    run->parts = group->parts;
    run->copies = feed->vector + group->inputs + group->outputs;
    run->status = ADTOPK_OK;
    feed_orders(feed, group, run);
    flight->item = group->first;
    feed_post(feed);
}

void feed_close(struct feed *feed, struct feed_group *group)
{
    if (group->orders > 0) {
        feed->order = group->first->order;
        if (feed->cargo == NULL) { /* an operation has its room, with its vector in it */
            feed_ask_room(feed, feed_room(feed, group));
        }
        feed_inputs(feed, group);
        feed_run(feed, group);
        feed_outputs(feed, group);
    }
    *group = (struct feed_group){.orders = 0};
}

static void feed_append(struct feed_group *group, struct feed_item *item)
{
    if (group->orders == 0) {
        group->first = item;
    } else {
        group->last->next = item;
    }
    group->last = item;
    group->orders++;
    group->parts += item->order->parts;
    group->inputs += item->inputs;
    group->outputs += item->outputs;
}

/* Whether the worker asks for as much memory as it was refused. To ask in vain takes as long as the
 * batch once more. */
static bool feed_asks(struct feed *feed)
{
    if (!feed->asks && !feed->again && ++feed->worker->refused.spared >= GROUP_SPARED) {
        feed->asks = true;
        feed->worker->refused.spared = 0;
    }
    return feed->asks;
}

/* Whether the worker was refused as much scratch memory as the group needs with the order. */
static bool feed_is_refused(
    struct feed *feed, const struct feed_group *group, struct feed_item *item)
{
    const uint64_t least = feed->again ? 1 : feed->worker->refused.least;
    struct feed_group both = *group;
    bool refused = false;

    if (least != 0 && feed->cargo == NULL) {
        feed_append(&both, item);
        refused = feed_room(feed, &both) >= least && !feed_asks(feed);
        group->last->next = NULL;
    }
    return refused;
}

/* Whether an order may be in a run with those of the group. */
static bool feed_fits(struct feed *feed, const struct feed_group *group, struct feed_item *item)
{
    const uint64_t copies = group->inputs + group->outputs + item->inputs + item->outputs;

    return group->orders < GROUP_ORDERS && copies <= GROUP_COPIES &&
           feed_page(group->orders + 1, group->parts + item->order->parts) <= GROUP_PAGE &&
           order_goes_with(group->first->order, group->first->part, item->order, item->part) &&
           !feed_is_refused(feed, group, item);
}

void feed_add(struct feed *feed, struct feed_group *group, struct feed_item *item)
{
    feed_measure(feed, item);
    if (group->orders > 0 && !feed_fits(feed, group, item)) {
        feed_close(feed, group);
    }
    feed_append(group, item);
}

/* An order that a worker carries out. A rule selects later, and meanwhile other orders run. */
static void feed_order(struct feed *feed, unsigned at)
{
    struct feed_item *item = &feed->item[at];
    const struct question *question = &rule_none;

    *item = (struct feed_item){.order = &feed->batch->order[at],
        .part = feed->batch->part + feed->batch->order[at].first,
        .result = &feed->batch->result[at]};
    if (order_choice(item->order).mode == SPARSIFIER_RULE) {
        question = rule_add(&feed->rules, feed->batch, at);
    }
    if (question == NULL) {
        item->result->status = ADTOPK_ERR_MEMORY;
        return;
    }
    item->ask = question->ask;
    item->answer = question->answer;
    order_prepare(feed->batch->memory, item->order);
    feed_add(feed, &feed->group, item);
}

bool feed_ask(struct feed *feed, struct engine_order *order, const struct question *question,
    struct engine_result *result)
{
    struct feed_item item = {
        .order = order, .result = result, .ask = question->ask, .answer = question->answer};
    struct feed_group group = {.orders = 0};

    if (feed->status != ADTOPK_OK) {
        return false;
    }
    feed_add(feed, &group, &item);
    feed_close(feed, &group);
    (void)pthread_mutex_lock(&feed->worker->device->mutex);
    feed->worker->questions++;
    (void)pthread_mutex_unlock(&feed->worker->device->mutex);
    return feed_drain(feed);
}

/* ------------------------------------------------------------------ batches */

bool feed_has(const struct feed *feed, unsigned at)
{
    return shards_of(feed->batch->memory, feed->batch->order[at].tensor) == feed->shard;
}

/* The batches are visited in their order. */
static void feed_turn_to(struct feed *feed, const struct engine_wait *waiting)
{
    feed->item = waiting == feed->waiting ? feed->items : feed->item + feed->batch->count;
    feed->batch = waiting->batch;
}

/* Awaits everything, and has rules select. */
static bool feed_settle(struct feed *feed)
{
    feed_close(feed, &feed->group);
    (void)feed_drain(feed);
    while (feed->rules != NULL) {
        rule_select(&feed->rules, feed, feed->status == ADTOPK_OK);
    }
    return feed->status == ADTOPK_OK;
}

struct feed *feed_create(void)
{
    return calloc(1, sizeof(struct feed));
}

void feed_destroy(struct feed *feed)
{
    free(feed);
}

struct feed *feed_begin(struct worker *worker)
{
    struct feed *feed = worker->feed;

    (void)memset(feed, 0, sizeof(*feed));
    feed->worker = worker;
    feed->page = worker->page;
    feed->posted = feed->retired = atomic_load(&worker->page->done);
    return feed;
}

enum adtopk_status feed_end(struct feed *feed, struct error *err)
{
    (void)feed_drain(feed);
    (void)pthread_mutex_lock(&feed->worker->device->mutex);
    feed->worker->copies += feed->copies;
    (void)pthread_mutex_unlock(&feed->worker->device->mutex);
    *err = feed->error;
    return feed->status;
}

static void feed_next(struct feed *feed, unsigned at)
{
    feed->batch->result[at] = (struct engine_result){.status = ADTOPK_OK};
    if (engine_leaves_out(feed->batch, at) || feed_is_lost(feed, &feed->batch->order[at])) {
        return;
    }
    if (order_is_here(&feed->batch->order[at])) {
        feed_here(feed, at);
    } else {
        feed_order(feed, at);
    }
}

/* Looks at what orders have selected. If it is no selection, the worker's memory is spoilt. */
static void feed_check(struct feed *feed)
{
    const struct engine_batch *batch = feed->batch;

    for (unsigned i = 0; i < batch->count && feed->status == ADTOPK_OK; i++) {
        if (feed->item[i].order != NULL &&
            !order_has_selected(batch->memory, feed->item[i].order, feed->item[i].result)) {
            feed->status = error_set(&feed->error, ADTOPK_ERR_SYSTEM,
                "it selected elements that tensor number %u does not have", batch->order[i].tensor);
        }
        feed->item[i].order = NULL;
    }
}

/* Carries out the wave-th order of each tensor of the batch at hand. False: there are none. */
static bool feed_wave_of_batch(struct feed *feed, unsigned wave)
{
    const struct engine_batch *batch = feed->batch;
    unsigned before = 0;
    bool any = false;

    for (unsigned i = 0; i < batch->count && feed->status == ADTOPK_OK; i++) {
        before = i > 0 && batch->order[i].tensor == batch->order[i - 1].tensor ? before + 1 : 0;
        if (before == wave && feed_has(feed, i)) {
            feed_next(feed, i);
            any = true;
        }
    }
    return any;
}

/* The same of all batches. The orders may run in any order. False: there are none, or the worker is
 * to be ended. */
static bool feed_wave(struct feed *feed, unsigned wave)
{
    bool any = false;

    for (const struct engine_wait *at = feed->waiting; at != NULL; at = at->next) {
        feed_turn_to(feed, at);
        any = feed_wave_of_batch(feed, wave) || any;
    }
    if (!feed_settle(feed)) {
        return false;
    }
    for (const struct engine_wait *at = feed->waiting; at != NULL; at = at->next) {
        feed_turn_to(feed, at);
        feed_check(feed);
    }
    return feed->status == ADTOPK_OK && any;
}

/* No memory here: the orders of the batch at hand say so. */
static void feed_nothing(const struct feed *feed)
{
    for (unsigned i = 0; i < feed->batch->count; i++) {
        if (feed_has(feed, i)) {
            feed->batch->result[i] = (struct engine_result){.status = ADTOPK_ERR_MEMORY};
        }
    }
}

/* Calls `say` for each batch, when all are done. */
static void feed_say(struct feed *feed, void (*say)(const struct feed *feed))
{
    for (const struct engine_wait *at = feed->waiting; at != NULL; at = at->next) {
        feed->batch = at->batch;
        say(feed);
    }
}

/* Whether some order of the batch found no memory. Alone it may have enough. */
static bool feed_lacks(struct feed *feed, struct engine_batch *batch)
{
    bool lacks = false;

    feed->batch = batch;
    for (unsigned i = 0; i < batch->count && !lacks; i++) {
        lacks = feed_has(feed, i) && batch->result[i].status != ADTOPK_OK;
    }
    return lacks;
}

static void feed_all(struct feed *feed)
{
    feed->items = calloc(companions_of(feed->waiting).orders + 1, sizeof(*feed->items));
    if (feed->items == NULL || !feed_note_loss(feed, feed->first)) {
        free(feed->items);
        feed_say(feed, feed_nothing);
        return;
    }
    for (unsigned wave = 0; feed_wave(feed, wave); wave++) {
    }
    free(feed->items);
}

static enum adtopk_status feed_together(
    struct worker *worker, const struct engine_wait *waiting, bool again, struct error *err)
{
    struct feed *feed = feed_begin(worker);

    feed->waiting = waiting;
    feed->batch = waiting->batch;
    feed->shard = waiting->shard;
    feed->again = again;
    feed->first = feed_home(feed, feed->batch->memory->job);
    feed_all(feed);
    return feed_end(feed, err);
}

enum adtopk_status feed_batches(
    struct worker *worker, const struct engine_wait *waiting, struct error *err)
{
    enum adtopk_status status = feed_together(worker, waiting, false, err);

    for (const struct engine_wait *at = waiting; status == ADTOPK_OK && at != NULL; at = at->next) {
        const struct engine_wait alone = {.batch = at->batch, .shard = at->shard};

        if (feed_lacks(worker->feed, at->batch)) {
            status = feed_together(worker, &alone, true, err);
        }
    }
    /* Not before the last: if a worker dies on the way all are fed again, and say nothing. */
    if (status == ADTOPK_OK) {
        worker->feed->waiting = waiting;
        feed_say(worker->feed, feed_tell_losses);
    }
    return status;
}
