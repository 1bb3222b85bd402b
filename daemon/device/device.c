#include "daemon/device/device.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/device/process.h"
#include "daemon/device/state.h"

/* ------------------------------------------------------------------ queues */

void queue_init(struct queue *queue)
{
    *queue = (struct queue){.first = NULL};
}

void queue_add(struct queue *queue, const struct device_event *event)
{
    struct waiting *waiting = malloc(sizeof(*waiting));

    if (waiting == NULL) {
        abort(); /* the core waits for this batch, and nothing could be told */
    }
    *waiting = (struct waiting){.event = *event};
    if (queue->first == NULL) {
        queue->first = waiting;
    } else {
        queue->last->next = waiting;
    }
    queue->last = waiting;
}

bool queue_take(struct queue *queue, struct device_event *taken)
{
    struct waiting *first = queue->first;

    if (first == NULL) {
        return false;
    }
    queue->first = first->next;
    *taken = first->event;
    free(first);
    return true;
}

bool device_stops(struct device *device)
{
    bool stops;

    (void)pthread_mutex_lock(&device->mutex);
    stops = device->stopping;
    (void)pthread_mutex_unlock(&device->mutex);
    return stops;
}

void device_tell(struct device *device, const struct device_event *event)
{
    (void)pthread_mutex_lock(&device->mutex);
    queue_add(&device->done, event);
    (void)pthread_mutex_unlock(&device->mutex);
    device->config.wake(device->config.context);
}

void device_log(const struct worker *worker, bool trouble, const char *format, ...)
{
    const struct driver_device *gpu = &worker->device->gpu[worker->gpu];
    struct device_event event = {.type = trouble ? DEVICE_TROUBLE : DEVICE_NOTE};
    int size = snprintf(event.text, sizeof(event.text), "the device worker of user %u on %s (%s) ",
        worker->owner, gpu->uuid, gpu->name);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(event.text + size, sizeof(event.text) - (size_t)size, format, args);
    va_end(args);
    device_tell(worker->device, &event);
}

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
    if (device_find(device, err) != ADTOPK_OK) {
        driver_close(&device->driver);
        free(device);
        return NULL;
    }
    (void)pthread_mutex_init(&device->mutex, NULL);
    return device;
}

static void worker_wake(struct worker *worker)
{
    const uint64_t one = 1;

    atomic_fetch_add(&worker->calls, 1);
    if (atomic_load(&worker->asleep) != 0) {
        (void)!write(worker->wake, &one, sizeof(one)); /* full: it is about to wake up */
    }
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
    struct device_event ignored;

    while (queue_take(&worker->queue, &ignored)) {
    }
    while (worker->parts != NULL) {
        struct part *part = worker->parts;
        worker->parts = part->next;
        part_free(device, part);
    }
    (void)close(worker->wake);
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
    while (queue_take(&device->done, &ignored)) {
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
    int code;

    if (worker == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a device worker");
        return NULL;
    }
    *worker = (struct worker){.device = device,
        .gpu = gpu,
        .owner = owner,
        .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
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
        free(worker);
        return NULL;
    }
    worker->next = device->workers;
    device->workers = worker;
    return worker;
}

static struct part *worker_part(const struct worker *worker, uint64_t job, unsigned number)
{
    struct part *part = worker->parts;

    while (part != NULL && (part->dropped || part->job != job || part->number != number)) {
        part = part->next;
    }
    return part;
}

static bool worker_has_job(const struct worker *worker, uint64_t job)
{
    const struct part *part = worker->parts;

    while (part != NULL && (part->dropped || part->job != job)) {
        part = part->next;
    }
    return part != NULL;
}

/* The worker that has parts of the job, or NULL. */
static struct worker *device_worker_of(const struct device *device, uint64_t job)
{
    struct worker *worker = device->workers;

    while (worker != NULL && !worker_has_job(worker, job)) {
        worker = worker->next;
    }
    return worker;
}

static uint64_t device_reserved(const struct device *device, unsigned gpu, unsigned *parts)
{
    uint64_t bytes = 0;

    *parts = 0;
    for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (const struct part *part = worker->parts; worker->gpu == gpu && part != NULL;
             part = part->next) {
            bytes += part->size;
            (*parts)++;
        }
    }
    return bytes;
}

/* The device with the most memory that no job has. */
static unsigned device_choose(const struct device *device)
{
    unsigned best = 0, parts;
    uint64_t most = 0;

    for (unsigned i = 0; i < device->gpus; i++) {
        const uint64_t reserved = device_reserved(device, i, &parts);
        const uint64_t left =
            device->gpu[i].memory > reserved ? device->gpu[i].memory - reserved : 0;

        best = left > most ? i : best;
        most = left > most ? left : most;
    }
    return best;
}

static struct worker *device_worker_for(
    struct device *device, uint64_t job, uint32_t owner, struct error *err)
{
    struct worker *worker = device_worker_of(device, job);
    unsigned gpu;

    if (worker != NULL) {
        return worker;
    }
    gpu = device_choose(device);
    worker = device->workers;
    while (worker != NULL && (worker->gpu != gpu || worker->owner != owner)) {
        worker = worker->next;
    }
    return worker != NULL ? worker : worker_create(device, gpu, owner, err);
}

/* ------------------------------------------------------------------ parts of stores */

static enum adtopk_status part_refused(const struct device *device, const struct worker *worker,
    uint64_t bytes, const char *because, struct error *err)
{
    const struct driver_device *gpu = &device->gpu[worker->gpu];
    unsigned parts;
    const uint64_t reserved = device_reserved(device, worker->gpu, &parts);

    return error_set(err, ADTOPK_ERR_MEMORY,
        "%s (%s) has no %llu bytes for residuals: of its %llu bytes jobs of this node have %llu in "
        "%u parts of stores%s",
        gpu->uuid, gpu->name, (unsigned long long)bytes, (unsigned long long)gpu->memory,
        (unsigned long long)reserved, parts, because);
}

/* Parts of the worker, and those that it has yet to give back. */
static unsigned worker_parts(const struct worker *worker)
{
    unsigned parts = 0;

    for (const struct part *part = worker->parts; part != NULL; part = part->next) {
        parts++;
    }
    return parts;
}

static enum adtopk_status part_afford(
    const struct device *device, const struct worker *worker, uint64_t size, struct error *err)
{
    const uint64_t limit = device->config.memory_limit;
    char because[ERROR_TEXT_SIZE];
    unsigned parts;
    const uint64_t reserved = device_reserved(device, worker->gpu, &parts);

    if (worker_parts(worker) >= PAGE_ARENAS) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "user %u has %u parts of stores on %s: a user may not have more there at a time",
            worker->owner, PAGE_ARENAS, device->gpu[worker->gpu].uuid);
    }
    if (limit == 0 || (size <= limit && reserved <= limit - size)) {
        return ADTOPK_OK;
    }
    (void)snprintf(
        because, sizeof(because), ", and gpu_memory_limit allows %llu", (unsigned long long)limit);
    return part_refused(device, worker, size, because, err);
}

/* A part that has addresses among these; NULL: there is none. */
static const struct part *part_at(const struct worker *worker, uint64_t place, uint64_t size)
{
    const struct part *part = worker->parts;

    while (part != NULL && (part->place >= place + size || place >= part->place + part->size)) {
        part = part->next;
    }
    return part;
}

/* The first place that is free in the window. Nothing is at 0, so no slot has the number 0. */
static enum adtopk_status part_place(
    const struct worker *worker, struct part *part, uint64_t granule, struct error *err)
{
    const struct driver_device *gpu = &worker->device->gpu[worker->gpu];
    const struct part *other;

    part->place = granule;
    while ((other = part_at(worker, part->place, part->size)) != NULL) {
        part->place = other->place + other->size;
    }
    return part->place + part->size <= page_window(gpu->memory)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_MEMORY,
                     "the device worker of user %u on %s has no %llu addresses for residuals",
                     worker->owner, gpu->uuid, (unsigned long long)part->size);
}

/* Slots lie at multiples of their size. */
static uint64_t part_granule(size_t granule)
{
    return granule % POOL_SLOT == 0 ? granule : granule * (POOL_SLOT / PAGE_ALIGNMENT);
}

/* How large the part is, and where it will be mapped. */
static enum adtopk_status part_measure(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part, struct error *err)
{
    const struct driver_device *gpu = &device->gpu[worker->gpu];
    const CUmemAllocationProp prop = driver_shared_memory(gpu);
    size_t granule = 0;
    uint64_t step;
    enum adtopk_status status = DRIVER_TRY(&device->driver, gpu, err, cuMemGetAllocationGranularity,
        &granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (asked->residuals) {
        part->pool = pool_for(asked->size, PAGE_BLOCKS * gpu->multiprocessors);
    }
    step = part_granule(granule);
    part->size = asked->residuals ? pool_size(&part->pool) : asked->size;
    part->size = (part->size + step - 1) / step * step;
    status = part_afford(device, worker, part->size, err);
    return status == ADTOPK_OK ? part_place(worker, part, step, err) : status;
}

static enum adtopk_status part_allocate(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part, struct error *err)
{
    const struct driver *driver = &device->driver;
    const struct driver_device *gpu = &device->gpu[worker->gpu];
    const CUmemAllocationProp prop = driver_shared_memory(gpu);
    CUresult result;
    enum adtopk_status status = part_measure(device, worker, asked, part, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    result = driver->cuMemCreate(&part->handle, part->size, &prop, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        return part_refused(
            device, worker, part->size, ", and the rest is in use by other processes", err);
    }
    status = driver_check(driver, result, "cuMemCreate", gpu, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    status = DRIVER_TRY(driver, gpu, err, cuMemExportToShareableHandle, &part->descriptor,
        part->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != ADTOPK_OK) {
        (void)driver->cuMemRelease(part->handle);
    }
    return status;
}

void part_free(struct device *device, struct part *part)
{
    (void)close(part->descriptor);
    (void)device->driver.cuMemRelease(part->handle);
    free(part);
}

enum adtopk_status device_open_part(
    struct device *device, const struct device_part *part, struct error *err)
{
    struct part *made = calloc(1, sizeof(*made));
    struct worker *worker;
    enum adtopk_status status;

    if (made == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a part of a store");
    }
    *made = (struct part){.job = part->job, .number = part->number, .descriptor = -1};
    (void)pthread_mutex_lock(&device->mutex);
    worker = device->probe.missing[0] == '\0'
                 ? device_worker_for(device, part->job, part->owner, err)
                 : NULL;
    if (device->probe.missing[0] != '\0') {
        status = error_set(err, ADTOPK_ERR_STATE,
            "this build lacks these device kernels, or some of them: %.200s",
            device->probe.missing);
    } else if (worker == NULL) {
        status = err->code;
    } else {
        assert(worker_part(worker, part->job, part->number) == NULL);
        status = part_allocate(device, worker, part, made, err);
    }
    if (status == ADTOPK_OK) {
        made->next = worker->parts;
        worker->parts = made;
        worker_wake(worker);
    } else {
        free(made);
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return status;
}

void device_drop_part(struct device *device, uint64_t job, unsigned number)
{
    struct worker *worker;
    struct part *part;

    (void)pthread_mutex_lock(&device->mutex);
    worker = device_worker_of(device, job);
    part = worker != NULL ? worker_part(worker, job, number) : NULL;
    if (part != NULL) {
        part->dropped = true;
        worker_wake(worker);
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

/* ------------------------------------------------------------------ batches */

static void device_submit(void *context, struct engine_batch *batch)
{
    struct device *device = context;
    struct worker *worker;

    (void)pthread_mutex_lock(&device->mutex);
    worker = device_worker_of(device, batch->memory->job);
    assert(worker != NULL); /* a job has its first part before its first order */
    queue_add(&worker->queue, &(struct device_event){.type = DEVICE_DONE, .batch = batch});
    worker_wake(worker);
    (void)pthread_mutex_unlock(&device->mutex);
}

/* ------------------------------------------------------------------ operations of NCCL */

/* The first part of a job, to which its group belongs; NULL: the job has none any more. */
static struct part *device_first_part(const struct device *device, uint64_t job)
{
    const struct worker *worker = device_worker_of(device, job);

    return worker != NULL ? worker_part(worker, job, 0) : NULL;
}

static void device_carry(void *context, struct cargo *cargo)
{
    struct device *device = context;
    struct worker *worker;

    (void)pthread_mutex_lock(&device->mutex);
    worker = device_worker_of(device, cargo->job);
    assert(worker != NULL); /* as for device_submit() */
    if (cargo->kind != CARGO_NAME) {
        device_first_part(device, cargo->job)->group = cargo->group.number;
    }
    queue_add(&worker->queue, &(struct device_event){.type = DEVICE_CARRIED, .cargo = cargo});
    worker_wake(worker);
    (void)pthread_mutex_unlock(&device->mutex);
}

static void device_give_up(void *context, struct cargo *cargo)
{
    (void)context;
    atomic_store(&cargo->aborted, true); /* the feeder looks at it again and again */
}

static bool device_has_group(void *context, uint64_t job, uint64_t group)
{
    struct device *device = context;
    const struct part *part;
    bool has;

    (void)pthread_mutex_lock(&device->mutex);
    part = device_first_part(device, job);
    has = part != NULL && part->group == group;
    (void)pthread_mutex_unlock(&device->mutex);
    return has;
}

const struct carrier_ops device_carrier = {
    .name = "NCCL", .start = device_carry, .abort = device_give_up, .has = device_has_group};

unsigned device_nccl_version(const struct device *device, const char **why)
{
    *why = device->probe.no_nccl;
    return device->probe.nccl;
}

/* What no kernel does, or nothing launches yet. */
#define DEVICE_LACKS (ENGINE_NO_RULES | ENGINE_NO_BF16)

const struct engine_ops engine_cuda = {
    .name = "cuda", .lacks = DEVICE_LACKS, .alignment = POOL_SLOT, .submit = device_submit};

bool device_take(struct device *device, struct device_event *event)
{
    bool any;

    (void)pthread_mutex_lock(&device->mutex);
    any = queue_take(&device->done, event);
    (void)pthread_mutex_unlock(&device->mutex);
    return any;
}

/* ------------------------------------------------------------------ what there is */

int device_driver_version(const struct device *device)
{
    return device->driver.version;
}

static bool part_is_first_of_job(const struct part *part)
{
    return !part->dropped && part->number == 0;
}

bool device_info(struct device *device, unsigned index, struct device_info *info)
{
    unsigned parts;

    if (index >= device->gpus) {
        return false;
    }
    (void)pthread_mutex_lock(&device->mutex);
    *info = (struct device_info){.device = device->gpu[index],
        .reserved = device_reserved(device, index, &parts),
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
            .starts = worker->starts,
            .last = worker->last};
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return worker != NULL;
}
