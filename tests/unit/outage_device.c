/*
 * What ranks with gradients on a GPU call. A library stands in for the driver, and its calls do not
 * fail. Nothing happens in its streams before somebody looks.
 */
#include <signal.h>
#include <string.h>
#include <time.h>

#include <adtopk/stream.h>

#include "outage_walk.h"
#include "proto/driver.h"

#define TENSORS 2u
#define LOOK_MS 1
#define BYTES (WALK_NUMEL * sizeof(float))

/* As a framework has them, for as long as the process lives. */
static struct driver driver;
static CUstream stream;
static _Alignas(4096) float gradient[4096 / sizeof(float) * ((BYTES + 4095) / 4096)];

static bool device_begin(void)
{
    struct error ignored;
    CUcontext context;

    return stream != NULL ||
           (driver_open(&driver, &ignored) == ADTOPK_OK &&
               driver.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
               driver.cuCtxSetCurrent(context) == CUDA_SUCCESS &&
               driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
               driver.cuMemHostRegister_v2(
                   gradient, sizeof(gradient), CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
}

enum adtopk_status walk_device_check(struct walker *walker)
{
    return device_begin() ? adtopk_check_device(walker->context, NULL) : ADTOPK_ERR_PROTOCOL;
}

enum adtopk_status walk_device_register(struct walker *walker)
{
    static const char *const names[TENSORS] = {"one", "other"};
    enum adtopk_status status = ADTOPK_OK;
    uint32_t number;

    for (unsigned i = 0; i < TENSORS && status == ADTOPK_OK; i++) {
        const struct adtopk_tensor_spec spec = {.size = sizeof(spec),
            .name = names[i],
            .dims = 2,
            .shape = {WALK_ROWS, WALK_COLUMNS},
            .memory = ADTOPK_CUDA,
            .forms = ADTOPK_FORM_LIST | ADTOPK_FORM_DEVICE};

        status = adtopk_register(walker->context, &spec, &number);
    }
    return status;
}

static enum adtopk_status device_push(struct walker *walker, uint32_t tensor)
{
    const struct adtopk_push_spec push = {
        .size = sizeof(push), .tensor = tensor, .memory = ADTOPK_CUDA, .stream = stream};
    const CUdeviceptr there = (CUdeviceptr)(uintptr_t)adtopk_gradient(walker->context, tensor);

    return driver.cuMemcpyHtoDAsync_v2(there, gradient, BYTES, stream) == CUDA_SUCCESS
               ? adtopk_push(walker->context, &push)
               : ADTOPK_ERR_PROTOCOL;
}

/* The stream waits for each update and for the end of the step. */
static enum adtopk_status device_await(struct walker *walker)
{
    struct adtopk_verdict verdict = {.size = sizeof(verdict)};
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; t < TENSORS && status == ADTOPK_OK; t++) {
        status = adtopk_wait_stream(walker->context, t, stream, &verdict);
    }
    return status == ADTOPK_OK ? adtopk_step_wait_stream(walker->context, stream, &verdict)
                               : status;
}

/* Whatever happens to the job, the stream must come to its end. */
static bool device_ends(void)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};

    while (driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); /* not one that fails */
    }
    return driver.cuStreamQuery(stream) == CUDA_SUCCESS;
}

/* Pushes all tensors. In mid-step the first daemon may be killed. */
static enum adtopk_status device_push_all(struct walker *walker, bool kills)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; t < TENSORS && status == ADTOPK_OK; t++) {
        status = device_push(walker, t);
        if (kills && t == 0 && status == ADTOPK_OK) {
            node_exchange(walker->node, SIGKILL);
        }
    }
    return status;
}

static enum adtopk_status device_step(struct walker *walker, bool kills)
{
    enum adtopk_status status;

    for (uint32_t i = 0; i < WALK_NUMEL; i++) {
        gradient[i] = (float)(i * (uint32_t)(walker->rank + 1) % 7);
    }
    status = device_push_all(walker, kills);
    if (status == ADTOPK_OK) {
        status = device_await(walker);
    }
    while (status == ADTOPK_OK || status == ADTOPK_PENDING) {
        (void)driver.cuStreamQuery(stream);
        status = adtopk_step_wait_for(walker->context, LOOK_MS);
        if (status == ADTOPK_OK) {
            break;
        }
        if (status == ADTOPK_PENDING && walk_given_up(walker)) {
            return status; /* the stream goes on when the rank closes its context */
        }
    }
    if (!device_ends()) {
        return ADTOPK_ERR_PROTOCOL;
    }
    return status != ADTOPK_OK || adtopk_device_update(walker->context, 0) != NULL
               ? status
               : ADTOPK_ERR_PROTOCOL;
}

enum adtopk_status walk_device_step(struct walker *walker)
{
    return device_step(walker, false);
}

enum adtopk_status walk_device_killed(struct walker *walker)
{
    return walker->kind == WALK_DEVICE_KILLED ? device_step(walker, walker->rank == 0) : ADTOPK_OK;
}
