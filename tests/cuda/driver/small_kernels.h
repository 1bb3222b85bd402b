/* Kernels for the tests of the library itself: their arguments. */
#ifndef ADTOPK_TESTS_CUDA_SMALL_KERNELS_H
#define ADTOPK_TESTS_CUDA_SMALL_KERNELS_H

#include <stdint.h>

/** small_add: adds a value to words of device memory. small_fault reads where it may not. */
struct small_add {
    uint64_t words; /* their address */
    uint32_t count, value;
};

#endif
