/*
 * The words of CUDA that kernels/cuda uses, for a C++ compiler of the host (launch.h). To be
 * included before the kernels' sources.
 *
 * Shared arrays are heap blocks of their own, so that the address sanitizer sees their ends. They
 * begin as 0xa5 bytes. Atomics are relaxed, as on the device: what orders other memory is
 * __threadfence(), the barriers and __syncwarp(). The thread sanitizer is told of exactly those.
 */
#ifndef ADTOPK_TESTS_CUDA_SHIM_H
#define ADTOPK_TESTS_CUDA_SHIM_H

#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct shim_index {
    unsigned x;
};

/* Where the running thread is. */
struct shim_place {
    shim_index thread, block, threads, blocks;
};
extern const shim_place *shim_here;

#define threadIdx (shim_here->thread)
#define blockIdx (shim_here->block)
#define blockDim (shim_here->threads)
#define gridDim (shim_here->blocks)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};

/* What a warp does together. */
enum shim_kind { SHIM_SYNC, SHIM_BALLOT, SHIM_SHUFFLE };

void shim_barrier(const char *file, int line);
uint64_t shim_collect(
    shim_kind kind, unsigned mask, uint64_t value, unsigned source, const char *file, int line);
void shim_fence();
void shim_touch(const void *address); /* comes before every atomic access */
void shim_pause();                    /* another thread comes first, if one may run */
void *shim_shared(const void *site, size_t bytes);

#define SHARED(type, name, count)                                                                  \
    static const char name##_site = 0;                                                             \
    type *const name = static_cast<type *>(shim_shared(&name##_site, sizeof(type) * (count)))

#define __syncthreads() shim_barrier(__FILE__, __LINE__)
#define __threadfence() shim_fence()
#define __syncwarp() (void)shim_collect(SHIM_SYNC, ~0u, 0, 0, __FILE__, __LINE__)
#define __ballot_sync(mask, predicate)                                                             \
    static_cast<unsigned>(                                                                         \
        shim_collect(SHIM_BALLOT, mask, (predicate) ? 1 : 0, 0, __FILE__, __LINE__))

template <typename T>
inline T shim_shuffle(unsigned mask, T value, unsigned source, const char *file, int line)
{
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shim_collect(SHIM_SHUFFLE, mask, bits, source, file, line);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned shim_lane()
{
    return threadIdx.x % 32;
}

inline unsigned shim_up(unsigned delta)
{
    return shim_lane() >= delta ? shim_lane() - delta : shim_lane();
}

#define __shfl_sync(mask, value, source)                                                           \
    shim_shuffle(mask, value, (unsigned)(source) % 32, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits)                                                         \
    shim_shuffle(mask, value, shim_lane() ^ (bits), __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, delta)                                                         \
    shim_shuffle(mask, value, shim_up(delta), __FILE__, __LINE__)

template <typename T> inline T atomicAdd(T *address, T value)
{
    shim_touch(address);
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

template <typename T> inline T atomicCAS(T *address, T expected, T desired)
{
    shim_touch(address);
    __atomic_compare_exchange_n(
        address, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

template <typename T> inline T shim_load(const T *address)
{
    shim_touch(address);
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <typename T> inline void shim_store(T *address, T value)
{
    shim_touch(address);
    __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

inline unsigned __popc(unsigned bits)
{
    return static_cast<unsigned>(__builtin_popcount(bits));
}

#endif
