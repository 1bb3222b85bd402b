/*
 * The device code of kernels/cuda, compiled for this machine: run_NAME(parameter) is what one
 * thread of the kernel NAME does. To be given to launch().
 */
#ifndef ADTOPK_TESTS_CUDA_DEVICE_CODE_H
#define ADTOPK_TESTS_CUDA_DEVICE_CODE_H

#include "kernels/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNELS_RUN(name, type) void run_##name(const void *parameter);
CUDA_EVERY(KERNELS_RUN)

#ifdef __cplusplus
}
#endif
#endif
