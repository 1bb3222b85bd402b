/*
 * launch.h on a GPU, through the driver's calls: the same tests run there, and compare the same
 * bytes.
 *
 * Memory is managed, so that kernels and the host reach it at the same addresses. A driver or a
 * kernel that fails ends the test with its sentence. ADTOPK_TEST_GPU is the number of the GPU.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/code.h"
#include "proto/driver.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/launch.h"

#define ATTACH_GLOBAL 1 /* CU_MEM_ATTACH_GLOBAL: all streams reach it */

/* The kernels' addresses on the host are only names here. */
#define GPU_RUN(name, type)                                                                        \
    void run_##name(const void *parameter)                                                         \
    {                                                                                              \
        (void)parameter;                                                                           \
        abort();                                                                                   \
    }
CUDA_EVERY(GPU_RUN)

static struct gpu_kernel {
    launch_kernel *run;
    const char *name;
    size_t size; /* of its parameter */
    CUfunction function;
} gpu_kernel[] = {
#define GPU_KERNEL(kernel, type) {.run = run_##kernel, .name = #kernel, .size = sizeof(type)},
    CUDA_EVERY(GPU_KERNEL)};

enum { GPU_KERNELS = sizeof gpu_kernel / sizeof *gpu_kernel };

/* cuMemAllocManaged, which only tests use. */
typedef CUresult gpu_managed(CUdeviceptr *address, size_t size, unsigned flags);

static struct {
    struct driver driver;
    struct driver_device device;
    CUcontext context; /* NULL: not open */
    CUstream stream;
    gpu_managed *managed;
} gpu;

static void gpu_fail(const struct error *err)
{
    (void)fprintf(stderr, "%s\n", err->text);
    exit(EXIT_FAILURE);
}

#define GPU_TRY(call, ...)                                                                         \
    do {                                                                                           \
        struct error gpu_err;                                                                      \
        if (DRIVER_TRY(&gpu.driver, &gpu.device, &gpu_err, call, __VA_ARGS__) != ADTOPK_OK) {      \
            gpu_fail(&gpu_err);                                                                    \
        }                                                                                          \
    } while (0)

static void gpu_choose(void)
{
    const char *const number = getenv("ADTOPK_TEST_GPU");
    struct driver_device list[DRIVER_DEVICES_MAX];
    const unsigned wanted = number != NULL ? (unsigned)strtoul(number, NULL, 10) : 0;
    unsigned count = 0;
    struct error err;
    if (driver_open(&gpu.driver, &err) != ADTOPK_OK ||
        driver_list(&gpu.driver, list, &count, &err) != ADTOPK_OK) {
        gpu_fail(&err);
    }
    if (wanted >= count) {
        (void)fprintf(stderr, "there are %u GPUs, and no number %u\n", count, wanted);
        exit(EXIT_FAILURE);
    }
    gpu.device = list[wanted];
}

static void gpu_load(void)
{
    CUmodule module;
    void *found;
    GPU_TRY(cuModuleLoadData, &module, device_kernels);
    for (unsigned k = 0; k < GPU_KERNELS; k++) {
        GPU_TRY(cuModuleGetFunction, &gpu_kernel[k].function, module, gpu_kernel[k].name);
    }
    found = dlsym(gpu.driver.library, "cuMemAllocManaged");
    if (found == NULL) {
        (void)fprintf(stderr, "the driver has no cuMemAllocManaged\n");
        exit(EXIT_FAILURE);
    }
    memcpy(&gpu.managed, &found, sizeof found);
}

static void gpu_open(void)
{
    if (gpu.context == NULL) {
        gpu_choose();
        GPU_TRY(cuDevicePrimaryCtxRetain, &gpu.context, gpu.device.handle);
        GPU_TRY(cuCtxSetCurrent, gpu.context);
        GPU_TRY(cuStreamCreate, &gpu.stream, CU_STREAM_NON_BLOCKING);
        gpu_load();
        (void)fprintf(stderr, "# on %s (%s)\n", gpu.device.uuid, gpu.device.name);
    }
}

void *launch_memory(uint64_t bytes)
{
    CUdeviceptr address = 0;
    gpu_open();
    if (gpu.managed(&address, bytes, ATTACH_GLOBAL) != CUDA_SUCCESS) {
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

void launch_free(void *memory)
{
    if (memory != NULL) {
        GPU_TRY(cuMemFree_v2, (CUdeviceptr)(uintptr_t)memory);
    }
}

void launch(const struct launch *how, launch_kernel *kernel, const void *parameters)
{
    _Alignas(16) char copy[4096];
    void *list[] = {copy};
    unsigned k = 0;
    gpu_open();
    while (gpu_kernel[k].run != kernel) {
        k++;
    }
    memcpy(copy, parameters, gpu_kernel[k].size);
    GPU_TRY(cuLaunchKernel, gpu_kernel[k].function, how->blocks, 1, 1, LAUNCH_THREADS, 1, 1, 0,
        gpu.stream, list, NULL);
    GPU_TRY(cuStreamSynchronize, gpu.stream);
}
