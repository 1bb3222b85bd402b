/*
 * Streams that wait for updates. Behind each wait the stream copies to host memory what a kernel
 * would read there: the update, and the word that says whether it may be applied.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <adtopk/stream.h>

#include "tests/integration/trainer_device.h"

#define STREAM_PAGE 4096u

static struct trainer_found *stream_memory(const struct driver *driver, uint64_t bytes)
{
    const uint64_t size =
        (sizeof(struct trainer_found) + bytes + STREAM_PAGE - 1) / STREAM_PAGE * STREAM_PAGE;
    struct trainer_found *found = aligned_alloc(STREAM_PAGE, size);

    if (found == NULL ||
        driver->cuMemHostRegister_v2(found, size, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS) {
        free(found);
        return NULL;
    }
    memset(found, 0, size);
    return driver->cuMemAlloc_v2(&found->staged, sizeof found->word) == CUDA_SUCCESS ? found : NULL;
}

bool trainer_stream_commit(struct trainer *trainer, struct trainer_tensor *tensor)
{
    struct trainer_device *device = trainer->device;

    if (!device->streams) {
        return true;
    }
    tensor->found = stream_memory(&device->driver, tensor->numel * sizeof(float));
    if (device->found == NULL) {
        device->found = stream_memory(&device->driver, 0);
    }
    return tensor->found != NULL && device->found != NULL;
}

/* Copies the word when the stream has got so far. The word is in host memory, and a copy from there
 * to host memory would wait for the stream: it makes a detour by the device. */
static bool stream_copy_word(const struct trainer_device *device, struct trainer_found *found)
{
    const struct driver *driver = &device->driver;

    return driver->cuMemcpyDtoDAsync_v2(
               found->staged, found->at, sizeof found->word, device->stream) == CUDA_SUCCESS &&
           driver->cuMemcpyDtoHAsync_v2(
               &found->word, found->staged, sizeof found->word, device->stream) == CUDA_SUCCESS;
}

/* Copies the word, and a tensor's update, when the stream has got so far. */
static enum adtopk_status stream_copy(struct trainer *trainer, struct trainer_found *found,
    const struct adtopk_verdict *verdict, const void *update, uint64_t bytes)
{
    const struct trainer_device *device = trainer->device;
    const struct driver *driver = &device->driver;

    found->word = ~verdict->right;
    found->right = verdict->right;
    found->at = (CUdeviceptr)(uintptr_t)verdict->word;
    if (!stream_copy_word(device, found) ||
        (bytes > 0 && driver->cuMemcpyDtoHAsync_v2(found->update, (CUdeviceptr)(uintptr_t)update,
                          bytes, device->stream) != CUDA_SUCCESS)) {
        (void)snprintf(trainer->problem, sizeof trainer->problem, "no copy behind a wait");
        return ADTOPK_ERR_SYSTEM;
    }
    trainer->device->waits++;
    return ADTOPK_OK;
}

static enum adtopk_status stream_wait_tensor(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];
    struct adtopk_verdict verdict = {.size = sizeof verdict};
    const void *update = adtopk_device_update(trainer->context, t);
    const enum adtopk_status status =
        adtopk_wait_stream(trainer->context, t, trainer->device->stream, &verdict);

    return status == ADTOPK_OK
               ? stream_copy(trainer, tensor->found, &verdict, update,
                     tensor->numel * (tensor->narrow ? sizeof(uint16_t) : sizeof(float)))
               : status;
}

static enum adtopk_status stream_wait_step(struct trainer *trainer)
{
    struct adtopk_verdict verdict = {.size = sizeof verdict};
    const enum adtopk_status status =
        adtopk_step_wait_stream(trainer->context, trainer->device->stream, &verdict);

    return status == ADTOPK_OK ? stream_copy(trainer, trainer->device->found, &verdict, NULL, 0)
                               : status;
}

enum adtopk_status trainer_stream_wait(struct trainer *trainer)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; status == ADTOPK_OK && t < trainer->tensors; t++) {
        if (trainer->tensor[t].pushed && !trainer->tensor[t].awaited) {
            status = stream_wait_tensor(trainer, t);
        }
    }
    return status == ADTOPK_OK ? stream_wait_step(trainer) : status;
}

/* ---- what came of it ---- */

static bool stream_is_right(const struct trainer_found *found)
{
    return found->word == found->right;
}

/* Waits until the stream has done everything: whatever happened, it must not be blocked. */
static bool stream_done(const struct trainer_device *device, int ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    CUresult result = device->driver.cuStreamQuery(device->stream);

    for (int waited = 0; result == CUDA_ERROR_NOT_READY && waited < ms; waited++) {
        (void)nanosleep(&pause, NULL);
        result = device->driver.cuStreamQuery(device->stream);
    }
    return result == CUDA_SUCCESS;
}

static bool stream_stays(const struct trainer_device *device, struct trainer_found *found)
{
    const uint32_t before = found->word;

    return stream_copy_word(device, found) &&
           device->driver.cuStreamSynchronize(device->stream) == CUDA_SUCCESS &&
           found->word == before;
}

/* Whether the words still say what they said behind the waits: they do until the next push. */
static bool stream_words_stay(const struct trainer *trainer)
{
    bool stay = stream_stays(trainer->device, trainer->device->found);

    for (uint32_t t = 0; stay && t < trainer->tensors; t++) {
        stay =
            !trainer->tensor[t].pushed || stream_stays(trainer->device, trainer->tensor[t].found);
    }
    return stay;
}

/* Updates that are older than this process are not on its GPU. Then the step's word says so. */
static bool stream_lacks(const struct trainer *trainer)
{
    return trainer_device_lacks(trainer) && !stream_is_right(trainer->device->found);
}

enum adtopk_status trainer_stream_check(struct trainer *trainer, enum adtopk_status status)
{
    const char *wrong = NULL;

    if (!stream_done(trainer->device, 10000)) {
        wrong = "the stream is blocked";
    } else if ((status == ADTOPK_OK || status == ADTOPK_NONFINITE) &&
               stream_is_right(trainer->device->found) != (status == ADTOPK_OK) &&
               !stream_lacks(trainer)) {
        wrong = "the stream and the host differ in whether the step is accepted";
    } else if ((status == ADTOPK_OK || status == ADTOPK_NONFINITE) && !stream_words_stay(trainer)) {
        wrong = "a word has changed since the stream waited for it";
    }
    for (uint32_t t = 0; wrong == NULL && status == ADTOPK_OK && t < trainer->tensors; t++) {
        const struct trainer_tensor *tensor = &trainer->tensor[t];
        if (tensor->pushed && !stream_is_right(tensor->found) && !stream_lacks(trainer)) {
            wrong = "the step is accepted, and the stream found an update that is not right";
        }
    }
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        trainer->tensor[t].awaited = false;
    }
    trainer->device->waits = trainer->device->found->right = 0;
    if (wrong != NULL) {
        (void)snprintf(trainer->problem, sizeof trainer->problem, "%s", wrong);
        return ADTOPK_ERR_PROTOCOL;
    }
    return status;
}

/* ---- commands ---- */

bool trainer_wait_stream(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const enum adtopk_status status =
        strcmp(word[1], "step") != 0 ? stream_wait_tensor(trainer, t) : stream_wait_step(trainer);

    if (status == ADTOPK_OK && strcmp(word[1], "step") != 0) {
        trainer->tensor[t].awaited = true;
    }
    return trainer_done(trainer, status);
}

/* So many of the waits since the last report found what is right. */
static unsigned stream_count(const struct trainer *trainer)
{
    const struct trainer_found *step = trainer->device->found;
    unsigned right = 0;

    for (uint32_t t = 0; t < trainer->tensors; t++) {
        const struct trainer_found *found = trainer->tensor[t].found;
        right += trainer->tensor[t].awaited && stream_is_right(found);
    }
    return right + (step->right != 0 && stream_is_right(step));
}

bool trainer_streamed(struct trainer *trainer, char **word)
{
    if (!stream_done(trainer->device, atoi(word[1]))) {
        return printf("ok pending\n") > 0;
    }
    return printf("ok %u of %u\n", stream_count(trainer), trainer->device->waits) > 0;
}
