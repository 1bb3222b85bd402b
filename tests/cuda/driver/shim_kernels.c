/*
 * The kernels of kernels/cuda as this processor runs them (tests/cuda/launch.h): what adtopk-device
 * finds in its module on a GPU. Blocks and threads run in an order that is drawn.
 */
#include "tests/cuda/device_code.h"
#include "tests/cuda/driver/kernels.h"
#include "tests/cuda/launch.h"

static CUresult shim_run(const struct standin_launch *launched, launch_kernel *kernel)
{
    static uint64_t launches;
    const struct launch how = {.blocks = launched->grid[0],
        .resident = LAUNCH_RESIDENT,
        .order = (enum launch_order)(launches % LAUNCH_ORDERS),
        .seed = launches};

    launches++;
    if (launched->grid[1] != 1 || launched->grid[2] != 1 || launched->block[0] != LAUNCH_THREADS ||
        launched->block[1] != 1 || launched->block[2] != 1 || launched->shared != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    launch(&how, kernel, launched->arguments);
    return CUDA_SUCCESS;
}

#define SHIM_RUN(name, type)                                                                       \
    static CUresult shim_##name(const struct standin_launch *launched)                             \
    {                                                                                              \
        return shim_run(launched, run_##name);                                                     \
    }
CUDA_EVERY(SHIM_RUN)

#define SHIM_ROW(kernel, type) {.name = #kernel, .size = sizeof(type), .run = shim_##kernel},
const struct standin_kernel standin_kernels[] = {CUDA_EVERY(SHIM_ROW){.name = NULL}};
