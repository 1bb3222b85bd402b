/*
 * What the files of the test library share. README.md beside this file says what it imitates, and
 * which variables set it up.
 *
 * A process has at most one context, which may be current in several threads. Calls are carried out
 * one at a time: STANDIN_ALONE is the first line of each that shares anything.
 */
#ifndef ADTOPK_TESTS_CUDA_STANDIN_H
#define ADTOPK_TESTS_CUDA_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/driver/kernels.h"

#define STANDIN_DEVICES_MAX 8
#define STANDIN_SPOILT 9999 /* as a result that is asked for: a copy brings 0xff */

/* When the operations of streams happen. */
enum standin_when {
    STANDIN_EARLY, /* at once */
    STANDIN_LATE,  /* not before the host waits for them */
    STANDIN_CHANCE /* some of them in each call, streams in any order */
};

#define STANDIN_PROTOTYPE(name, parameters) CUresult name parameters;
DRIVER_CALLS(STANDIN_PROTOTYPE)
#undef STANDIN_PROTOTYPE

struct standin_turn {
    unsigned depth;
};
struct standin_turn standin_alone(void);
void standin_done(const struct standin_turn *ignored);
#define STANDIN_ALONE                                                                              \
    const struct standin_turn alone __attribute__((cleanup(standin_done), unused)) = standin_alone()

/** Lets other threads and processes go on for a moment, in the middle of a call. */
void standin_pause(void);

/* For tests/cuda/on_gpu.c. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags);

/* For tests/gpu/occupancy.c. */
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, CUfunction function, int threads, size_t shared);

/* For programs that capture. What is captured does not run, and the graph is good for nothing. */
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, void **graph);

struct standin {
    int devices;
    int number[STANDIN_DEVICES_MAX]; /* the machine's, of each device that is visible */
    uint64_t memory;                 /* bytes of each device */
    uint64_t context;                /* bytes of a device that a context takes */
    uint64_t granule;                /* bytes: memory that is shared has whole ones */
    int version;
    enum standin_when when;
    uint64_t kernel_us; /* every kernel takes so much longer */
    bool shares;        /* all streams have one connection to the device */
    uint64_t random;
    bool initialised;
};

struct standin *standin_state(void);

/** Counts a call. Returns what it should fail with, or CUDA_SUCCESS. May never return. */
CUresult standin_called(const char *name);

/** The same for a call that needs a context: also fails without one, or with one that is poisoned.
 */
CUresult standin_called_in_context(const char *name);

/** All later calls in this context fail with `result`. */
void standin_poison(CUresult result);

uint64_t standin_random(uint64_t below);

/** The device of the context. */
int standin_device(void);

/* standin_accounts.c */

/** Takes bytes of a device's memory; false: it has no more. Also for tests/cuda/nccl. */
bool standin_take(int device, uint64_t bytes);
void standin_give_back(int device, uint64_t bytes);

/** Bytes of a device that no process has. */
uint64_t standin_left(int device);

/* standin_memory.c */

/** Device memory is accessible between these two calls, and only then. They nest. */
void standin_unlock(void);
void standin_lock(void);

/** Whether all of these bytes were registered by the host. */
bool standin_is_registered(const void *host, uint64_t size);

/** Whether a stream may write a word there, or wait for it: aligned, and in memory of the device or
 * registered memory of the host. */
bool standin_is_word(CUdeviceptr address);

/** The context is gone: so is what was mapped or allocated in it. */
void standin_drop_memory(void);

/* standin_stream.c */

/** Whether a call may be made although some stream captures. Otherwise that capture is spoilt. */
bool standin_may_call(const char *name);

/** Runs everything that is in any stream. */
void standin_drain_all(void);

/** The context is gone: so are its streams, with what is in them. */
void standin_drop_streams(void);

/** Appends a kernel to a stream; copies the arguments. */
CUresult standin_launch(
    CUstream stream, const struct standin_kernel *kernel, const struct standin_launch *launch);

/** Appends something that happens when poll() returns true, which is called again and again with
 * device memory accessible. For tests/cuda/nccl. */
void standin_poll(CUstream stream, bool (*poll)(void *argument), void *argument);

#endif
