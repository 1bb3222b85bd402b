/*
 * What each kernel takes of a multiprocessor, as the driver says it, and how many of its blocks are
 * there at a time. Launches count on that number (daemon/device/page.h): blocks beyond it would
 * take turns.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

#include "daemon/device/page.h"
#include "tests/bench/perf/gpu.h"
#include "tests/gpu/measure.h"

/* Calls and constants of the driver that adtopk itself does not use. */
enum { REGISTERS = 4, SHARED = 1, LOCAL = 3, DEVICE_THREADS = 39 };
struct questions {
    CUresult (*attribute)(int *value, int attribute, CUfunction function);
    CUresult (*blocks)(int *blocks, CUfunction function, int threads, size_t shared);
};

static const char *const kernel_names[GPU_KERNELS] = {
#define KERNEL_NAME(name, parameter) [GPU_##name] = #name,
    CUDA_EVERY(KERNEL_NAME)
#undef KERNEL_NAME
};

/* Kernels that would spill registers with three blocks (kernels/cuda/device.cuh, KERNEL_LARGE). */
static unsigned blocks_wanted(enum gpu_kernel kernel)
{
    return kernel == GPU_add_stream || kernel == GPU_whole_total ? PAGE_BLOCKS_LARGE : PAGE_BLOCKS;
}

static bool kernel_print(
    const struct gpu *gpu, const struct questions *ask, enum gpu_kernel kernel, struct error *err)
{
    const CUfunction function = gpu->kernel[kernel];
    int registers, shared, local, threads, blocks;
    CUresult result = ask->attribute(&registers, REGISTERS, function);

    result = result == CUDA_SUCCESS ? ask->attribute(&shared, SHARED, function) : result;
    result = result == CUDA_SUCCESS ? ask->attribute(&local, LOCAL, function) : result;
    result = result == CUDA_SUCCESS ? ask->blocks(&blocks, function, GPU_THREADS, 0) : result;
    result = result == CUDA_SUCCESS
                 ? gpu->driver.cuDeviceGetAttribute(&threads, DEVICE_THREADS, gpu->device.handle)
                 : result;
    if (result != CUDA_SUCCESS) {
        (void)driver_failed(&gpu->driver, result, kernel_names[kernel], &gpu->device, err);
        return false;
    }
    figure_print(&(struct figure){.what = kernel_names[kernel],
        .unit = "blocks",
        .value = blocks,
        .floor = blocks_wanted(kernel),
        .target = NAN});
    (void)printf("  %d registers, %d bytes of shared and %d of local memory, occupancy %.3f\n",
        registers, shared, local, (double)blocks * GPU_THREADS / threads);
    return true;
}

bool occupancy_measure(const struct measure *measure, struct error *err)
{
    struct questions ask;
    struct gpu gpu;
    bool ok;

    if (gpu_open(&gpu, measure->device, err) != ADTOPK_OK) {
        return false;
    }
    *(void **)&ask.attribute = dlsym(gpu.driver.library, "cuFuncGetAttribute");
    *(void **)&ask.blocks =
        dlsym(gpu.driver.library, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    ok = ask.attribute != NULL && ask.blocks != NULL;
    if (!ok) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "this driver does not say what kernels take");
    }
    (void)printf("%s\n", gpu.name);
    for (unsigned k = 0; k < GPU_KERNELS && ok; k++) {
        ok = kernel_print(&gpu, &ask, (enum gpu_kernel)k, err);
    }
    gpu_close(&gpu);
    return ok;
}
