/*
 * Arenas that ranks fill with gradients. adtopkd makes the memory, as that of stores, on the rank's
 * device, and the rank maps it. Every worker of the job maps it too, since each has the residuals
 * of some tensors. Each clears it before it unmaps it, and the memory is given back
 * when the last of them has.
 */
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/device/state.h"

#define ARENA_OF_NO_STORE UINT_MAX /* instead of a part's number and shard */

/* ------------------------------------------------------------------ workers */

/* Whether the worker's device can read the arena. */
static enum adtopk_status arena_reach(const struct device *device, const struct worker *worker,
    const struct arena *arena, struct error *err)
{
    const struct driver_device *gpu = &device->gpu[arena->gpu];
    const struct driver_device *reader = &device->gpu[worker->gpu];
    enum adtopk_status status = ADTOPK_OK;
    int can = 1;

    if (arena->gpu != worker->gpu) {
        status = DRIVER_TRY(
            &device->driver, gpu, err, cuDeviceCanAccessPeer, &can, reader->handle, gpu->handle);
    }
    return status != ADTOPK_OK || can != 0
               ? status
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "residuals of the job are on %s (%s), which cannot access the memory of %s "
                     "(%s), where gradients of its ranks lie",
                     reader->uuid, reader->name, gpu->uuid, gpu->name);
}

/* The worker is to map the arena. */
static enum adtopk_status arena_attach(
    const struct device *device, struct worker *worker, struct arena *arena, struct error *err)
{
    struct part *part;
    enum adtopk_status status = arena_reach(device, worker, arena, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    part = malloc(sizeof(*part));
    if (part == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a gradient arena");
    }
    *part = (struct part){.job = arena->job,
        .number = ARENA_OF_NO_STORE,
        .shard = ARENA_OF_NO_STORE,
        .of = arena,
        .size = arena->size,
        .descriptor = arena->descriptor,
        .used = true}; /* the rank clears it, and may be writing when the worker maps it */
    status = part_find_place(device, worker, part, err);
    if (status != ADTOPK_OK) {
        free(part);
        return status;
    }
    arena->users++;
    part->next = worker->parts;
    worker->parts = part;
    return ADTOPK_OK;
}

enum adtopk_status arena_attach_all(
    const struct device *device, struct worker *worker, uint64_t job, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (struct arena *arena = device->arenas; status == ADTOPK_OK && arena != NULL;
         arena = arena->next) {
        if (arena->job == job && !arena->dropped && arena_of(worker, arena->base) == NULL) {
            status = arena_attach(device, worker, arena, err);
        }
    }
    return status;
}

/* Workers that have parts of the job are to map the arena, too. */
static enum adtopk_status arena_attach_workers(
    const struct device *device, uint64_t job, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (struct worker *worker = device->workers; status == ADTOPK_OK && worker != NULL;
         worker = worker->next) {
        if (worker_part(worker, job, 0) != NULL) {
            status = arena_attach_all(device, worker, job, err);
            worker_wake(worker);
        }
    }
    return status;
}

bool arena_is_on(const struct device *device, unsigned gpu, uint64_t job)
{
    const struct arena *arena = device->arenas;

    while (arena != NULL && (arena->dropped || arena->gpu != gpu || arena->job != job)) {
        arena = arena->next;
    }
    return arena != NULL;
}

unsigned device_count_for(struct device *device, uint64_t job)
{
    unsigned count = 0;

    (void)pthread_mutex_lock(&device->mutex);
    for (unsigned gpu = 0; gpu < device->gpus; gpu++) {
        count += arena_is_on(device, gpu, job);
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return count > 0 ? count : device->gpus;
}

uint64_t arena_reserved(const struct device *device, unsigned gpu, const uint32_t *owner)
{
    uint64_t bytes = 0;

    for (const struct arena *arena = device->arenas; arena != NULL; arena = arena->next) {
        const bool counts = arena->gpu == gpu && (owner == NULL || arena->owner == *owner);

        bytes += counts ? arena->size : 0;
    }
    return bytes;
}

/* ------------------------------------------------------------------ the end */

/* With the mutex. */
static void arena_free(struct device *device, struct arena *arena)
{
    struct arena **at = &device->arenas;

    while (*at != arena) {
        at = &(*at)->next;
    }
    *at = arena->next;
    (void)close(arena->descriptor);
    (void)device->driver.cuMemRelease(arena->handle);
    free(arena);
}

void arena_leave(struct device *device, struct arena *arena)
{
    (void)pthread_mutex_lock(&device->mutex);
    if (--arena->users == 0 && arena->dropped) {
        arena_free(device, arena);
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

static struct arena *arena_find(const struct device *device, const void *base)
{
    struct arena *arena = device->arenas;

    while (arena != NULL && (arena->dropped || arena->base != base)) {
        arena = arena->next;
    }
    return arena;
}

/* Workers unmap it, and the last of them frees it. */
static void arena_drop(struct device *device, struct arena *arena)
{
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (struct part *part = worker->parts; part != NULL; part = part->next) {
            part->dropped |= part->of == arena;
        }
        worker_wake(worker);
    }
    arena->dropped = true;
    if (arena->users == 0) {
        arena_free(device, arena);
    }
}

void device_drop_arena(struct device *device, const void *base)
{
    struct arena *arena;

    (void)pthread_mutex_lock(&device->mutex);
    arena = arena_find(device, base);
    if (arena != NULL) {
        arena_drop(device, arena);
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

void arena_drop_all(struct device *device)
{
    while (device->arenas != NULL) {
        arena_free(device, device->arenas);
    }
}

/* ------------------------------------------------------------------ the beginning */

static enum adtopk_status arena_look_for(
    const struct device *device, const char *uuid, unsigned *index, struct error *err)
{
    char names[ERROR_TEXT_SIZE];

    *index = driver_index(device->gpu, device->gpus, uuid);
    if (*index < device->gpus) {
        return ADTOPK_OK;
    }
    driver_names(device->gpu, device->gpus, names);
    return error_set(
        err, ADTOPK_ERR_ARGUMENT, "adtopkd does not see %s: it has %.250s", uuid, names);
}

enum adtopk_status device_check_gpu(
    const struct device *device, const char *uuid, struct error *err)
{
    unsigned index;

    return arena_look_for(device, uuid, &index, err);
}

static enum adtopk_status arena_make(struct device *device, struct arena *arena, struct error *err)
{
    uint64_t step;
    enum adtopk_status status = part_step(device, arena->gpu, &step, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    arena->size = (arena->size + step - 1) / step * step;
    status = part_within_limit(device, arena->gpu, arena->owner, arena->size, "gradients", err);
    return status == ADTOPK_OK ? part_create(device, arena->gpu, arena->size, "gradients",
                                     &arena->handle, &arena->descriptor, err)
                               : status;
}

/* The job may train already: then its workers map the arena now. */
static enum adtopk_status arena_add(struct device *device, struct arena *arena, struct error *err)
{
    enum adtopk_status status;

    arena->next = device->arenas;
    device->arenas = arena;
    status = arena_attach_workers(device, arena->job, err);
    if (status != ADTOPK_OK) {
        arena_drop(device, arena);
    }
    return status;
}

enum adtopk_status device_open_arena(
    struct device *device, struct device_arena *asked, struct error *err)
{
    struct arena *arena = malloc(sizeof(*arena));
    enum adtopk_status status;

    if (arena == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a gradient arena");
    }
    *arena = (struct arena){.job = asked->job,
        .owner = asked->owner,
        .base = asked->base,
        .begin = asked->begin,
        .size = asked->size};
    (void)pthread_mutex_lock(&device->mutex);
    status = arena_look_for(device, asked->gpu, &arena->gpu, err);
    if (status == ADTOPK_OK) {
        status = arena_make(device, arena, err);
    }
    if (status == ADTOPK_OK) {
        asked->size = arena->size;
        asked->descriptor = arena->descriptor;
        status = arena_add(device, arena, err);
    } else {
        free(arena);
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return status;
}
