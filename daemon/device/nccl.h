/*
 * NCCL: the library and the part of its interface that adtopk uses, declared here so that no header
 * of it is needed to build. Types, constants and calls are those of NCCL's documentation. Nothing
 * of it is linked: the worker (worker.c) opens `libnccl.so.2`, or the file that the variable
 * ADTOPK_NCCL_LIBRARY names.
 *
 * Errors are SYSTEM with a sentence: no library, one that is too old, a missing symbol, and for a
 * call its name and NCCL's words.
 */
#ifndef ADTOPK_DEVICE_NCCL_H
#define ADTOPK_DEVICE_NCCL_H

#include <stddef.h>

#include "proto/cuda.h"
#include "proto/error.h"

#define NCCL_MINIMUM 21800 /* 2.18: communicators that do not block, and their settings below */

typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t;

enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
};

enum { ncclUint8 = 1, ncclFloat32 = 7 }; /* types of data */
enum { ncclSum = 0 };                    /* operations */

typedef struct {
    char internal[128];
} ncclUniqueId;

/* As in 2.18; later versions take it by its size and version. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_UNDEFINED (-2147483647 - 1)

#define NCCL_CALLS(CALL)                                                                           \
    CALL(ncclResult_t, ncclGetVersion, (int *version))                                             \
    CALL(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))                                       \
    CALL(ncclResult_t, ncclCommInitRankConfig,                                                     \
        (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))           \
    CALL(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * result))            \
    CALL(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                           \
    CALL(ncclResult_t, ncclAllReduce,                                                              \
        (const void *from, void *to, size_t count, int type, int operation, ncclComm_t comm,       \
            CUstream stream))                                                                      \
    CALL(ncclResult_t, ncclAllGather,                                                              \
        (const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream))    \
    CALL(ncclResult_t, ncclSend,                                                                   \
        (const void *from, size_t count, int type, int peer, ncclComm_t comm, CUstream stream))    \
    CALL(ncclResult_t, ncclRecv,                                                                   \
        (void *to, size_t count, int type, int peer, ncclComm_t comm, CUstream stream))            \
    CALL(ncclResult_t, ncclGroupStart, (void))                                                     \
    CALL(ncclResult_t, ncclGroupEnd, (void))                                                       \
    CALL(const char *, ncclGetErrorString, (ncclResult_t result))                                  \
    CALL(const char *, ncclGetLastError, (ncclComm_t comm))

struct nccl {
    void *library; /* NULL: not open */
    int version;   /* 22809 is 2.28.9 */
#define NCCL_MEMBER(type, name, parameters) type(*name) parameters;
    NCCL_CALLS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/** Opens the library. On an error nothing is left open. */
enum adtopk_status nccl_open(struct nccl *nccl, struct error *err);

/** The sentence of a call that failed. `comm` may be NULL. */
enum adtopk_status nccl_failed(const struct nccl *nccl, ncclResult_t result, const char *call,
    ncclComm_t comm, struct error *err);

#endif
