/*
 * The faults of planted.h. Each kernel comes to the same result where it has no fault: out[i] is
 * the number of the block of thread i, plus 256.
 */
#include "tests/cuda/shim.h"

#include "kernels/cuda/device.cuh"

#include "tests/cuda/planted.h"

static void planted_write(const planted *p, uint32_t value)
{
    p->out[blockIdx.x * BLOCK + threadIdx.x] = value;
}

/* A thread reads what its neighbour wrote. */
static void barrier_missing(const planted *p)
{
    SHARED(uint32_t, x, BLOCK);
    x[threadIdx.x] = blockIdx.x;
    if (!p->fault) {
        __syncthreads();
    }
    planted_write(p, x[(threadIdx.x + 1) % BLOCK] + 256);
}

/* Two halves of a block wait at different places. */
static void barrier_divergent(const planted *p)
{
    if (p->fault && threadIdx.x < BLOCK / 2) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    planted_write(p, blockIdx.x + 256);
}

static void barrier_left_out(const planted *p)
{
    planted_write(p, blockIdx.x + 256);
    if (!p->fault || threadIdx.x != 77) {
        __syncthreads();
    }
}

static void shuffle_outside(const planted *p)
{
    const uint32_t mask = 0xffffu;
    uint32_t value = blockIdx.x;
    if (device_lane() < 16) {
        value = __shfl_sync(mask, value, p->fault ? 20 : 2);
    }
    planted_write(p, value + 256);
}

static void lane_missing(const planted *p)
{
    uint32_t value = blockIdx.x;
    if (!p->fault || device_lane() != 9) {
        value = __shfl_xor_sync(WARP_ALL, value, 1);
    }
    planted_write(p, value + 256);
}

static void shared_unwritten(const planted *p)
{
    SHARED(uint32_t, sum, 1);
    if (!p->fault && threadIdx.x == 0) {
        sum[0] = 0;
    }
    __syncthreads();
    (void)atomicAdd(sum, 1u);
    __syncthreads();
    planted_write(p, blockIdx.x + sum[0]);
}

static void shared_beyond(const planted *p)
{
    SHARED(uint32_t, x, BLOCK);
    x[threadIdx.x] = blockIdx.x;
    if (p->fault && threadIdx.x == BLOCK - 1) {
        x[BLOCK] = blockIdx.x;
    }
    __syncthreads();
    planted_write(p, x[threadIdx.x] + 256);
}

/* It only reads there, so that nothing else is wrong. */
static void global_beyond(const planted *p)
{
    const volatile uint32_t *const part = p->part;
    (void)part[p->fault ? gridDim.x : blockIdx.x];
    planted_write(p, blockIdx.x + 256);
}

/* A block takes another one to have been before it. */
static void block_order(const planted *p)
{
    const uint32_t before = blockIdx.x == 0 ? 0 : atomicAdd(&p->part[blockIdx.x - 1], 0u);
    __syncthreads();
    if (threadIdx.x == 0) {
        (void)atomicAdd(&p->part[blockIdx.x], p->fault ? before + 1 : blockIdx.x + 1);
    }
    __syncthreads();
    planted_write(p, atomicAdd(&p->part[blockIdx.x], 0u) + 255);
}

/* The last block reads what the others wrote. */
static void fence_missing(const planted *p)
{
    SHARED(uint32_t, last, 1);
    if (threadIdx.x == 0) {
        p->part[blockIdx.x] = blockIdx.x + 256;
        if (!p->fault) {
            __threadfence();
        }
        last[0] = atomicAdd(p->done, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last[0] != 0) {
        for (uint32_t b = 0; b < gridDim.x; b++) {
            p->out[b * BLOCK + threadIdx.x] = p->part[b];
        }
    }
}

/* A shuffle does not order memory. */
static void warp_unordered(const planted *p)
{
    SHARED(uint32_t, x, BLOCK);
    x[threadIdx.x] = blockIdx.x;
    if (!p->fault) {
        __syncwarp();
    }
    (void)__shfl_xor_sync(WARP_ALL, threadIdx.x, 1);
    planted_write(p, x[threadIdx.x ^ 1] + 256);
}

#define PLANTED_DEFINE(name, finder)                                                               \
    void run_##name(const void *parameter)                                                         \
    {                                                                                              \
        name(static_cast<const planted *>(parameter));                                             \
    }
PLANTED(PLANTED_DEFINE)
