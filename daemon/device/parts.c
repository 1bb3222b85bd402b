/* Parts of stores on the devices: how large they are, whether there is room, their memory. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/device/state.h"

/* What workers' contexts have of a device. Without a driver that says it, nobody knows. */
static const char *part_contexts(const struct device *device, unsigned index, char text[32])
{
    const struct device_use use = device_use(device, index, NULL);

    (void)snprintf(text, 32, "%llu", (unsigned long long)use.contexts);
    return device->context[index] != 0 ? text : "an unknown number";
}

static enum adtopk_status part_refused(const struct device *device, unsigned index, uint64_t bytes,
    const char *what, const char *because, struct error *err)
{
    const struct driver_device *gpu = &device->gpu[index];
    const struct device_use use = device_use(device, index, NULL);
    char contexts[32];

    return error_set(err, ADTOPK_ERR_MEMORY,
        "%s (%s) has no %llu bytes for %s: of its %llu bytes jobs of this node have %llu for "
        "residuals and %llu for gradients and updates, and their workers %llu to work and "
        "exchange, %s for contexts and %llu for NCCL%s",
        gpu->uuid, gpu->name, (unsigned long long)bytes, what, (unsigned long long)gpu->memory,
        (unsigned long long)use.residuals, (unsigned long long)use.arenas,
        (unsigned long long)use.scratch, part_contexts(device, index, contexts),
        (unsigned long long)use.nccl, because);
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

/* Refuses memory beyond the user's share. */
static enum adtopk_status part_within_share(const struct device *device, unsigned gpu,
    uint32_t owner, uint64_t size, const char *what, struct error *err)
{
    const struct driver_device *there = &device->gpu[gpu];
    const uint64_t share = there->memory / 100 * device->user_percent;
    const struct device_use use = device_use(device, gpu, &owner);
    const uint64_t has = use.residuals + use.arenas;

    if (owner == 0 || device->user_percent == 0 || (size <= share && has <= share - size)) {
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_MEMORY,
        "user %u has %llu bytes of %s (%s) and asks for %llu more for %s, but one user may have "
        "%llu (user_memory: %u %%)",
        owner, (unsigned long long)has, there->uuid, there->name, (unsigned long long)size, what,
        (unsigned long long)share, device->user_percent);
}

enum adtopk_status part_within_limit(const struct device *device, unsigned gpu, uint32_t owner,
    uint64_t size, const char *what, struct error *err)
{
    const uint64_t limit = device->config.memory_limit;
    char because[ERROR_TEXT_SIZE];
    const struct device_use use = device_use(device, gpu, NULL);
    const uint64_t used = use.residuals + use.arenas + use.scratch;

    if (limit == 0 || (size <= limit && used <= limit - size)) {
        return part_within_share(device, gpu, owner, size, what, err);
    }
    (void)snprintf(because, sizeof(because),
        ", and gpu_memory_limit allows %llu beside contexts and NCCL", (unsigned long long)limit);
    return part_refused(device, gpu, size, what, because, err);
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

/* Slots lie at multiples of their size. */
static uint64_t part_granule(size_t granule)
{
    return granule % POOL_SLOT == 0 ? granule : granule * (POOL_SLOT / PAGE_ALIGNMENT);
}

enum adtopk_status part_step(
    const struct device *device, unsigned gpu, uint64_t *step, struct error *err)
{
    const struct driver_device *there = &device->gpu[gpu];
    const CUmemAllocationProp prop = driver_shared_memory(there);
    size_t granule = 0;
    const enum adtopk_status status = DRIVER_TRY(&device->driver, there, err,
        cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

    *step = part_granule(granule);
    return status;
}

/* The first place that is free in the window. Nothing is at 0, so no slot has the number 0. */
enum adtopk_status part_find_place(
    const struct device *device, const struct worker *worker, struct part *part, struct error *err)
{
    const struct driver_device *gpu = &device->gpu[worker->gpu];
    const struct part *other;
    uint64_t step;

    if (worker_parts(worker) >= PAGE_ARENAS) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "user %u has %u parts of stores and arenas on %s: a user may not have more there at a "
            "time",
            worker->owner, PAGE_ARENAS, gpu->uuid);
    }
    if (part_step(device, worker->gpu, &step, err) != ADTOPK_OK) {
        return err->code;
    }
    part->place = step;
    while ((other = part_at(worker, part->place, part->size)) != NULL) {
        part->place = other->place + other->size;
    }
    return part->place + part->size <= page_window(gpu->memory)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_MEMORY,
                     "the device worker of user %u on %s has no %llu addresses", worker->owner,
                     gpu->uuid, (unsigned long long)part->size);
}

/* How large the part is. */
static enum adtopk_status part_measure(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part, struct error *err)
{
    uint64_t step;
    const enum adtopk_status status = part_step(device, worker->gpu, &step, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    part->extent =
        (struct extent){.begin = asked->begin, .bytes = asked->size, .shards = asked->shards};
    if (asked->residuals) {
        part->extent.blocks = PAGE_BLOCKS * device->gpu[worker->gpu].multiprocessors;
        part->pool = pool_for(asked->size, part->extent.blocks, asked->rounded);
        part->extent.bytes = part->pool.size;
    }
    part->size = (part->extent.bytes + sizeof(part->mark) + step - 1) / step * step;
    return ADTOPK_OK;
}

bool part_fits(const struct device *device, const struct worker *worker, const struct part *part)
{
    const uint64_t window = page_window(device->gpu[worker->gpu].memory);
    struct error ignored;
    uint64_t step;

    return worker_parts(worker) < PAGE_ARENAS &&
           part_step(device, worker->gpu, &step, &ignored) == ADTOPK_OK && part->size > 0 &&
           part->size <= window && part->place <= window - part->size && part->place >= step &&
           part->place % step == 0 && part->size % step == 0 &&
           part_at(worker, part->place, part->size) == NULL;
}

bool part_is_like(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part)
{
    struct part wanted = {.size = 0};
    const struct extent *extent = &wanted.extent, *has = &part->extent;
    struct error ignored;

    if (part_measure(device, worker, asked, &wanted, &ignored) != ADTOPK_OK ||
        wanted.size != part->size || extent->begin != has->begin || extent->bytes != has->bytes ||
        extent->blocks != has->blocks || extent->shards != has->shards) {
        return false;
    }
    part->pool = wanted.pool;
    return true;
}

enum adtopk_status part_create(const struct device *device, unsigned gpu, uint64_t size,
    const char *what, CUmemGenericAllocationHandle *handle, int *descriptor, struct error *err)
{
    const struct driver *driver = &device->driver;
    const struct driver_device *there = &device->gpu[gpu];
    const CUmemAllocationProp prop = driver_shared_memory(there);
    const CUresult result = driver->cuMemCreate(handle, size, &prop, 0);
    enum adtopk_status status;

    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        return part_refused(device, gpu, size, what, ", and other processes have the rest", err);
    }
    status = driver_check(driver, result, "cuMemCreate", there, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    status = DRIVER_TRY(driver, there, err, cuMemExportToShareableHandle, descriptor, *handle,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != ADTOPK_OK) {
        (void)driver->cuMemRelease(*handle);
    }
    return status;
}

/* New memory, and where it will be mapped. */
static enum adtopk_status part_allocate(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part, struct error *err)
{
    enum adtopk_status status = part_measure(device, worker, asked, part, err);

    if (status == ADTOPK_OK) {
        part->mark = page_now_us();
        status =
            part_within_limit(device, worker->gpu, worker->owner, part->size, "residuals", err);
    }
    if (status == ADTOPK_OK) {
        status = part_find_place(device, worker, part, err);
    }
    return status == ADTOPK_OK ? part_create(device, worker->gpu, part->size, "residuals",
                                     &part->handle, &part->descriptor, err)
                               : status;
}

void part_free(struct device *device, struct part *part)
{
    if (part->of != NULL) {
        arena_leave(device, part->of);
    } else {
        (void)close(part->descriptor);
        if (!part->left) {
            (void)device->driver.cuMemRelease(part->handle);
        }
    }
    free(part->emptied);
    free(part);
}

/* A part with new memory. lost: of a part whose memory an earlier daemon left, and which cannot be
 * used. The new memory lacks its mark, so the worker will find that its content is lost. */
static enum adtopk_status part_open(struct device *device, const struct device_part *asked,
    bool lost, struct worker **worker, struct part **part, struct error *err)
{
    struct part *made = calloc(1, sizeof(*made));

    *worker = made != NULL ? device_worker_for(device, asked, err) : NULL;
    if (made == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a part of a store");
    }
    *made = (struct part){.job = asked->job,
        .store = asked->store,
        .number = asked->number,
        .shard = asked->shard,
        .descriptor = -1,
        .used = lost,
        .untold = lost || asked->lost,
        .anew = asked->lost};
    if (*worker == NULL || part_allocate(device, *worker, asked, made, err) != ADTOPK_OK) {
        free(made);
        return err->code;
    }
    if (asked->store != 0 && left_note(device, made, err) != ADTOPK_OK) {
        part_free(device, made); /* it has no note */
        return err->code;
    }
    if (made->untold) {
        left_vouch(device, made);
    }
    made->next = (*worker)->parts;
    (*worker)->parts = made;
    *part = made;
    return ADTOPK_OK;
}

static enum adtopk_status part_open_or_claim(struct device *device, const struct device_part *asked,
    struct device_left *left, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    struct worker *worker;
    bool lost;
    struct part *part = left_claim(device, asked, &worker, &lost);
    const bool claimed = part != NULL;

    if (!claimed) {
        status = part_open(device, asked, lost, &worker, &part, err);
    }
    if (status == ADTOPK_OK) { /* the worker is about to read the gradients of the job */
        status = arena_attach_all(device, worker, asked->job, err);
        if (status != ADTOPK_OK) {
            left_drop(device, part);
        }
        worker_wake(worker);
    }
    if (status == ADTOPK_OK) {
        left->descriptor = claimed ? -1 : part->descriptor;
        left_describe(device, worker, part, left->text);
    }
    return status;
}

enum adtopk_status device_open_part(struct device *device, const struct device_part *part,
    struct device_left *left, struct error *err)
{
    enum adtopk_status status;

    *left = (struct device_left){.store = part->store,
        .owner = part->owner,
        .number = part->number,
        .shard = part->shard,
        .descriptor = -1};
    if (device->probe.missing[0] != '\0') {
        return error_set(err, ADTOPK_ERR_STATE,
            "this build lacks these device kernels, or some of them: %.200s",
            device->probe.missing);
    }
    (void)pthread_mutex_lock(&device->mutex);
    status = part_open_or_claim(device, part, left, err);
    (void)pthread_mutex_unlock(&device->mutex);
    return status;
}

void device_drop_part(struct device *device, uint64_t job, unsigned number)
{
    (void)pthread_mutex_lock(&device->mutex);
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        struct part *part = worker_part(worker, job, number);

        if (part != NULL) {
            left_drop(device, part);
            worker_wake(worker);
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
}
