/*
 * GPUs as the engine of this node (daemon/device).
 *
 * Happy path: the parts of a job's store that an engine works on get memory on a device. What the
 * core itself reads of them stays here too; parts with residuals alone only keep their addresses,
 * so that whoever reads them here gets SIGSEGV. Batches that are done become events of the core.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/core/inspect.h"
#include "daemon/engine/shards.h"
#include "daemon/loop/loop_state.h"

#define TAKEN_PER_ITERATION 64u

/* A part whose memory is on devices. */
struct loop_part {
    struct loop_part *next;
    uint64_t job;
    unsigned number;
    void *bytes; /* its addresses; NULL: it has memory here, too */
    uint64_t size;
    bool lost; /* the first part: an earlier daemon had the job's memory on devices */
    bool open; /* one with memory here: it is on the devices */
};

/* NULL without an error: the configuration wants none. */
static struct device *loop_device_make(
    const struct config *config, struct loop *loop, struct error *err)
{
    const struct device_config wanted = {
        .memory_limit = config->compute.gpu_memory_limit, .wake = loop_wake, .context = loop};
    struct device *device;
    struct error why;

    err->code = ADTOPK_OK;
    if (config->compute.engine != CONFIG_ENGINE_CUDA) {
        return NULL;
    }
    device = device_create(&wanted, &why);
    if (device == NULL) {
        (void)error_set(err, why.code, "engine \"cuda\": %.300s", why.text);
    }
    return device;
}

void loop_check(const struct config *config, struct faults *faults)
{
    const char *stores = config->compute.store_folder;
    struct error err;
    struct device *device = loop_device_make(config, NULL, &err);

    if (err.code != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    device_destroy(device);
    if (stores[0] == '/' &&
        (access(stores, F_OK) == 0 ||
            strncmp(stores, RUNTIME_FOLDER, strlen(RUNTIME_FOLDER)) != 0) &&
        files_check_folder(stores, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
}

static void loop_describe_nccl(const struct loop *loop)
{
    const char *why;
    const unsigned version = device_nccl_version(loop->gpu.device, &why);

    if (version != 0) {
        log_write(loop->log, LEVEL_INFO, LOG_LIFE, "NCCL %u.%u.%u", version / 10000,
            version / 100 % 100, version % 100);
    } else {
        log_write(loop->log, LEVEL_INFO, LOG_LIFE, "values go by ZeroMQ only: %s", why);
    }
}

enum adtopk_status loop_open_device(struct loop *loop, struct error *err)
{
    struct device_info info;

    loop->gpu.device = loop_device_make(loop->config, loop, err);
    if (loop->gpu.device == NULL) {
        return err->code;
    }
    for (unsigned i = 0; device_info(loop->gpu.device, i, &info); i++) {
        log_write(loop->log, LEVEL_INFO, LOG_LIFE,
            "residuals live on %s (%s): %llu bytes, compute capability %u.%u, driver for CUDA "
            "%d.%d",
            info.device.uuid, info.device.name, (unsigned long long)info.device.memory,
            info.device.major, info.device.minor, device_driver_version(loop->gpu.device) / 1000,
            device_driver_version(loop->gpu.device) % 1000 / 10);
    }
    loop_describe_nccl(loop);
    return ADTOPK_OK;
}

void loop_set_carrier(const struct loop *loop, struct core_config *core)
{
    const char *why;

    if (loop->gpu.device != NULL) {
        core->devices = device_count(loop->gpu.device);
        core->carrier_version = device_nccl_version(loop->gpu.device, &why);
        core->carrier = core->carrier_version != 0 ? &device_carrier : NULL;
        core->carrier_context = loop->gpu.device;
    }
}

void loop_stop_device(struct loop *loop)
{
    if (loop->gpu.device != NULL) {
        device_stop(loop->gpu.device);
    }
}

/* ------------------------------------------------------------------ parts of stores */

static struct loop_part **loop_part_find(struct loop *loop, uint64_t job, unsigned number)
{
    struct loop_part **at = &loop->gpu.parts;

    while (*at != NULL && ((*at)->job != job || (*at)->number != number)) {
        at = &(*at)->next;
    }
    return at;
}

static void loop_part_drop(struct loop_part **at)
{
    struct loop_part *part = *at;

    *at = part->next;
    if (part->bytes != NULL) {
        (void)munmap(part->bytes, part->size);
    }
    free(part);
}

/* Addresses without memory. */
static void *loop_part_make(
    struct loop *loop, uint64_t job, unsigned number, uint64_t size, struct error *err)
{
    struct loop_part *part = calloc(1, sizeof(*part));
    void *bytes = part != NULL ? mmap(NULL, size, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                               : MAP_FAILED;

    if (bytes == MAP_FAILED) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no addresses for a residual store of %llu bytes",
            (unsigned long long)size);
        free(part);
        return NULL;
    }
    *part = (struct loop_part){
        .next = loop->gpu.parts, .job = job, .number = number, .bytes = bytes, .size = size};
    loop->gpu.parts = part;
    return bytes;
}

/* Gives back what a part has on devices. */
static void loop_device_drop_there(struct loop *loop, uint64_t job, unsigned number)
{
    struct loop_part **at = loop_part_find(loop, job, number);

    device_drop_part(loop->gpu.device, job, number);
    loop_leave_no_part(loop, job, number);
    if (*at != NULL) {
        loop_part_drop(at);
    }
}

static void loop_device_drop_store(void *context, uint64_t job, unsigned number)
{
    struct loop *loop = context;

    loop_device_drop_there(loop, job, number);
    loop->gpu.inner.drop_store(loop->gpu.inner.context, job, number); /* its image, perhaps */
}

/* The core itself reads nothing of the part. */
static bool loop_device_owns(unsigned number)
{
    return core_store_like(number) >= CORE_STORE_RESIDUALS;
}

/* Lists that plans keep stay here. */
static bool loop_device_wants(unsigned number)
{
    return core_store_like(number) <= CORE_STORE_RANKS || loop_device_owns(number);
}

/* Each of the job's devices gets its stretch of the part. A stretch without bytes is on none. */
static enum adtopk_status loop_device_open(
    struct loop *loop, const struct loop_part *asked, struct error *err)
{
    const uint64_t job = asked->job;
    const unsigned number = asked->number;
    const struct engine_memory *memory = core_job_arenas(loop->core, job);
    const unsigned like = core_store_like(number);
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned s = 0; status == ADTOPK_OK && (s == 0 || s < memory->shards); s++) {
        struct device_left left;
        const struct device_part part = {.job = job,
            .owner = core_job_key(loop->core, job)->owner,
            .number = number,
            .shard = s,
            .shards = memory->shards,
            .begin = shards_begin(memory, number, s),
            .size = shards_size(memory, number, s, asked->size),
            .residuals = like != CORE_STORE_MAIN,
            .rounded = like >= CORE_STORE_RESIDUALS && like < CORE_STORE_VELOCITIES,
            .lost = asked->lost,
            .store = loop_left_store(loop, job)};

        if (part.size > 0) {
            status = device_open_part(loop->gpu.device, &part, &left, err);
            if (status == ADTOPK_OK && left.descriptor >= 0) {
                loop_leave_part(loop, job, &left);
            }
        }
    }
    return status;
}

/* Opens what a part that has memory here, too, has on the devices. */
static bool loop_device_open_noted(struct loop *loop, struct loop_part *part, struct error *err)
{
    if (!part->open) {
        part->open = loop_device_open(loop, part, err) == ADTOPK_OK;
    }
    return part->open;
}

/* A job has something on devices while its residuals are there. So its first part comes with one
 * that has residuals alone: by then its tensors are spread over devices. With it come the others
 * that were there before. */
static bool loop_device_open_all(struct loop *loop, uint64_t job, struct error *err)
{
    struct loop_part *part = *loop_part_find(loop, job, CORE_STORE_MAIN);
    bool opened = loop_device_open_noted(loop, part, err);

    for (part = loop->gpu.parts; opened && part != NULL; part = part->next) {
        opened = part->job != job || part->bytes != NULL || loop_device_open_noted(loop, part, err);
    }
    return opened;
}

/* Notes a part that has memory here, too. It is on the devices from now on if the first one is. */
static bool loop_device_note(
    struct loop *loop, const struct loop_part *asked, bool existing, struct error *err)
{
    struct loop_part *part = calloc(1, sizeof(*part));
    const struct loop_part *first = *loop_part_find(loop, asked->job, CORE_STORE_MAIN);

    if (part == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a part of a store");
        return false;
    }
    *part = *asked;
    part->next = loop->gpu.parts;
    part->lost = existing && part->number == CORE_STORE_MAIN;
    loop->gpu.parts = part;
    return first == NULL || !first->open || loop_device_open_noted(loop, part, err);
}

/* Makes the part on devices, if it has memory there. */
static bool loop_device_add(
    struct loop *loop, const struct loop_part *part, bool existing, struct error *err)
{
    if (!loop_device_wants(part->number)) {
        return true;
    }
    return loop_device_owns(part->number) ? loop_device_open_all(loop, part->job, err) &&
                                                loop_device_open(loop, part, err) == ADTOPK_OK
                                          : loop_device_note(loop, part, existing, err);
}

static void *loop_device_store(void *context, uint64_t job, unsigned number, uint64_t size,
    bool shown, bool *existing, struct error *err)
{
    struct loop *loop = context;
    const struct core_memory *inner = &loop->gpu.inner;
    const struct loop_part part = {.job = job, .number = number, .size = size};
    void *bytes;

    *existing = false;
    bytes = loop_device_owns(number)
                ? loop_part_make(loop, job, number, size, err)
                : inner->store(inner->context, job, number, size, shown, existing, err);
    if (bytes != NULL && !loop_device_add(loop, &part, *existing, err)) {
        loop_device_drop_there(loop, job, number);
        if (!loop_device_owns(number)) { /* else what is here of this number is not this part */
            inner->drop_store(inner->context, job, number);
        }
        bytes = NULL;
    }
    return bytes;
}

/* ------------------------------------------------------------------ what outlives the daemon */

static void loop_device_open_job(
    void *context, uint64_t job, const struct job_key *key, bool returning)
{
    struct loop *loop = context;

    loop->gpu.inner.open_job(loop->gpu.inner.context, job, key, returning);
    loop_drop_left(loop); /* it may have removed stores of this key */
}

static bool loop_device_has_store(void *context, const struct job_key *key)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    return inner->has_store(inner->context, key);
}

/* Parts on devices have no memory of this number here. */
static void *loop_device_keep(
    void *context, uint64_t job, unsigned number, uint64_t size, bool *existing, struct error *err)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    return inner->store(inner->context, job, number, size, false, existing, err);
}

static void loop_device_drop_keep(void *context, uint64_t job, unsigned number)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    inner->drop_store(inner->context, job, number);
}

/* What has memory here stays noted. */
static void loop_device_leave(void *context, uint64_t job)
{
    struct loop *loop = context;

    loop_leave_no_part(loop, job, HANDLES_ALL);
    for (unsigned number = 0; number < CORE_STORE_PARTS; number++) {
        struct loop_part **at = loop_part_find(loop, job, number);

        device_drop_part(loop->gpu.device, job, number);
        if (*at != NULL && (*at)->bytes != NULL) {
            loop_part_drop(at);
        } else if (*at != NULL) {
            (*at)->open = false;
        }
    }
}

static void loop_device_release_job(void *context, uint64_t job)
{
    struct loop *loop = context;

    for (unsigned number = 0; number < CORE_STORE_PARTS; number++) {
        loop_device_drop_store(loop, job, number);
    }
    loop->gpu.inner.release_job(loop->gpu.inner.context, job);
}

/* ------------------------------------------------------------------ gradients on devices */

static enum adtopk_status loop_gpu_find(void *context, const char *gpu, struct error *err)
{
    const struct loop *loop = context;

    return device_check_gpu(loop->gpu.device, gpu, err);
}

static enum adtopk_status loop_gpu_open(
    void *context, struct local_gpu_arena *asked, struct error *err)
{
    struct loop *loop = context;
    struct device_arena arena = {.job = core_session_job(loop->core, asked->session),
        .owner = core_session_key(loop->core, asked->session)->owner,
        .gpu = asked->gpu,
        .base = asked->base,
        .begin = asked->begin,
        .size = asked->size};
    const enum adtopk_status status = device_open_arena(loop->gpu.device, &arena, err);

    asked->size = arena.size;
    asked->descriptor = arena.descriptor;
    return status;
}

static void loop_gpu_drop(void *context, const void *base)
{
    struct loop *loop = context;

    device_drop_arena(loop->gpu.device, base);
}

void loop_set_gpu(const struct loop *loop, struct local_config *local)
{
    if (loop->gpu.device != NULL) {
        local->gpu_find = loop_gpu_find;
        local->gpu_open = loop_gpu_open;
        local->gpu_drop = loop_gpu_drop;
    }
}

/* The rest of the memory is not the device's concern. */
static const void *loop_device_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    return inner->gradients(inner->context, session, batch, size, err);
}

static void *loop_device_results(
    void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    return inner->results(inner->context, job, batch, size, existing, err);
}

static enum adtopk_status loop_device_reserve_results(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    return inner->reserve_results(inner->context, job, batch, piece, pieces, later, err);
}

static void loop_device_release_session(void *context, session_id session)
{
    const struct core_memory *inner = &((struct loop *)context)->gpu.inner;

    inner->release_session(inner->context, session);
}

static unsigned loop_device_count(void *context, uint64_t job)
{
    const struct loop *loop = context;

    return device_count_for(loop->gpu.device, job);
}

/* The devices keep nothing, and the store stays. */
static void loop_device_leave_job(void *context, uint64_t job)
{
    struct loop *loop = context;

    loop_device_leave(loop, job);
    for (unsigned number = 0; number < CORE_STORE_PARTS; number++) {
        struct loop_part **at = loop_part_find(loop, job, number);

        if (*at != NULL) {
            loop_part_drop(at);
        }
    }
    loop->gpu.inner.leave_job(loop->gpu.inner.context, job);
}

struct core_memory loop_device_memory(struct loop *loop, const struct core_memory *inner)
{
    loop->gpu.inner = *inner;
    if (loop->gpu.device == NULL) {
        return *inner;
    }
    return (struct core_memory){.context = loop,
        .open_job = inner->open_job != NULL ? loop_device_open_job : NULL,
        .has_store = inner->has_store != NULL ? loop_device_has_store : NULL,
        .leave_job = inner->leave_job != NULL ? loop_device_leave_job : NULL,
        .keep = loop_device_keep,
        .drop_keep = loop_device_drop_keep,
        .leave_engine = loop_device_leave,
        .gradients = loop_device_gradients,
        .results = loop_device_results,
        .reserve_results = loop_device_reserve_results,
        .store = loop_device_store,
        .drop_store = loop_device_drop_store,
        .devices = loop_device_count,
        .release_session = loop_device_release_session,
        .release_job = loop_device_release_job};
}

void loop_close_device(struct loop *loop)
{
    while (loop->gpu.parts != NULL) {
        loop_part_drop(&loop->gpu.parts);
    }
    device_destroy(loop->gpu.device);
}

/* ------------------------------------------------------------------ what has happened */

static void loop_device_happened(struct loop *loop, const struct device_event *happened)
{
    struct event event = {.type = EVENT_ENGINE_DONE, .batch = happened->batch};

    switch (happened->type) {
    case DEVICE_DONE: break;
    case DEVICE_CARRIED:
        event = (struct event){.type = EVENT_CARRIED, .cargo = happened->cargo};
        break;
    case DEVICE_LOST:
        if (happened->text[0] != '\0') {
            log_write(loop->log, LEVEL_ERROR, LOG_SESSION, "%s", happened->text);
        }
        event = (struct event){.type = EVENT_ENGINE_LOST, .lost = happened->job};
        break;
    case DEVICE_NOTE: log_write(loop->log, LEVEL_INFO, LOG_SESSION, "%s", happened->text); return;
    case DEVICE_TROUBLE:
        log_write(loop->log, LEVEL_WARNING, LOG_SESSION, "%s", happened->text);
        return;
    }
    (void)loop_raise(loop, &event, NULL);
}

bool loop_poll_device(struct loop *loop)
{
    struct device_event happened;
    unsigned taken = 0;

    while (loop->gpu.device != NULL && taken < TAKEN_PER_ITERATION &&
           device_take(loop->gpu.device, &happened)) {
        loop_device_happened(loop, &happened);
        taken++;
    }
    return taken > 0;
}

/* ------------------------------------------------------------------ what status shows */

bool loop_describe_device(void *context, unsigned index, struct report_device *found)
{
    const struct loop *loop = context;
    struct device_info info;
    const char *why;

    if (loop->gpu.device == NULL || !device_info(loop->gpu.device, index, &info)) {
        return false;
    }
    *found = (struct report_device){.memory = info.device.memory,
        .residuals = info.use.residuals,
        .arenas = info.use.arenas,
        .scratch = info.use.scratch,
        .context = info.context,
        .contexts = info.use.contexts,
        .communicators = info.use.nccl,
        .jobs = info.jobs,
        .major = info.device.major,
        .minor = info.device.minor,
        .driver = device_driver_version(loop->gpu.device),
        .mps = info.device.mps == DRIVER_MPS_UNKNOWN ? -1 : info.device.mps == DRIVER_MPS_ON};
    found->nccl = device_nccl_version(loop->gpu.device, &why);
    (void)snprintf(found->no_nccl, sizeof(found->no_nccl), "%s", why);
    (void)snprintf(found->uuid, sizeof(found->uuid), "%s", info.device.uuid);
    (void)snprintf(found->name, sizeof(found->name), "%s", info.device.name);
    (void)snprintf(found->missing, sizeof(found->missing), "%s", info.missing);
    return true;
}

bool loop_describe_worker(void *context, unsigned index, struct report_worker *found)
{
    const struct loop *loop = context;
    struct device_worker_info info;

    if (loop->gpu.device == NULL || !device_worker_info(loop->gpu.device, index, &info)) {
        return false;
    }
    *found = (struct report_worker){.device = info.device,
        .owner = info.owner,
        .pid = info.pid,
        .batches = info.batches,
        .carried = info.carried,
        .launches = info.launches,
        .copies = info.copies,
        .questions = info.questions,
        .starts = info.starts};
    (void)snprintf(found->trouble, sizeof(found->trouble), "%s", info.last.text);
    return true;
}

bool loop_describe_shard(void *context, uint64_t job, unsigned index, struct report_shard *found)
{
    const struct loop *loop = context;
    const struct engine_memory *memory = core_job_arenas(loop->core, job);
    struct device_info info;
    unsigned gpu, batch, shard;

    if (loop->gpu.device == NULL || memory == NULL || memory->shards == 0 ||
        index >= memory->batches * memory->shards) {
        return false;
    }
    batch = index / memory->shards;
    shard = index % memory->shards;
    if (!device_of_shard(loop->gpu.device, job, shard, &gpu) ||
        !device_info(loop->gpu.device, gpu, &info)) {
        return false;
    }
    *found = (struct report_shard){
        .first = shards_first(memory, batch, shard), .end = memory->shard_end[batch][shard]};
    (void)snprintf(found->uuid, sizeof(found->uuid), "%s", info.device.uuid);
    return true;
}
