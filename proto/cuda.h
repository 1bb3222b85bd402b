/*
 * The part of NVIDIA's driver interface that adtopk uses, declared here so that no toolkit is
 * needed to build. Types, constants and calls are those of the CUDA Driver API reference, which
 * documents them; the names with _v2 are the symbols in the library. Nothing of it is linked.
 *
 * DRIVER_CALLS lists every call once: driver.h makes a table of it, the test library in
 * tests/cuda/driver its prototypes.
 */
#ifndef ADTOPK_PROTO_CUDA_H
#define ADTOPK_PROTO_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

typedef struct CUmemLocation_st {
    int type;
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_UNKNOWN = 999
};

enum {
    CU_CTX_SCHED_BLOCKING_SYNC = 4,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_WRITE_VALUE_DEFAULT = 0,
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_DEVICEMAP = 2,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
};

enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133
};

#define DRIVER_CALLS(CALL)                                                                         \
    CALL(cuInit, (unsigned flags))                                                                 \
    CALL(cuDriverGetVersion, (int *version))                                                       \
    CALL(cuGetErrorName, (CUresult result, const char **name))                                     \
    CALL(cuGetErrorString, (CUresult result, const char **text))                                   \
    CALL(cuDeviceGetCount, (int *count))                                                           \
    CALL(cuDeviceGet, (CUdevice * device, int ordinal))                                            \
    CALL(cuDeviceGetName, (char *name, int length, CUdevice device))                               \
    CALL(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                     \
    CALL(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                   \
    CALL(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                       \
    CALL(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                        \
    CALL(cuMemGetAllocationGranularity,                                                            \
        (size_t * bytes, const CUmemAllocationProp *prop, int option))                             \
    CALL(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t size,                         \
                          const CUmemAllocationProp *prop, unsigned long long flags))              \
    CALL(cuMemRelease, (CUmemGenericAllocationHandle handle))                                      \
    CALL(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle,      \
                                           int type, unsigned long long flags))                    \
    CALL(cuMemImportFromShareableHandle,                                                           \
        (CUmemGenericAllocationHandle * handle, void *shareable, int type))                        \
    CALL(cuMemAddressReserve, (CUdeviceptr * address, size_t size, size_t alignment,               \
                                  CUdeviceptr wish, unsigned long long flags))                     \
    CALL(cuMemAddressFree, (CUdeviceptr address, size_t size))                                     \
    CALL(cuMemMap, (CUdeviceptr address, size_t size, size_t offset,                               \
                       CUmemGenericAllocationHandle handle, unsigned long long flags))             \
    CALL(cuMemUnmap, (CUdeviceptr address, size_t size))                                           \
    CALL(cuMemSetAccess,                                                                           \
        (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count))           \
    CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags))                         \
    CALL(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                         \
    CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                          \
    CALL(cuCtxSetCurrent, (CUcontext context))                                                     \
    CALL(cuCtxGetDevice, (CUdevice * device))                                                      \
    CALL(cuCtxPushCurrent_v2, (CUcontext context))                                                 \
    CALL(cuCtxPopCurrent_v2, (CUcontext * context))                                                \
    CALL(cuCtxSynchronize, (void))                                                                 \
    CALL(cuMemGetInfo_v2, (size_t * left, size_t * total))                                         \
    CALL(cuMemAlloc_v2, (CUdeviceptr * address, size_t size))                                      \
    CALL(cuMemFree_v2, (CUdeviceptr address))                                                      \
    CALL(cuMemHostRegister_v2, (void *host, size_t size, unsigned flags))                          \
    CALL(cuMemHostUnregister, (void *host))                                                        \
    CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr * address, void *host, unsigned flags))        \
    CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream))   \
    CALL(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream))         \
    CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream))   \
    CALL(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t size, CUstream stream))     \
    CALL(cuStreamCreate, (CUstream * stream, unsigned flags))                                      \
    CALL(cuStreamDestroy_v2, (CUstream stream))                                                    \
    CALL(cuStreamSynchronize, (CUstream stream))                                                   \
    CALL(cuStreamQuery, (CUstream stream))                                                         \
    CALL(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                      \
    CALL(cuStreamWaitValue32_v2,                                                                   \
        (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                    \
    CALL(cuStreamWriteValue32_v2,                                                                  \
        (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                    \
    CALL(cuThreadExchangeStreamCaptureMode, (int *mode))                                           \
    CALL(cuEventCreate, (CUevent * event, unsigned flags))                                         \
    CALL(cuEventDestroy_v2, (CUevent event))                                                       \
    CALL(cuEventElapsedTime, (float *ms, CUevent begin, CUevent end))                              \
    CALL(cuEventRecord, (CUevent event, CUstream stream))                                          \
    CALL(cuModuleLoadData, (CUmodule * module, const void *image))                                 \
    CALL(cuModuleUnload, (CUmodule module))                                                        \
    CALL(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))          \
    CALL(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
                             unsigned block_x, unsigned block_y, unsigned block_z,                 \
                             unsigned shared, CUstream stream, void **arguments, void **extra))

#endif
