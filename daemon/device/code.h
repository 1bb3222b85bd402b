/*
 * The kernels of kernels/cuda for all architectures, one fatbin embedded by kernels.S. A build
 * without the CUDA toolkit has 64 zeros instead, which no driver loads.
 */
#ifndef ADTOPK_DEVICE_CODE_H
#define ADTOPK_DEVICE_CODE_H

#include <stdbool.h>

extern const unsigned char device_kernels[];
extern const unsigned char device_kernels_end[];

/** Whether there are kernels. */
static inline bool device_has_kernels(void)
{
    return device_kernels_end - device_kernels > 64;
}

#endif
