/*
 * Small kernels with one fault each, which the shim or a sanitizer must find; without it they are
 * right. X(name, by what it is found).
 */
#ifndef ADTOPK_TESTS_CUDA_PLANTED_H
#define ADTOPK_TESTS_CUDA_PLANTED_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/cuda/launch.h"

enum planted_finder {
    PLANTED_RESULT,  /* a schedule in which the result is wrong */
    PLANTED_SHIM,    /* the shim aborts */
    PLANTED_ADDRESS, /* the address sanitizer */
    PLANTED_THREAD   /* the thread sanitizer: results are right in all schedules */
};

#define PLANTED(X)                                                                                 \
    X(barrier_missing, PLANTED_RESULT)                                                             \
    X(barrier_divergent, PLANTED_SHIM)                                                             \
    X(barrier_left_out, PLANTED_SHIM)                                                              \
    X(shuffle_outside, PLANTED_SHIM)                                                               \
    X(lane_missing, PLANTED_SHIM)                                                                  \
    X(shared_unwritten, PLANTED_RESULT)                                                            \
    X(shared_beyond, PLANTED_ADDRESS)                                                              \
    X(global_beyond, PLANTED_ADDRESS)                                                              \
    X(block_order, PLANTED_RESULT)                                                                 \
    X(fence_missing, PLANTED_THREAD)                                                               \
    X(warp_unordered, PLANTED_THREAD)

/* Every kernel writes number() of each thread of the grid. */
struct planted {
    uint32_t *out;
    uint32_t *part; /* one per block, zeros */
    uint32_t *done; /* zero */
    bool fault;
};

#ifdef __cplusplus
extern "C" {
#endif

#define PLANTED_RUN(name, finder) void run_##name(const void *parameter);
PLANTED(PLANTED_RUN)

#ifdef __cplusplus
}
#endif
#endif
