/*
 * What passes are compared with on a device (adtopk-perf select --device): r += g and nothing else.
 * And what they run beside (tests/gpu): arithmetic and nothing else.
 */
#ifndef ADTOPK_KERNELS_BENCH_H
#define ADTOPK_KERNELS_BENCH_H

#include <stdint.h>

struct bench_add {
    float *r;       /* aligned to 16 bytes */
    const void *g;  /* as well */
    uint32_t dtype; /* of g, enum dtype */
    uint64_t n;     /* elements, a multiple of 4 */
};

struct bench_work {
    float *out;      /* one of each thread */
    uint32_t rounds; /* a multiplication and an addition each */
};

#endif
