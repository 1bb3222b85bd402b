/*
 * The thread that keeps one worker going.
 *
 * Happy path: the thread maps the parts that the loop has opened, and starts a worker for the first
 * of them. It feeds batches in their order, several at once if they go together (companions.h). It
 * unmaps parts that are dropped and gives them back. When none is left, the worker ends.
 *
 * Failures: whatever goes wrong with a worker, it is ended, and the next one gets all parts and the
 * batch anew. Parts may have lost their content with it. Then all parts of that job there begin
 * anew as zeros, and results say so. After DEVICE_ATTEMPTS workers in a row that have finished
 * nothing, the memory counts as lost. The feeder then waits until the loop wants something else of
 * it.
 */
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/companions.h"
#include "daemon/device/feed.h"
#include "daemon/device/process.h"
#include "daemon/device/state.h"
#include "daemon/engine/shards.h"

/* ------------------------------------------------------------------ parts */

/* Takes a part that was dropped out of the list; NULL: there is none. */
static struct part *feeder_take_dropped(struct worker *worker)
{
    struct part **at = &worker->parts, *part;

    (void)pthread_mutex_lock(&worker->device->mutex);
    while (*at != NULL && !(*at)->dropped) {
        at = &(*at)->next;
    }
    part = *at;
    if (part != NULL) {
        *at = part->next;
    }
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return part;
}

static bool feeder_arena_is_taken(const struct worker *worker, uint32_t arena)
{
    const struct part *part = worker->parts;

    while (part != NULL && !(part->mapped && part->arena == arena)) {
        part = part->next;
    }
    return part != NULL;
}

/* A part that is not mapped, with a number for it; NULL: there is none. */
static struct part *feeder_find_unmapped(struct worker *worker)
{
    struct part *part;

    (void)pthread_mutex_lock(&worker->device->mutex);
    part = worker->parts;
    while (part != NULL && (part->mapped || part->dropped || part->waits)) {
        part = part->next;
    }
    if (part != NULL) {
        part->arena = 0;
        while (feeder_arena_is_taken(worker, part->arena)) {
            part->arena++;
        }
        assert(part->arena < PAGE_ARENAS); /* device_open_part() counts them */
    }
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return part;
}

/* Those that wait for a job need no worker. */
static bool feeder_has_parts(const struct worker *worker)
{
    const struct part *part;

    (void)pthread_mutex_lock(&worker->device->mutex);
    part = worker->parts;
    while (part != NULL && part->waits) {
        part = part->next;
    }
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return part != NULL;
}

/* A part that has lost its content; NULL: there is none. */
static struct part *feeder_find_gone(struct worker *worker)
{
    struct part *part = worker->parts;

    while (part != NULL && (part->dropped || !part->gone)) {
        part = part->next;
    }
    return part;
}

/* The next daemon must not have the job's memory until results have told its loss. To be noted
 * before anything else of it goes. */
static void feeder_note_untold(struct worker *worker, uint64_t job)
{
    struct part *first = worker_part(worker, job, 0);

    if (first != NULL) {
        first->untold = true;
        left_vouch(worker->device, first);
    }
}

/* All parts of the job's stores there begin as zeros: residuals, velocities and their tables belong
 * together. */
static void feeder_empty(struct worker *worker, uint64_t job)
{
    feeder_note_untold(worker, job);
    for (struct part *part = worker->parts; part != NULL; part = part->next) {
        if (part->dropped || part->of != NULL || part->job != job) {
            continue;
        }
        if (part->mapped) {
            process_unmap(worker, part);
        }
        part->used = false; /* it is cleared, and gets its mark, when the loss has been noted */
        part->untold = part->number == 0;
        if (part->gone || part->untold) {
            left_vouch(worker->device, part);
        }
        part->gone = false;
        part->anew = part->anew || part->number == 0;
    }
}

/* Notes what the last worker has taken along. */
static void feeder_note_losses(struct worker *worker)
{
    struct part *gone;
    unsigned jobs = 0;

    (void)pthread_mutex_lock(&worker->device->mutex);
    while ((gone = feeder_find_gone(worker)) != NULL) {
        feeder_empty(worker, gone->job);
        jobs++;
    }
    worker->losses += jobs > 0;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    if (jobs > 0) {
        device_log(worker, true,
            "found that the device's memory had lost its content: residuals of %u jobs there begin "
            "anew, and their ledgers will declare what is lost",
            jobs);
    }
}

static enum adtopk_status feeder_map_all(struct worker *worker, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    struct part *part;

    while (status == ADTOPK_OK && (part = feeder_find_unmapped(worker)) != NULL) {
        status = process_map(worker, part, err);
    }
    return status;
}

/* Brings the worker up to date with the parts. An error: it is to be ended. */
static enum adtopk_status feeder_tend(struct worker *worker, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    struct part *part;

    while ((part = feeder_take_dropped(worker)) != NULL) {
        if (part->mapped) {
            process_unmap(worker, part);
        }
        left_forget(worker->device, part);
        part_free(worker->device, part);
    }
    if (!feeder_has_parts(worker)) {
        if (worker->pid != 0) {
            process_end(worker, false);
            device_log(worker, false, "has ended: its user has no job left there");
        }
        return ADTOPK_OK;
    }
    if (worker->failures == DEVICE_ATTEMPTS - 1) {
        status = left_replace(worker, err);
    }
    if (status == ADTOPK_OK && worker->pid == 0) {
        status = process_start(worker, err);
    }
    if (status == ADTOPK_OK) {
        status = feeder_map_all(worker, err);
    }
    feeder_note_losses(worker);
    return status == ADTOPK_OK ? feeder_map_all(worker, err) : status;
}

/* ------------------------------------------------------------------ batches */

/* Takes the next operation, or the next batches; NULL: there is nothing. */
static struct engine_wait *feeder_take(struct worker *worker)
{
    struct engine_wait *taken;

    (void)pthread_mutex_lock(&worker->device->mutex);
    taken = companions_take(&worker->queue);
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return taken;
}

/* What became of the worker's part of an operation. The first error counts, and the other devices
 * need not go on. */
static void feeder_note(struct worker *worker, struct cargo *cargo, const struct error *err)
{
    (void)pthread_mutex_lock(&worker->device->mutex);
    if (err->code != ADTOPK_OK && cargo->error.code == ADTOPK_OK) {
        cargo->error = *err;
        atomic_store(&cargo->aborted, true);
    }
    worker->carried += err->code == ADTOPK_OK;
    (void)pthread_mutex_unlock(&worker->device->mutex);
}

/* The orders of a batch that nobody carries out fail. */
static void feeder_fail_orders(const struct engine_wait *taken)
{
    for (unsigned i = 0; i < taken->batch->count; i++) {
        if (shards_of(taken->batch->memory, taken->batch->order[i].tensor) == taken->shard) {
            taken->batch->result[i] = (struct engine_result){.status = ADTOPK_ERR_MEMORY};
        }
    }
}

/* Batches or an operation that nobody carries out: their job is about to end. */
static void feeder_give_up(
    struct worker *worker, struct engine_wait *taken, const struct error *err)
{
    for (struct engine_wait *next; taken != NULL; taken = next) {
        next = taken->next;
        if (taken->batch != NULL) {
            feeder_fail_orders(taken);
        } else {
            feeder_note(worker, taken->cargo, err);
        }
        device_tell(worker->device, taken, 0);
    }
}

/* Whether an earlier part of the list is of the same job. */
static bool feeder_is_repeated(const struct worker *worker, const struct part *part)
{
    const struct part *earlier = worker->parts;

    while (earlier != part && (earlier->dropped || earlier->job != part->job)) {
        earlier = earlier->next;
    }
    return earlier != part;
}

/* All jobs with parts here have lost their memory, and what waits is given up. */
static void feeder_lose(struct worker *worker, struct engine_wait *taken, const struct error *err)
{
    (void)pthread_mutex_lock(&worker->device->mutex);
    for (struct part *part = worker->parts; part != NULL; part = part->next) {
        part->lost = !part->dropped && !part->waits && !feeder_is_repeated(worker, part);
    }
    worker->lost = true;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    worker->device->config.wake(worker->device->config.context);
    if (taken != NULL) {
        feeder_give_up(worker, taken, err);
    }
    while ((taken = feeder_take(worker)) != NULL) {
        feeder_give_up(worker, taken, err);
    }
    worker->failures = 0;
}

/* Ends a worker. True: another one may have more luck. */
static bool feeder_failed(struct worker *worker, struct engine_wait *taken, const struct error *err)
{
    const bool again = ++worker->failures < DEVICE_ATTEMPTS;

    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->last = *err;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    process_end(worker, true);
    device_log(worker, true, "failed: %.300s%s", err->text, again ? ". It is started again" : "");
    if (!again) {
        feeder_lose(worker, taken, err);
    }
    return again;
}

/* Each of the batches has a share of the time that they took together. */
static void feeder_succeeded(struct worker *worker, struct engine_wait *taken, uint64_t took_us)
{
    const struct companions all = companions_of(taken);

    worker->failures = 0;
    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->batches += all.batches;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    for (struct engine_wait *next; taken != NULL; taken = next) {
        next = taken->next;
        device_tell(worker->device, taken, 1 + companions_share(&all, taken, took_us));
    }
}

/* Keeps the worker up to date, with as many processes as it takes. */
static void feeder_keep(struct worker *worker)
{
    enum adtopk_status status;
    struct error err;

    do {
        status = feeder_tend(worker, &err);
    } while (
        status != ADTOPK_OK && status != ADTOPK_ERR_STATE && feeder_failed(worker, NULL, &err));
}

/* Feeds batches, to as many workers as it takes. */
static void feeder_feed(struct worker *worker, struct engine_wait *taken)
{
    struct error err;
    enum adtopk_status status;
    uint64_t began;

    do {
        status = feeder_tend(worker, &err);
        began = page_now_us();
        if (status == ADTOPK_OK) {
            status = feed_batches(worker, taken, &err);
        }
    } while (
        status != ADTOPK_OK && status != ADTOPK_ERR_STATE && feeder_failed(worker, taken, &err));
    if (status == ADTOPK_OK) {
        feeder_succeeded(worker, taken, page_now_us() - began);
    }
}

/* Whether the job still has its first part here. */
static bool feeder_has_job(struct worker *worker, uint64_t job)
{
    bool has;

    (void)pthread_mutex_lock(&worker->device->mutex);
    has = worker_part(worker, job, 0) != NULL;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return has;
}

/* Has one operation made. It is not begun again, because other nodes have a part in it. */
static void feeder_carry(struct worker *worker, struct engine_wait *taken)
{
    struct error err, said;
    enum adtopk_status status = feeder_tend(worker, &err);

    if (status == ADTOPK_OK &&
        (atomic_load(&taken->cargo->aborted) || !feeder_has_job(worker, taken->cargo->job))) {
        (void)error_set(&said, ADTOPK_ERR_STATE, "it was aborted, or its job has ended");
        feeder_give_up(worker, taken, &said);
        return;
    }
    if (status == ADTOPK_OK) {
        status = feed_cargo(worker, taken->cargo, taken->shard, &said, &err);
    }
    if (status == ADTOPK_OK) {
        feeder_note(worker, taken->cargo, &said);
        worker->failures = 0;
        device_tell(worker->device, taken, 0);
    } else if (status != ADTOPK_ERR_STATE && feeder_failed(worker, taken, &err)) {
        feeder_give_up(worker, taken, &err);
    }
}

/* ------------------------------------------------------------------ the thread */

/* Whether the loop has called since the feeder last looked. */
static bool feeder_is_called(struct worker *worker)
{
    return atomic_load(&worker->calls) != worker->heard;
}

/* Until the loop wants something, or the worker says something. */
static void feeder_sleep(struct worker *worker)
{
    struct pollfd wait[2] = {
        {.fd = worker->wake, .events = POLLIN}, {.fd = worker->socket, .events = POLLIN}};
    uint64_t wakes;
    struct error err;

    atomic_store(&worker->asleep, 1);
    if (!feeder_is_called(worker)) {
        (void)poll(wait, worker->socket >= 0 ? 2 : 1, -1);
    }
    atomic_store(&worker->asleep, 0);
    if (wait[0].revents != 0) {
        (void)!read(worker->wake, &wakes, sizeof(wakes));
    }
    if (worker->socket >= 0 && wait[1].revents != 0 &&
        process_listen(worker, 0, &err) != ADTOPK_OK) {
        (void)feeder_failed(worker, NULL, &err);
    }
}

static void feeder_wait(struct worker *worker)
{
    worker->spin.active_us = 0;
    while (!feeder_is_called(worker)) {
        if (!page_pass_time(&worker->spin)) {
            feeder_sleep(worker);
            return;
        }
    }
}

void *feeder_run(void *argument)
{
    struct worker *worker = argument;
    struct engine_wait *taken;

    (void)pthread_mutex_lock(&worker->device->mutex); /* the loop is done with making it */
    (void)pthread_mutex_unlock(&worker->device->mutex);
    for (;;) {
        /* Before it asks: device_stop() calls when it has set the answer. */
        worker->heard = atomic_load(&worker->calls);
        if (device_stops(worker->device)) {
            break;
        }
        taken = feeder_take(worker);
        if (taken != NULL) {
            (taken->cargo != NULL ? feeder_carry : feeder_feed)(worker, taken);
            continue;
        }
        feeder_keep(worker);
        feeder_wait(worker);
    }
    process_end(worker, false);
    return NULL;
}
