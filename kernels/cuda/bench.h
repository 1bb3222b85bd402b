/*
 * What passes are compared with on a device (adtopk-perf select --device): r += g and nothing else.
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

#endif
