/*
 * What a kernel is to the test library: a function of this processor, found by name. A library has
 * one table of them, in a file of its own (shim_kernels.c; small_kernels.c for this folder's
 * tests).
 */
#ifndef ADTOPK_TESTS_CUDA_KERNELS_H
#define ADTOPK_TESTS_CUDA_KERNELS_H

#include "proto/cuda.h"

struct standin_launch {
    const void *arguments; /* a copy of the kernel's one structure */
    unsigned grid[3], block[3], shared;
};

struct standin_kernel {
    const char *name;
    size_t size; /* bytes of its structure */
    /** The device's memory is accessible while it runs. Another result than CUDA_SUCCESS poisons
     * the context. */
    CUresult (*run)(const struct standin_launch *launch);
};

/** Ends with a kernel that has no name. */
extern const struct standin_kernel standin_kernels[];

#endif
