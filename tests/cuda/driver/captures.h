/*
 * What programs call that capture graphs. It is not in proto/cuda.h, because adtopk captures none.
 */
#ifndef ADTOPK_TESTS_CUDA_DRIVER_CAPTURES_H
#define ADTOPK_TESTS_CUDA_DRIVER_CAPTURES_H

#include <dlfcn.h>

#include "proto/driver.h"

/** The stream captures in this mode, which says what other threads may not call. */
static inline CUresult captures_begin(const struct driver *driver, CUstream stream, int mode)
{
    CUresult (*begin)(CUstream captured, int how);

    *(void **)&begin = dlsym(driver->library, "cuStreamBeginCapture_v2");
    return begin(stream, mode);
}

/** The result says whether some call has spoilt the capture. */
static inline CUresult captures_end(const struct driver *driver, CUstream stream)
{
    CUresult (*end)(CUstream captured, void **made);
    void *graph;

    *(void **)&end = dlsym(driver->library, "cuStreamEndCapture");
    return end(stream, &graph);
}

/** A new stream of the device's primary context, which is current until captures_close(). It
 * captures so that no thread may make calls that are not relaxed. NULL: that has failed. */
static inline CUstream captures_open(const struct driver *driver, CUdevice device)
{
    CUcontext context;
    CUstream stream;

    return driver->cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
                   driver->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS &&
                   driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
                   captures_begin(driver, stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS
               ? stream
               : NULL;
}

/** Ends that. Returns what captures_end() does. */
static inline CUresult captures_close(const struct driver *driver, CUdevice device, CUstream stream)
{
    const CUresult result = captures_end(driver, stream);
    CUcontext context;

    (void)driver->cuStreamDestroy_v2(stream);
    (void)driver->cuCtxPopCurrent_v2(&context);
    (void)driver->cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

#endif
