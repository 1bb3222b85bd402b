#include "daemon/device/device.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/device/feed.h"
#include "daemon/device/process.h"
#include "daemon/device/state.h"
#include "daemon/engine/shards.h"
#include "proto/retry.h"

/* ------------------------------------------------------------------ devices */

/* Tries the program on a device. What it lacks on any of them is missing. */
static enum adtopk_status device_try(struct device *device, unsigned gpu, struct error *err)
{
    const struct driver_device *there = &device->gpu[gpu];
    struct device_probe probe = {.nccl = 0};
    enum adtopk_status status;

    if (!there->shares) {
        return error_set(err, ADTOPK_ERR_SYSTEM,
            "the memory of %s (%s) cannot be shared by descriptor%s", there->uuid, there->name,
            there->instance ? ": it is a MIG instance, and this driver shares only whole GPUs"
                            : "");
    }
    status = process_probe(process_program(&device->config), there, &probe, err);
    if (probe.missing[0] == '\0') {
        (void)memcpy(probe.missing, device->probe.missing, sizeof(probe.missing));
    }
    device->context[gpu] = probe.context;
    device->probe = probe;
    return status;
}

static enum adtopk_status device_find(struct device *device, struct error *err)
{
    enum adtopk_status status = driver_open(&device->driver, err);

    if (status == ADTOPK_OK) {
        status = driver_list(&device->driver, device->gpu, &device->gpus, err);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < device->gpus; i++) {
        status = device_try(device, i, err);
    }
    return status;
}

struct device *device_create(const struct device_config *config, struct error *err)
{
    struct device *device = calloc(1, sizeof(*device));

    if (device == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the devices");
        return NULL;
    }
    device->config = *config;
    if (device->config.patience_ms == 0) {
        device->config.patience_ms = DEVICE_PATIENCE_MS;
    }
    queue_init(&device->done);
    device->lines_end = &device->lines;
    if (device_find(device, err) != ADTOPK_OK) {
        driver_close(&device->driver);
        free(device);
        return NULL;
    }
    (void)pthread_mutex_init(&device->mutex, NULL);
    return device;
}

void worker_wake(struct worker *worker)
{
    atomic_fetch_add(&worker->calls, 1);
    if (atomic_load(&worker->asleep) != 0) {
        retry_wake(worker->wake);
    }
}

void device_limit_users(struct device *device, unsigned percent)
{
    (void)pthread_mutex_lock(&device->mutex);
    device->user_percent = percent;
    (void)pthread_mutex_unlock(&device->mutex);
}

void device_stop(struct device *device)
{
    (void)pthread_mutex_lock(&device->mutex);
    device->stopping = true;
    (void)pthread_mutex_unlock(&device->mutex);
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        worker_wake(worker);
    }
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        (void)pthread_join(worker->feeder, NULL);
    }
}

static void device_drop_worker(struct device *device, struct worker *worker)
{
    while (worker->parts != NULL) {
        struct part *part = worker->parts;
        worker->parts = part->next;
        part_free(device, part);
    }
    (void)close(worker->wake);
    feed_destroy(worker->feed);
    free(worker);
}

void device_destroy(struct device *device)
{
    struct device_event ignored;

    if (device == NULL) {
        return;
    }
    while (device->workers != NULL) {
        struct worker *worker = device->workers;
        device->workers = worker->next;
        device_drop_worker(device, worker);
    }
    arena_drop_all(device);
    while (device_take_line(device, &ignored)) {
    }
    (void)pthread_mutex_destroy(&device->mutex);
    driver_close(&device->driver);
    free(device);
}

/* ------------------------------------------------------------------ workers */

static struct worker *worker_create(
    struct device *device, unsigned gpu, uint32_t owner, struct error *err)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    struct feed *feed = feed_create();
    int code;

    if (worker == NULL || feed == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a device worker");
        feed_destroy(feed);
        free(worker);
        return NULL;
    }
    *worker = (struct worker){.device = device,
        .gpu = gpu,
        .owner = owner,
        .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .feed = feed,
        .socket = -1,
        .page_descriptor = -1};
    queue_init(&worker->queue);
    code = worker->wake < 0 ? errno : pthread_create(&worker->feeder, NULL, feeder_run, worker);
    if (code != 0) {
        (void)error_set(
            err, ADTOPK_ERR_SYSTEM, "no thread for a device worker: %s", strerror(code));
        if (worker->wake >= 0) {
            (void)close(worker->wake);
        }
        feed_destroy(feed);
        free(worker);
        return NULL;
    }
    worker->next = device->workers;
    device->workers = worker;
    return worker;
}

struct part *worker_part(const struct worker *worker, uint64_t job, unsigned number)
{
    struct part *part = worker->parts;

    while (part != NULL && (part->dropped || part->job != job || part->number != number)) {
        part = part->next;
    }
    return part;
}

static bool worker_has_shard(const struct worker *worker, uint64_t job, unsigned shard)
{
    const struct part *part = worker->parts;

    while (part != NULL && (part->dropped || part->job != job || part->shard != shard)) {
        part = part->next;
    }
    return part != NULL;
}

/* Whether the device has a shard of the job. */
static bool device_has_job(const struct device *device, unsigned gpu, uint64_t job)
{
    bool has = false;

    for (unsigned s = 0; s < ENGINE_SHARDS; s++) {
        for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
            has = has || (worker->gpu == gpu && worker_has_shard(worker, job, s));
        }
    }
    return has;
}

bool device_has_other_shard(
    const struct device *device, unsigned gpu, const struct device_part *part)
{
    bool has = false;

    for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (unsigned s = 0; s < ENGINE_SHARDS && worker->gpu == gpu; s++) {
            has = has || (s != part->shard && worker_has_shard(worker, part->job, s));
        }
    }
    return has;
}

/* The worker that has parts of the job's shard, or NULL. */
static struct worker *device_worker_of(const struct device *device, uint64_t job, unsigned shard)
{
    struct worker *worker = device->workers;

    while (worker != NULL && !worker_has_shard(worker, job, shard)) {
        worker = worker->next;
    }
    return worker;
}

struct device_use device_use(const struct device *device, unsigned gpu, const uint32_t *owner)
{
    struct device_use use = {.arenas = arena_reserved(device, gpu, owner)};

    for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        const bool counts = worker->gpu == gpu && (owner == NULL || worker->owner == *owner);

        use.scratch += counts ? worker->scratch : 0;
        use.contexts += counts && worker->pid != 0 ? device->context[gpu] : 0;
        use.nccl += counts && worker->page != NULL ? atomic_load(&worker->page->nccl) : 0;
        for (const struct part *part = worker->parts; counts && part != NULL; part = part->next) {
            use.residuals += part->of == NULL ? part->size : 0;
        }
    }
    return use;
}

/* The device with the most memory that no job or worker has, among those without another shard of
 * the job: a job has no more shards than there are devices. Devices with gradients of the job come
 * first. */
static unsigned device_choose(const struct device *device, uint64_t job)
{
    unsigned best = device->gpus;
    uint64_t most = 0;
    bool best_near = false;

    for (unsigned i = 0; i < device->gpus; i++) {
        const struct device_use use = device_use(device, i, NULL);
        const uint64_t reserved = use.residuals + use.arenas + use.scratch;
        const uint64_t left =
            device->gpu[i].memory > reserved ? device->gpu[i].memory - reserved : 0;

        const bool near = arena_is_on(device, i, job);

        if (!device_has_job(device, i, job) &&
            (best == device->gpus || near > best_near || (near == best_near && left > most))) {
            best = i;
            best_near = near;
            most = left;
        }
    }
    assert(best < device->gpus);
    return best;
}

struct worker *device_worker_on(
    struct device *device, unsigned gpu, uint32_t owner, struct error *err)
{
    struct worker *worker = device->workers;

    while (worker != NULL && (worker->gpu != gpu || worker->owner != owner)) {
        worker = worker->next;
    }
    return worker != NULL ? worker : worker_create(device, gpu, owner, err);
}

struct worker *device_worker_for(
    struct device *device, const struct device_part *part, struct error *err)
{
    struct worker *worker = device_worker_of(device, part->job, part->shard);

    return worker != NULL
               ? worker
               : device_worker_on(device, device_choose(device, part->job), part->owner, err);
}

/* ------------------------------------------------------------------ batches */

/* Shards that have orders in the batch, one bit each. The first one takes an empty batch. */
static unsigned device_shards(const struct engine_batch *batch)
{
    unsigned shards = batch->count == 0 ? 1 : 0;

    for (unsigned i = 0; i < batch->count; i++) {
        shards |= 1u << shards_of(batch->memory, batch->order[i].tensor);
    }
    return shards;
}

static void device_submit_shard(
    const struct device *device, struct engine_batch *batch, unsigned shard)
{
    struct worker *worker = device_worker_of(device, batch->memory->job, shard);

    assert(worker != NULL); /* a job has its first part before its first order */
    batch->waiting[shard] = (struct engine_wait){.batch = batch, .shard = shard};
    queue_add(&worker->queue, &batch->waiting[shard]);
    worker_wake(worker);
}

static void device_submit(void *context, struct engine_batch *batch)
{
    struct device *device = context;
    const unsigned shards = device_shards(batch);

    assert(engine_passes_once(batch));
    (void)pthread_mutex_lock(&device->mutex);
    batch->pending = (unsigned)__builtin_popcount(shards);
    batch->took_us = 0;
    for (unsigned s = 0; s < ENGINE_SHARDS; s++) {
        if ((shards >> s & 1) != 0) {
            device_submit_shard(device, batch, s);
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

/* ------------------------------------------------------------------ operations of NCCL */

/* The first part of a job on the device of this number, to which its group belongs; NULL: the job
 * has none any more. */
static struct part *device_first_part(const struct device *device, uint64_t job, unsigned shard)
{
    const struct worker *worker = device_worker_of(device, job, shard);

    return worker != NULL ? worker_part(worker, job, 0) : NULL;
}

static void device_carry_shard(const struct device *device, struct cargo *cargo, unsigned shard)
{
    struct worker *worker = device_worker_of(device, cargo->job, shard);

    assert(worker != NULL); /* as for device_submit() */
    if (cargo->kind != CARGO_NAME) {
        device_first_part(device, cargo->job, shard)->group = cargo->group.number;
    }
    cargo->waiting[shard] = (struct engine_wait){.cargo = cargo, .shard = shard};
    queue_add(&worker->queue, &cargo->waiting[shard]);
    worker_wake(worker);
}

static void device_carry(void *context, struct cargo *cargo)
{
    struct device *device = context;
    const unsigned devices = cargo->kind != CARGO_NAME ? cargo->group.devices : 1;

    (void)pthread_mutex_lock(&device->mutex);
    cargo->pending = devices;
    for (unsigned s = 0; s < devices; s++) {
        device_carry_shard(device, cargo, s);
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

/* With the operation ends its group. */
static void device_give_up(void *context, struct cargo *cargo)
{
    struct device *device = context;

    (void)pthread_mutex_lock(&device->mutex);
    for (unsigned s = 0; s < cargo->group.devices; s++) {
        struct part *part = device_first_part(device, cargo->job, s);

        if (part != NULL && part->group == cargo->group.number) {
            part->group = 0;
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
    atomic_store(&cargo->aborted, true); /* the feeders look at it again and again */
}

/* Whether every device that took part still has the group. */
static bool device_has_group(void *context, uint64_t job, uint64_t group)
{
    struct device *device = context;
    const struct part *part;
    bool has;

    (void)pthread_mutex_lock(&device->mutex);
    part = device_first_part(device, job, 0);
    has = part != NULL && part->group == group;
    for (unsigned s = 1; s < CARGO_DEVICES; s++) {
        part = device_first_part(device, job, s);
        has = has && (part == NULL || part->group == group);
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return has;
}

const struct carrier_ops device_carrier = {.name = "NCCL",
    .on_devices = true,
    .start = device_carry,
    .abort = device_give_up,
    .has = device_has_group};

unsigned device_nccl_version(const struct device *device, const char **why)
{
    *why = device->probe.no_nccl;
    return device->probe.nccl;
}

const struct engine_ops engine_cuda = {
    .name = "cuda", .alignment = POOL_SLOT, .submit = device_submit};

/* Takes a job whose memory a worker has lost. Only the first one's event says why. */
static bool worker_take_loss(struct worker *worker, struct device_event *event)
{
    struct part *part = worker->parts;

    while (part != NULL && (part->dropped || !part->lost)) {
        part = part->next;
    }
    if (part == NULL) {
        return false;
    }
    *event = (struct device_event){.type = DEVICE_LOST, .job = part->job};
    if (worker->lost) {
        (void)snprintf(event->text, sizeof(event->text),
            "the device worker on %s failed %u times in a row, the last time: %.250s",
            worker->device->gpu[worker->gpu].uuid, DEVICE_ATTEMPTS, worker->last.text);
    }
    part->lost = worker->lost = false;
    return true;
}

static bool device_take_loss(struct device *device, struct device_event *event)
{
    struct worker *worker = device->workers;

    while (worker != NULL && !worker_take_loss(worker, event)) {
        worker = worker->next;
    }
    return worker != NULL;
}

static bool device_take_done(struct device *device, struct device_event *event)
{
    const struct engine_wait *done = queue_take(&device->done);

    if (done != NULL) {
        *event = (struct device_event){.type = done->batch != NULL ? DEVICE_DONE : DEVICE_CARRIED,
            .batch = done->batch,
            .cargo = done->cargo};
    }
    return done != NULL;
}

bool device_take(struct device *device, struct device_event *event)
{
    bool any;

    (void)pthread_mutex_lock(&device->mutex);
    any = device_take_line(device, event) || device_take_loss(device, event) ||
          device_take_done(device, event);
    (void)pthread_mutex_unlock(&device->mutex);
    return any;
}

/* ------------------------------------------------------------------ what there is */

unsigned device_count(const struct device *device)
{
    return device->gpus;
}

int device_driver_version(const struct device *device)
{
    return device->driver.version;
}

static bool part_is_first_of_job(const struct part *part)
{
    return !part->dropped && !part->waits && part->number == 0;
}

bool device_info(struct device *device, unsigned index, struct device_info *info)
{
    if (index >= device->gpus) {
        return false;
    }
    (void)pthread_mutex_lock(&device->mutex);
    *info = (struct device_info){.device = device->gpu[index],
        .use = device_use(device, index, NULL),
        .context = device->context[index],
        .missing = device->probe.missing};
    for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (const struct part *part = worker->parts; worker->gpu == index && part != NULL;
             part = part->next) {
            info->jobs += part_is_first_of_job(part);
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return true;
}

bool device_of_shard(struct device *device, uint64_t job, unsigned shard, unsigned *index)
{
    const struct worker *worker;

    (void)pthread_mutex_lock(&device->mutex);
    worker = device_worker_of(device, job, shard);
    *index = worker != NULL ? worker->gpu : 0;
    (void)pthread_mutex_unlock(&device->mutex);
    return worker != NULL;
}

bool device_worker_info(struct device *device, unsigned index, struct device_worker_info *info)
{
    const struct worker *worker;

    (void)pthread_mutex_lock(&device->mutex);
    worker = device->workers;
    for (unsigned i = 0; i < index && worker != NULL; i++) {
        worker = worker->next;
    }
    if (worker != NULL) {
        *info = (struct device_worker_info){.owner = worker->owner,
            .device = worker->gpu,
            .pid = (int)worker->pid,
            .batches = worker->batches,
            .carried = worker->carried,
            .launches = worker->launches,
            .copies = worker->copies,
            .questions = worker->questions,
            .losses = worker->losses,
            .starts = worker->starts,
            .last = worker->last};
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return worker != NULL;
}
