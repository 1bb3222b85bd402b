/*
 * Gradients in a GPU's memory: each is made in host memory and copied there in a stream. Where a
 * library stands in for the driver nothing happens in a stream before somebody looks, so a rank
 * looks at its stream while it waits for a step.
 */
#include <adtopk/stream.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/driver/captures.h"
#include "tests/integration/trainer_device.h"

#define LOOK_MS 1

/* Makes the device's primary context current, as a framework does: that of the first device, if
 * this process does not see the one that is named. */
static CUresult device_begin(struct trainer_device *device, bool own_stream)
{
    const struct driver *driver = &device->driver;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error ignored;
    CUcontext context;
    unsigned count = 0;
    CUresult result = CUDA_ERROR_NO_DEVICE;

    if (driver_list(driver, list, &count, &ignored) == ADTOPK_OK && count > 0) {
        const unsigned at = driver_index(list, count, device->uuid);
        result = driver->cuDevicePrimaryCtxRetain(&context, list[at < count ? at : 0].handle);
    }
    if (result == CUDA_SUCCESS) {
        result = driver->cuCtxSetCurrent(context);
    }
    return result == CUDA_SUCCESS && own_stream
               ? driver->cuStreamCreate(&device->stream, CU_STREAM_NON_BLOCKING)
               : result;
}

bool trainer_device(struct trainer *trainer, char **word)
{
    const bool copies = strncmp(word[2], "copies", 6) == 0;
    struct error err;

    trainer->device = calloc(1, sizeof *trainer->device);
    if (trainer->device == NULL) {
        return trainer_refuse("no memory");
    }
    trainer->device->copies = copies;
    trainer->device->streams = strstr(word[2], "+streams") != NULL;
    trainer->device->listed = strstr(word[2], "+listed") != NULL;
    trainer->device->returns = strstr(word[2], "+returns") != NULL;
    trainer->device->shown =
        trainer->device->streams || trainer->device->listed || strstr(word[2], "+shown") != NULL;
    (void)snprintf(trainer->device->uuid, sizeof trainer->device->uuid, "%s",
        strcmp(word[1], "-") != 0 ? word[1] : "");
    if (strcmp(word[1], "absent") == 0) {
        return printf("ok\n") > 0; /* the library is to find out that there is none */
    }
    if (driver_open(&trainer->device->driver, &err) != ADTOPK_OK) {
        return trainer_refuse(err.text);
    }
    return device_begin(trainer->device, !copies) == CUDA_SUCCESS ? printf("ok\n") > 0
                                                                  : trainer_refuse("no context");
}

bool trainer_silent(struct trainer *trainer, char **word)
{
    (void)word;
    trainer->device->silent = true;
    return printf("ok\n") > 0;
}

bool trainer_capture(struct trainer *trainer, char **word)
{
    const struct driver *driver = &trainer->device->driver;
    const int ms = atoi(word[1]);
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    CUdevice device;
    const CUstream captured =
        driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? captures_open(driver, device) : NULL;

    (void)nanosleep(&pause, NULL);
    return captured != NULL && captures_close(driver, device, captured) == CUDA_SUCCESS
               ? printf("ok\n") > 0
               : trainer_refuse("the capture is spoilt");
}

void trainer_device_describe(const struct trainer *trainer, struct adtopk_tensor_spec *spec)
{
    if (trainer->device != NULL) {
        spec->memory = ADTOPK_CUDA;
        spec->forms |= trainer->device->shown ? ADTOPK_FORM_DEVICE : 0;
        spec->forms |= trainer->device->listed ? ADTOPK_FORM_DEVICE_LIST : 0;
        spec->device = trainer->device->uuid[0] != '\0' ? trainer->device->uuid : NULL;
    }
}

bool trainer_device_commit(struct trainer *trainer, struct trainer_tensor *tensor)
{
    const uint64_t bytes = tensor->numel * gradients_size(tensor->dtype);
    const struct driver *driver;

    if (trainer->device == NULL) {
        return true;
    }
    driver = &trainer->device->driver;
    tensor->made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return tensor->made != NULL && trainer_stream_commit(trainer, tensor) &&
           driver->cuMemHostRegister_v2(tensor->made, bytes, CU_MEMHOSTREGISTER_DEVICEMAP) ==
               CUDA_SUCCESS &&
           (!trainer->device->copies || driver->cuMemAlloc_v2(&tensor->own, bytes) == CUDA_SUCCESS);
}

enum adtopk_status trainer_device_push(
    struct trainer *trainer, struct trainer_tensor *tensor, struct adtopk_push_spec *push)
{
    const struct trainer_device *device = trainer->device;
    const uint64_t bytes = tensor->numel * gradients_size(tensor->dtype);
    const CUdeviceptr there =
        (CUdeviceptr)(uintptr_t)adtopk_gradient(trainer->context, push->tensor);

    (void)device->driver.cuMemcpyHtoDAsync_v2(
        device->copies ? tensor->own : there, tensor->made, bytes, device->stream);
    push->memory = ADTOPK_CUDA;
    push->gradient = device->copies ? (const void *)(uintptr_t)tensor->own : NULL;
    push->stream = device->stream;
    push->lookahead = tensor->ahead;
    return adtopk_push(trainer->context, push);
}

/* Reads device memory into host memory that the driver knows. */
static bool device_read(
    const struct trainer_device *device, void *to, const void *from, uint64_t size)
{
    const struct driver *driver = &device->driver;
    bool done =
        driver->cuMemHostRegister_v2(to, size, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS;

    if (done) {
        done = driver->cuMemcpyDtoHAsync_v2(
                   to, (CUdeviceptr)(uintptr_t)from, size, device->stream) == CUDA_SUCCESS &&
               driver->cuStreamSynchronize(device->stream) == CUDA_SUCCESS;
        (void)driver->cuMemHostUnregister(to);
    }
    return done;
}

bool trainer_device_lacks(const struct trainer *trainer)
{
    return trainer->comes_back && adtopk_step(trainer->context) <= trainer->first_step + 1;
}

bool trainer_device_shows(
    const struct trainer *trainer, uint32_t t, const void *shown, const void *bytes, uint64_t size)
{
    const struct trainer_device *device = trainer->device;
    const struct trainer_tensor *tensor = &trainer->tensor[t];
    void *found = NULL;
    bool same;

    if (device == NULL || !device->shown) {
        return shown == NULL;
    }
    if (shown == NULL && trainer_device_lacks(trainer)) {
        return true;
    }
    if (device->streams && tensor->pushed && memcmp(tensor->found->update, bytes, size) != 0) {
        return false; /* the stream had another one */
    }
    found = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    same = found != NULL && shown != NULL && device_read(device, found, shown, size) &&
           memcmp(found, bytes, size) == 0;
    free(found);
    return same;
}

/* Whether device memory has these bytes. */
static bool device_has(
    const struct trainer_device *device, const void *there, const void *bytes, uint64_t size)
{
    void *found = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
    const bool same =
        found != NULL &&
        (size == 0 || (device_read(device, found, there, size) && memcmp(found, bytes, size) == 0));

    free(found);
    return same;
}

/* Whether the word in front of a list is as the host has it. */
static bool device_counts(
    const struct trainer_device *device, const struct adtopk_device_list *list, uint64_t count)
{
    const uint32_t word = (uint32_t)count;

    return device_has(device, list->count, &word, sizeof word);
}

static bool device_fits(const struct adtopk_device_list *list, const struct adtopk_update *update)
{
    return update->index != NULL && update->count <= list->room;
}

/* Whether the list there is that of the host. */
static bool device_lists(const struct trainer_device *device, const struct adtopk_device_list *list,
    const struct adtopk_update *update)
{
    return device_fits(list, update) && device_counts(device, list, update->count) &&
           device_has(device, list->index, update->index, update->count * sizeof(uint32_t)) &&
           device_has(device, list->value, update->value, update->count * sizeof(float));
}

bool trainer_device_lists(
    const struct trainer *trainer, uint32_t t, const struct adtopk_update *update)
{
    const struct trainer_device *device = trainer->device;
    const bool shown = update->device_dense != NULL || update->device_dense16 != NULL;
    struct adtopk_device_list list = {.size = sizeof list};

    if (device == NULL || !device->listed || !shown) {
        return update->device_index == NULL && update->device_value == NULL;
    }
    if (adtopk_device_list(trainer->context, t, &list) != ADTOPK_OK) {
        return false;
    }
    if (update->device_index == NULL) { /* after a return the list may be there all the same */
        return update->device_value == NULL && (device->returns || !device_fits(&list, update)) &&
               (device_counts(device, &list, ADTOPK_NO_LIST) ||
                   device_lists(device, &list, update));
    }
    trainer->device->lists++;
    return update->device_index == list.index && update->device_value == list.value &&
           device_lists(device, &list, update);
}

/* How many elements are not 0; -1: one is not the residual's, times the scale. */
static long long device_pending(const struct trainer_device *device, const float *there,
    const float *residual, uint64_t numel, float scale)
{
    const uint64_t size = numel * sizeof(float);
    float *found = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    long long count = found != NULL && device_read(device, found, there, size) ? 0 : -1;

    for (uint64_t i = 0; count >= 0 && i < numel; i++) {
        const float expected = scale > 0 ? residual[i] * scale : 0;
        const bool same = memcmp(&found[i], &expected, sizeof expected) == 0;

        count = same ? count + (found[i] > 0 || found[i] < 0 ? 1 : 0) : -1;
    }
    free(found);
    return count;
}

bool trainer_device_pending(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    struct trainer_tensor *tensor = &trainer->tensor[t];
    const float *there = adtopk_device_pending(trainer->context, t);
    struct adtopk_update update = {.size = sizeof update};
    float *residual = malloc((tensor->numel + 1) * sizeof *residual);
    const enum adtopk_status status =
        residual == NULL ? ADTOPK_ERR_MEMORY : adtopk_residual(trainer->context, t, residual);
    long long count = 0;

    if (status == ADTOPK_OK && there != NULL) {
        count =
            device_pending(trainer->device, there, residual, tensor->numel, strtof(word[2], NULL));
    }
    free(residual);
    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    if (there == NULL || count < 0) {
        return there == NULL ? printf("ok none\n") > 0
                             : trainer_refuse("what is there is not the residual");
    }
    if (adtopk_update(trainer->context, t, &update) == ADTOPK_OK) { /* else it was withdrawn */
        tensor->ahead = update.lookahead;
    }
    return printf("ok %g %lld\n", (double)tensor->ahead, count) > 0;
}

bool trainer_device_counts(struct trainer *trainer, char **word)
{
    (void)word;
    return printf("ok %llu\n", trainer->device != NULL ? trainer->device->lists : 0ULL) > 0;
}

enum adtopk_status trainer_step_wait(struct trainer *trainer)
{
    const bool streams = trainer->device != NULL && trainer->device->streams;
    enum adtopk_status status;

    if (trainer->device == NULL) {
        return adtopk_step_wait(trainer->context);
    }
    status = streams ? trainer_stream_wait(trainer) : ADTOPK_OK;
    if (status != ADTOPK_OK) {
        return status;
    }
    while ((status = adtopk_step_wait_for(trainer->context, LOOK_MS)) == ADTOPK_PENDING) {
        if (!trainer->device->silent) {
            (void)trainer->device->driver.cuStreamQuery(trainer->device->stream);
        }
    }
    return streams ? trainer_stream_check(trainer, status) : status;
}

void trainer_device_free(struct trainer *trainer)
{
    if (trainer->device != NULL) {
        free(trainer->device->found);
    }
    free(trainer->device);
    trainer->device = NULL;
}
