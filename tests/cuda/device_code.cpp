/* The kernels' sources, with the words of CUDA from the shim. */
#include "tests/cuda/shim.h"

#include "kernels/cuda/all.cu"

#include "tests/cuda/device_code.h"

#define KERNELS_DEFINE(name, type)                                                                 \
    void run_##name(const void *parameter)                                                         \
    {                                                                                              \
        name(*static_cast<const type *>(parameter));                                               \
    }
CUDA_EVERY(KERNELS_DEFINE)
