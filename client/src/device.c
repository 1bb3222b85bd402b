/*
 * Gradients in a GPU's memory.
 *
 * Happy path: registering the first such tensor opens the driver and finds the device. At the
 * commit the daemon sends a descriptor of device memory, which is mapped here: adtopk_gradient()
 * points into it. A push puts a write of the tensor's flag into the program's stream, behind the
 * kernels that write the gradient. The daemon takes the push when the flag is there
 * (proto/local.h). So no call waits for the device, but the commit and adtopk_close(). A wait for
 * an update puts a wait for its word into the stream, which the daemon writes.
 *
 * Failures: no driver, a device that this process does not see, memory that cannot be mapped. Each
 * is refused with the device and the call. A failed call in a push ends the context, because the
 * device's context is then lost, too.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/device_state.h"

/* ---- finding it ---- */

static enum adtopk_status device_refuse(
    adtopk_context *context, const char *tensor, const struct error *err)
{
    return client_refuse(context, err->code, "tensor \"%s\": %.300s", tensor, err->text);
}

/* The index of the device that the calling thread uses. */
static unsigned device_current(
    const struct driver *driver, const struct driver_device *list, unsigned count)
{
    CUdevice current;
    unsigned index = 0;

    if (driver->cuCtxGetDevice(&current) != CUDA_SUCCESS) {
        return count;
    }
    while (index < count && list[index].handle != current) {
        index++;
    }
    return index;
}

static enum adtopk_status device_look_for(
    struct client_device *device, const char *uuid, struct error *err)
{
    struct driver_device list[DRIVER_DEVICES_MAX];
    char names[ERROR_TEXT_SIZE];
    unsigned count, at;

    if (driver_list(&device->driver, list, &count, err) != ADTOPK_OK) {
        return err->code;
    }
    at = uuid != NULL ? driver_index(list, count, uuid)
                      : device_current(&device->driver, list, count);
    if (at < count) {
        device->device = list[at];
        return ADTOPK_OK;
    }
    if (uuid == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "`device` is NULL, and the calling thread has no current CUDA context to take it from");
    }
    driver_names(list, count, names);
    return error_set(err, ADTOPK_ERR_ARGUMENT,
        "this process sees no %.60s (CUDA_VISIBLE_DEVICES may hide it): it sees %.200s", uuid,
        names);
}

/* Opens the driver, the device and its primary context. */
static enum adtopk_status device_begin(
    struct client_device *device, const char *uuid, struct error *err)
{
    enum adtopk_status status = driver_open(&device->driver, err);

    if (status == ADTOPK_OK) {
        status = device_look_for(device, uuid, err);
    } else {
        status = err->code = ADTOPK_ERR_SYSTEM; /* the caller's arguments are right (memory.h) */
    }
    if (status == ADTOPK_OK) {
        status = DRIVER_TRY(&device->driver, &device->device, err, cuDevicePrimaryCtxRetain,
            &device->primary, device->device.handle);
    }
    if (status != ADTOPK_OK) {
        driver_close(&device->driver);
    }
    return status;
}

enum adtopk_status client_device_open(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    struct client_device *device = context->batch.device;
    struct error err;

    if (device != NULL &&
        (spec->device == NULL || strcmp(spec->device, device->device.uuid) == 0)) {
        return ADTOPK_OK;
    }
    if (device != NULL && context->tensors > 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is on %.60s, and the tensors before it are on %s: the gradients of a "
            "rank lie on one device",
            spec->name, spec->device, device->device.uuid);
    }
    client_device_close(context); /* of a tensor that was refused after all */
    device = calloc(1, sizeof *device);
    if (device == NULL) {
        return client_refuse(context, ADTOPK_ERR_MEMORY, "no memory for a device");
    }
    if (device_begin(device, spec->device, &err) != ADTOPK_OK) {
        free(device);
        return device_refuse(context, spec->name, &err);
    }
    context->batch.device = device;
    return ADTOPK_OK;
}

char *client_device_uuid(adtopk_context *context)
{
    return context->batch.device->device.uuid;
}

/* ---- the arena ---- */

bool client_device_enter(struct client_device *device, struct error *err)
{
    CUcontext popped;
    bool done = DEVICE_TRY(device, err, cuCtxPushCurrent_v2, device->primary);

    device->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (done && !DEVICE_TRY(device, err, cuThreadExchangeStreamCaptureMode, &device->mode)) {
        (void)device->driver.cuCtxPopCurrent_v2(&popped);
        done = false;
    }
    return done;
}

void client_device_leave(struct client_device *device)
{
    CUcontext popped;

    (void)device->driver.cuThreadExchangeStreamCaptureMode(&device->mode);
    (void)device->driver.cuCtxPopCurrent_v2(&popped);
}

bool client_device_import(
    struct client_device *device, struct device_arena *arena, int descriptor, struct error *err)
{
    return DEVICE_TRY(device, err, cuMemImportFromShareableHandle, &arena->handle,
        (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

bool client_device_map_window(struct client_device *device, struct device_arena *arena,
    CUmemGenericAllocationHandle handle, struct error *err)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device.handle},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    arena->mapped = (arena->window != 0 || DEVICE_TRY(device, err, cuMemAddressReserve,
                                               &arena->window, arena->size, 0, 0, 0)) &&
                    DEVICE_TRY(device, err, cuMemMap, arena->window, arena->size, 0, handle, 0);
    return arena->mapped &&
           DEVICE_TRY(device, err, cuMemSetAccess, arena->window, arena->size, &access, 1);
}

static bool device_clear(
    struct client_device *device, const struct device_arena *arena, struct error *err)
{
    CUstream stream;
    bool done;

    if (!DEVICE_TRY(device, err, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING)) {
        return false;
    }
    done = DEVICE_TRY(device, err, cuMemsetD8Async, arena->window, 0, arena->size, stream) &&
           DEVICE_TRY(device, err, cuStreamSynchronize, stream);
    (void)device->driver.cuStreamDestroy_v2(stream);
    return done;
}

bool client_device_register(struct client_device *device, struct device_arena *arena, void *flags,
    uint64_t size, struct error *err)
{
    CUdeviceptr flag;

    if (!DEVICE_TRY(device, err, cuMemHostRegister_v2, flags, size,
            CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE)) {
        return false;
    }
    arena->flags = flags;
    if (!DEVICE_TRY(device, err, cuMemHostGetDevicePointer_v2, &flag, flags, 0)) {
        return false;
    }
    if (arena->flag != 0 && flag != arena->flag) { /* the program has addresses of words */
        (void)error_set(err, ADTOPK_ERR_SYSTEM,
            "host memory that was registered again has another address on %s", device->device.uuid);
        return false;
    }
    arena->flag = flag;
    if (arena->words.word != NULL) {
        arena->word = arena->flag + (CUdeviceptr)((uint8_t *)arena->words.word - (uint8_t *)flags);
    }
    return true;
}

/* ---- what the daemon says of it ---- */

static uint32_t device_first(const adtopk_context *context, unsigned batch)
{
    return batch > 0 ? context->batch.end[batch - 1] : 0;
}

/* Whether a table for the arena's tensors lies in its host memory, from the start of a page. */
static bool device_holds(
    const struct client_mapping *host, uint64_t offset, uint64_t entries, size_t size)
{
    return offset % 4096 == 0 && offset <= host->size && entries <= (host->size - offset) / size;
}

bool client_device_read(adtopk_context *context, const struct client_reply *reply, unsigned batch,
    const struct client_mapping *host, struct device_arena *arena)
{
    const Adtopk__LocalArena *told = reply->message->arena;
    const uint64_t tensors = context->batch.end[batch] - device_first(context, batch);
    const uint64_t words = tensors + (batch == 0 ? 1 : 0); /* and the step's */

    if (told->device_size == 0 || reply->descriptors < 2 ||
        !device_holds(host, told->flags, tensors, sizeof(uint32_t)) ||
        (told->words != 0 && /* a daemon of an earlier version has none */
            (told->words < told->flags + tensors * sizeof(uint32_t) ||
                !device_holds(host, told->words, words, sizeof(struct local_word))))) {
        return false;
    }
    arena->size = told->device_size;
    arena->begin = told->device_offset;
    if (told->words != 0) {
        arena->words.word = (struct local_word *)(void *)((uint8_t *)host->bytes + told->words);
        arena->words.count = (uint32_t)words;
    }
    return true;
}

enum adtopk_status client_device_map(adtopk_context *context, const struct client_reply *reply)
{
    const unsigned batch = context->batch.count;
    const struct client_mapping *host = &context->batch.gradients[batch];
    const uint64_t flags = reply->message->arena->flags;
    struct client_device *device = context->batch.device;
    struct device_arena *arena = &device->arena[batch];
    struct error err;
    bool done;

    if (arena->window != 0 || !client_device_read(context, reply, batch, host, arena)) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s shared no memory of %s, or no flags for it", context->place.address,
            device->device.uuid);
    }
    if (!client_device_enter(device, &err)) {
        return client_fail(context, err.code, "%s", err.text);
    }
    done = client_device_import(device, arena, reply->descriptor[1], &err) &&
           client_device_map_window(device, arena, arena->handle, &err) &&
           device_clear(device, arena, &err) &&
           client_device_register(
               device, arena, (uint8_t *)host->bytes + flags, host->size - flags, &err);
    client_device_leave(device);
    return done ? ADTOPK_OK
                : client_fail(context, err.code, "the gradient arena: %.300s", err.text);
}

enum adtopk_status client_device_watch(adtopk_context *context)
{
    struct client_words *words = &context->batch.device->arena[context->batch.count].words;
    struct error err;

    if (words->word == NULL) {
        return ADTOPK_OK;
    }
    return client_watch_add(context, words, &err) == ADTOPK_OK
               ? ADTOPK_OK
               : client_fail(context, err.code, "the gradient arena: %.300s", err.text);
}

void *client_device_memory(const adtopk_context *context, uint64_t offset, uint64_t bytes)
{
    const struct device_arena *arena = &context->batch.device->arena[context->batch.count];

    if (offset < arena->begin || offset - arena->begin > arena->size ||
        bytes > arena->size - (offset - arena->begin)) {
        return NULL;
    }
    return (void *)(uintptr_t)(arena->window + (offset - arena->begin));
}

uint32_t client_device_place(const adtopk_context *context, uint32_t tensor)
{
    return tensor - device_first(context, context->tensor[tensor].batch);
}

/* ---- pushing ---- */

enum adtopk_status client_device_push(
    adtopk_context *context, uint32_t tensor, const struct adtopk_push_spec *push)
{
    const struct client_tensor *pushed = &context->tensor[tensor];
    struct client_device *device = context->batch.device;
    const CUdeviceptr to = (CUdeviceptr)(uintptr_t)pushed->gradient;
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)push->gradient;
    const CUdeviceptr flag =
        device->arena[pushed->batch].flag + client_device_place(context, tensor) * sizeof(uint32_t);
    struct error err;
    bool done;

    if (!client_device_enter(device, &err)) {
        return client_fail(context, err.code, "tensor \"%s\": %.300s", pushed->name, err.text);
    }
    done = (from == 0 || from == to ||
               DEVICE_TRY(
                   device, &err, cuMemcpyDtoDAsync_v2, to, from, pushed->bytes, push->stream)) &&
           DEVICE_TRY(device, &err, cuStreamWriteValue32_v2, push->stream, flag,
               local_flag_of(context->step), CU_STREAM_WRITE_VALUE_DEFAULT);
    client_device_leave(device);
    return done ? ADTOPK_OK
                : client_fail(context, err.code, "tensor \"%s\": %.300s", pushed->name, err.text);
}

/* ---- waiting ---- */

/* Where the word of a tensor, or of the step, is for the device. */
static CUdeviceptr device_word(const adtopk_context *context, uint32_t tensor)
{
    const struct device_arena *arena = context->batch.device->arena;
    uint32_t at;

    if (tensor == CLIENT_STEP) {
        at = arena[0].words.count - 1;
    } else {
        arena += context->tensor[tensor].batch;
        at = client_device_place(context, tensor);
    }
    return arena->word + at * sizeof(struct local_word);
}

enum adtopk_status client_device_wait(
    adtopk_context *context, uint32_t tensor, void *stream, const uint32_t **word)
{
    struct client_device *device = context->batch.device;
    const CUdeviceptr there = device_word(context, tensor);
    struct error err;
    bool done;

    if (!client_device_enter(device, &err)) {
        return client_fail(context, err.code, "a wait in a stream: %.300s", err.text);
    }
    done = DEVICE_TRY(device, &err, cuStreamWaitValue32_v2, stream,
        there + offsetof(struct local_word, over), local_flag_of(context->step),
        CU_STREAM_WAIT_VALUE_GEQ);
    client_device_leave(device);
    *word = (const uint32_t *)(uintptr_t)(there + offsetof(struct local_word, right));
    return done ? ADTOPK_OK
                : client_fail(context, err.code, "a wait in a stream: %.300s", err.text);
}

bool client_device_is_right(const adtopk_context *context, uint32_t tensor, uint64_t step)
{
    const struct client_words *words =
        &context->batch.device->arena[context->tensor[tensor].batch].words;

    return words->word == NULL || /* the daemon is of an earlier version */
           atomic_load(&words->word[client_device_place(context, tensor)].right) ==
               local_flag_of(step);
}

/* ---- the end ---- */

void client_device_drop(struct client_device *device, struct device_arena *arena)
{
    const struct driver *driver = &device->driver;

    if (arena->flags != NULL) {
        (void)driver->cuMemHostUnregister(arena->flags);
    }
    if (arena->mapped) {
        (void)driver->cuMemUnmap(arena->window, arena->size);
    }
    if (arena->window != 0) {
        (void)driver->cuMemAddressFree(arena->window, arena->size);
    }
    if (arena->handle != 0) {
        (void)driver->cuMemRelease(arena->handle);
    }
    *arena = (struct device_arena){.window = 0};
}

void client_device_close(adtopk_context *context)
{
    struct client_device *device = context->batch.device;
    const struct driver *driver;
    struct error ignored;

    if (device == NULL) {
        return;
    }
    driver = &device->driver;
    /* A context that is poisoned gives nothing back: the process is about to end. */
    if (client_device_enter(device, &ignored)) {
        (void)driver->cuCtxSynchronize(); /* streams may still write gradients and flags */
        client_beside_clear(device);
        for (unsigned b = 0; b < CLIENT_MAX_BATCHES; b++) {
            client_device_drop(device, &device->beside[b]);
            client_device_drop(device, &device->arena[b]);
        }
        client_device_leave(device);
    }
    (void)driver->cuDevicePrimaryCtxRelease_v2(device->device.handle);
    driver_close(&device->driver);
    free(device);
    context->batch.device = NULL;
}
