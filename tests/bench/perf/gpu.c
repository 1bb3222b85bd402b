#include "tests/bench/perf/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/device/code.h"

#define STAGING (UINT64_C(16) << 20)
#define PIECE (UINT64_C(8) << 20) /* of device memory, at least */
#define ALIGNMENT 256

static const char *const gpu_names[GPU_KERNELS] = {
#define GPU_NAME(name, parameter) [GPU_##name] = #name,
    CUDA_EVERY(GPU_NAME)
#undef GPU_NAME
};

#define GPU_TRY(gpu, call, ...)                                                                    \
    (DRIVER_TRY(&(gpu)->driver, &(gpu)->device, &(gpu)->err, call, __VA_ARGS__) == ADTOPK_OK)

/* ------------------------------------------------------------------ opening */

static bool gpu_is(const struct driver_device *device, unsigned number, const char *which)
{
    char *end = NULL;
    const unsigned long wanted = strtoul(which, &end, 10);

    return strcmp(device->uuid, which) == 0 || (*which != '\0' && *end == '\0' && wanted == number);
}

static bool gpu_choose(struct gpu *gpu, const char *which)
{
    struct driver_device list[DRIVER_DEVICES_MAX];
    unsigned count;

    if (driver_open(&gpu->driver, &gpu->err) != ADTOPK_OK ||
        driver_list(&gpu->driver, list, &count, &gpu->err) != ADTOPK_OK) {
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        if (gpu_is(&list[i], i, which)) {
            gpu->device = list[i];
            (void)snprintf(gpu->name, sizeof(gpu->name), "%s (%s)", list[i].uuid, list[i].name);
            return true;
        }
    }
    (void)error_set(&gpu->err, ADTOPK_ERR_ARGUMENT,
        "--device: there is no GPU \"%.60s\"; this node has %u", which, count);
    return false;
}

enum adtopk_status gpu_find(
    const char *which, struct driver_device *device, char name[GPU_NAME], struct error *err)
{
    struct gpu gpu = {.pieces = 0};

    *err = (struct error){.code = ADTOPK_OK};
    if (gpu_choose(&gpu, which)) {
        *device = gpu.device;
        (void)memcpy(name, gpu.name, sizeof(gpu.name));
    } else {
        *err = gpu.err;
    }
    driver_close(&gpu.driver);
    return err->code;
}

static bool gpu_load(struct gpu *gpu)
{
    CUmodule module;

    if (!device_has_kernels() && getenv("ADTOPK_CUDA_LIBRARY") == NULL) {
        (void)error_set(&gpu->err, ADTOPK_ERR_SYSTEM,
            "this build has no device kernels: it was made without the CUDA toolkit (nvcc)");
        return false;
    }
    if (!GPU_TRY(gpu, cuModuleLoadData, &module, device_kernels)) {
        return false;
    }
    for (unsigned k = 0; k < GPU_KERNELS; k++) {
        if (!GPU_TRY(gpu, cuModuleGetFunction, &gpu->kernel[k], module, gpu_names[k])) {
            return false;
        }
    }
    return true;
}

static bool gpu_stage(struct gpu *gpu)
{
    gpu->staging = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (gpu->staging == MAP_FAILED) {
        gpu->staging = NULL;
        (void)error_set(&gpu->err, ADTOPK_ERR_MEMORY, "no memory for copies to the device");
        return false;
    }
    return GPU_TRY(gpu, cuMemHostRegister_v2, gpu->staging, STAGING, CU_MEMHOSTREGISTER_DEVICEMAP);
}

enum adtopk_status gpu_open(struct gpu *gpu, const char *which, struct error *err)
{
    *gpu = (struct gpu){.pieces = 0};
    if (gpu_choose(gpu, which) &&
        GPU_TRY(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device.handle) &&
        GPU_TRY(gpu, cuCtxSetCurrent, gpu->context) &&
        GPU_TRY(gpu, cuStreamCreate, &gpu->stream, CU_STREAM_NON_BLOCKING) &&
        GPU_TRY(gpu, cuEventCreate, &gpu->begin, 0) && GPU_TRY(gpu, cuEventCreate, &gpu->end, 0) &&
        gpu_load(gpu) && gpu_stage(gpu)) {
        return ADTOPK_OK;
    }
    *err = gpu->err;
    gpu_close(gpu);
    return err->code;
}

void gpu_close(struct gpu *gpu)
{
    if (gpu->begin != NULL) {
        (void)gpu->driver.cuEventDestroy_v2(gpu->begin);
    }
    if (gpu->end != NULL) {
        (void)gpu->driver.cuEventDestroy_v2(gpu->end);
    }
    if (gpu->context != NULL) {
        (void)gpu->driver.cuDevicePrimaryCtxRelease_v2(gpu->device.handle);
    }
    if (gpu->staging != NULL) {
        (void)munmap(gpu->staging, STAGING);
    }
    driver_close(&gpu->driver);
    *gpu = (struct gpu){.pieces = 0};
}

/* ------------------------------------------------------------------ memory */

/* Another piece, full of zeros, of which nothing is taken yet. */
static bool gpu_add_piece(struct gpu *gpu, uint64_t size)
{
    CUdeviceptr *piece = &gpu->memory[gpu->pieces];

    if (gpu->pieces == GPU_PIECES_MAX) {
        (void)error_set(&gpu->err, ADTOPK_ERR_MEMORY, "too many pieces of device memory");
        return false;
    }
    if (!GPU_TRY(gpu, cuMemAlloc_v2, piece, size)) {
        return false;
    }
    gpu->pieces++;
    gpu->next = *piece;
    gpu->left = size;
    return GPU_TRY(gpu, cuMemsetD8Async, *piece, 0, size, gpu->stream);
}

void *gpu_memory(struct gpu *gpu, uint64_t size)
{
    const uint64_t taken = (size / ALIGNMENT + 1) * ALIGNMENT;
    CUdeviceptr here;

    if (taken > gpu->left && !gpu_add_piece(gpu, taken > PIECE ? taken : PIECE)) {
        return NULL;
    }
    here = gpu->next;
    gpu->next += taken;
    gpu->left -= taken;
    return (void *)(uintptr_t)here;
}

void gpu_forget(struct gpu *gpu)
{
    while (gpu->pieces > 0) {
        (void)gpu->driver.cuMemFree_v2(gpu->memory[--gpu->pieces]);
    }
    gpu->left = 0;
}

bool gpu_put(struct gpu *gpu, void *to, const void *from, uint64_t size)
{
    bool ok = true;

    for (uint64_t at = 0; at < size && ok; at += STAGING) {
        const uint64_t piece = size - at < STAGING ? size - at : STAGING;

        memcpy(gpu->staging, (const char *)from + at, piece);
        ok = GPU_TRY(gpu, cuMemcpyHtoDAsync_v2, (CUdeviceptr)(uintptr_t)to + at, gpu->staging,
                 piece, gpu->stream) &&
             GPU_TRY(gpu, cuStreamSynchronize, gpu->stream);
    }
    return ok;
}

bool gpu_get(struct gpu *gpu, void *to, const void *from, uint64_t size)
{
    bool ok = true;

    for (uint64_t at = 0; at < size && ok; at += STAGING) {
        const uint64_t piece = size - at < STAGING ? size - at : STAGING;

        ok = GPU_TRY(gpu, cuMemcpyDtoHAsync_v2, gpu->staging, (CUdeviceptr)(uintptr_t)from + at,
                 piece, gpu->stream) &&
             GPU_TRY(gpu, cuStreamSynchronize, gpu->stream);
        if (ok) {
            memcpy((char *)to + at, gpu->staging, piece);
        }
    }
    return ok;
}

bool gpu_copy(struct gpu *gpu, void *to, const void *from, uint64_t size)
{
    return GPU_TRY(gpu, cuMemcpyDtoDAsync_v2, (CUdeviceptr)(uintptr_t)to,
        (CUdeviceptr)(uintptr_t)from, size, gpu->stream);
}

/* ------------------------------------------------------------------ kernels and time */

bool gpu_run(struct gpu *gpu, enum gpu_kernel kernel, unsigned blocks, const void *parameter)
{
    void *list[] = {(void *)(uintptr_t)parameter};

    return GPU_TRY(gpu, cuLaunchKernel, gpu->kernel[kernel], blocks, 1, 1, GPU_THREADS, 1, 1, 0,
        gpu->stream, list, NULL);
}

bool gpu_start(struct gpu *gpu)
{
    return GPU_TRY(gpu, cuEventRecord, gpu->begin, gpu->stream);
}

bool gpu_stop(struct gpu *gpu, double *us)
{
    float ms = 0;
    const bool ok = GPU_TRY(gpu, cuEventRecord, gpu->end, gpu->stream) &&
                    GPU_TRY(gpu, cuStreamSynchronize, gpu->stream) &&
                    GPU_TRY(gpu, cuEventElapsedTime, &ms, gpu->begin, gpu->end);

    *us = (double)ms * 1e3;
    return ok;
}
