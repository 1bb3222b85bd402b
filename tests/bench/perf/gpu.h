/*
 * A GPU to measure on: a context, one stream, the kernels, memory, and a clock.
 *
 * Happy path: gpu_open(); gpu_memory(), gpu_put(); gpu_start(), gpu_run(), gpu_stop();
 * gpu_forget(); gpu_close(). A call that fails returns false and leaves its sentence in gpu->err.
 * One thread.
 */
#ifndef PERF_GPU_H
#define PERF_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/kernels.h"
#include "proto/driver.h"

#define GPU_PIECES_MAX 4096 /* of memory */
#define GPU_THREADS 256u    /* of a block */

enum gpu_kernel {
#define GPU_KERNEL(name, parameter) GPU_##name,
    CUDA_EVERY(GPU_KERNEL)
#undef GPU_KERNEL
        GPU_KERNELS
};

enum { GPU_NAME = DRIVER_UUID_SIZE + DRIVER_NAME_SIZE + 4 };

struct gpu {
    struct driver driver;
    struct driver_device device;
    char name[GPU_NAME]; /* "GPU-... (name)" */
    CUcontext context;
    CUstream stream;
    CUevent begin, end;
    CUfunction kernel[GPU_KERNELS];
    void *staging; /* host memory that copies go through */
    CUdeviceptr memory[GPU_PIECES_MAX];
    unsigned pieces;
    CUdeviceptr next; /* what is left of the last one */
    uint64_t left;
    struct error err;
};

/** which: a UUID, or a number. Errors: SYSTEM, ARGUMENT (there is none). On an error nothing is
 * left open. */
enum adtopk_status gpu_open(struct gpu *gpu, const char *which, struct error *err);

/** Finds a GPU, and opens nothing. Errors: as gpu_open(). */
enum adtopk_status gpu_find(
    const char *which, struct driver_device *device, char name[GPU_NAME], struct error *err);

/** A GPU that is not open is allowed. */
void gpu_close(struct gpu *gpu);

/** Device memory full of zeros; NULL: see gpu->err. */
void *gpu_memory(struct gpu *gpu, uint64_t size);

/** Gives back all of it. */
void gpu_forget(struct gpu *gpu);

/** Copies to the device. Returns when it is there. */
bool gpu_put(struct gpu *gpu, void *to, const void *from, uint64_t size);

/** Copies from the device, when what is queued is done. */
bool gpu_get(struct gpu *gpu, void *to, const void *from, uint64_t size);

/** Copies from the device to the device. This is queued. */
bool gpu_copy(struct gpu *gpu, void *to, const void *from, uint64_t size);

/** Queues a kernel. parameter: its structure. */
bool gpu_run(struct gpu *gpu, enum gpu_kernel kernel, unsigned blocks, const void *parameter);

/** What is queued between the two takes so many microseconds on the device. */
bool gpu_start(struct gpu *gpu);
bool gpu_stop(struct gpu *gpu, double *us);

#endif
