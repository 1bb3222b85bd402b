/*
 * What device code shares: blocks and warps, and the few words that tests/cuda/shim.h says
 * differently.
 *
 * SHARED(type, name, count) declares an array of the block's shared memory, aligned to 16 bytes, so
 * that a float4 may be read from it. UNROLL stands before a loop that indexes an array of a thread:
 * without it the array may get into local memory. UNROLL_2 and ROLLED stand before loops that would
 * take too many registers. device_load() reads a word that other blocks change meanwhile,
 * device_store() writes one.
 */
#ifndef ADTOPK_KERNELS_DEVICE_CUH
#define ADTOPK_KERNELS_DEVICE_CUH

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define UNROLL _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll 2")
#define ROLLED _Pragma("unroll 1")
#else
#define UNROLL
#define UNROLL_2
#define ROLLED
#endif

#define DEVICE __device__ static inline
#define DEVICE_MEMBER __device__
/* Three blocks fit on a multiprocessor, or two of a large kernel, which would spill registers. */
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK, 3)
#define KERNEL_LARGE extern "C" __global__ void __launch_bounds__(BLOCK, 2)

enum { BLOCK = 256, WARP = 32, WARPS = BLOCK / WARP };
#define WARP_ALL 0xffffffffu

DEVICE unsigned device_lane(void)
{
    return threadIdx.x % WARP;
}

DEVICE unsigned device_warp(void)
{
    return threadIdx.x / WARP;
}

/* Where a loop of all threads over anything begins, and how far its steps are. */
DEVICE uint64_t device_thread(void)
{
    return (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
}

DEVICE uint64_t device_threads(void)
{
    return (uint64_t)gridDim.x * BLOCK;
}

#ifdef __CUDACC__
/* CUDA names 64 bits in another way than stdint.h. */
template <typename Word> DEVICE Word device_load(const Word *word)
{
    return *(const volatile Word *)word;
}

DEVICE void device_store(uint64_t *word, uint64_t value)
{
    *(volatile uint64_t *)word = value;
}

/* Lets others go first. */
DEVICE void device_pause(void)
{
#if __CUDA_ARCH__ >= 700
    __nanosleep(100);
#endif
}

DEVICE uint64_t device_swap(uint64_t *word, uint64_t expected, uint64_t desired)
{
    return atomicCAS(
        (unsigned long long *)word, (unsigned long long)expected, (unsigned long long)desired);
}
#else
template <typename Word> DEVICE Word device_load(const Word *word)
{
    return shim_load(word);
}

DEVICE void device_store(uint64_t *word, uint64_t value)
{
    shim_store(word, value);
}

DEVICE void device_pause(void)
{
    shim_pause();
}

DEVICE uint64_t device_swap(uint64_t *word, uint64_t expected, uint64_t desired)
{
    return atomicCAS(word, expected, desired);
}
#endif

/* Waits until a word is at least `wanted`: what others wrote before they changed it is visible. For
 * all threads of a block. Only blocks that have begun may be waited for. */
DEVICE void device_await(const uint32_t *word, uint32_t wanted)
{
    if (threadIdx.x == 0) {
        while (device_load(word) < wanted) {
            device_pause();
        }
        __threadfence();
    }
    __syncthreads();
}

/* The sum of the values of the lanes before this one; *all is that of all lanes. Sums of four bytes
 * at once if none of them exceeds 255. */
DEVICE uint32_t device_scan_warp(uint32_t value, uint32_t *all)
{
    uint32_t sum = value;
    for (unsigned d = 1; d < WARP; d *= 2) {
        const uint32_t before = __shfl_up_sync(WARP_ALL, sum, d);
        sum += device_lane() >= d ? before : 0;
    }
    *all = __shfl_sync(WARP_ALL, sum, WARP - 1);
    return sum - value;
}

/* The same for all threads of the block. */
DEVICE uint32_t device_scan(uint32_t value, uint32_t *all)
{
    SHARED(uint32_t, of_warp, WARPS);
    uint32_t sum;
    uint32_t before = device_scan_warp(value, &sum);
    __syncthreads(); /* the last scan's sums have been read */
    if (device_lane() == 0) {
        of_warp[device_warp()] = sum;
    }
    __syncthreads();
    sum = 0;
    for (unsigned w = 0; w < WARPS; w++) {
        before += w < device_warp() ? of_warp[w] : 0;
        sum += of_warp[w];
    }
    *all = sum;
    return before;
}

/* Counts what this block has done of `all` units of work. True for all threads of the block that
 * does the last one: what all blocks wrote before is visible to it. */
DEVICE bool device_is_last(uint32_t *done, uint32_t mine, uint32_t all)
{
    SHARED(uint32_t, last, 1);
    __syncthreads(); /* all threads of the block have written */
    if (threadIdx.x == 0) {
        __threadfence();
        last[0] = atomicAdd(done, mine) + mine == all;
        __threadfence();
    }
    __syncthreads();
    return last[0] != 0;
}

#endif
