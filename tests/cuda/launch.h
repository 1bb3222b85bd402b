/*
 * Runs device code on this machine, without a GPU: every CUDA thread is a fibre of one host thread.
 * In programs with on_gpu.c it runs on a GPU instead, and only launch() is there.
 *
 * Happy path: launch() runs a kernel to its end. launch_begin() and launch_go_on() run it in
 * portions, so that a test can kill it (launch_end()) or let two kernels run beside each other.
 *
 * The kernel's source is the one that nvcc compiles; shim.h supplies the words of CUDA. Which fibre
 * runs next is drawn from a seed, so a seed is a schedule that can be repeated. A fault against
 * the rules of CUDA (a barrier that not all threads reach, a shuffle from a lane outside the mask)
 * prints what happened and where, and aborts.
 *
 * Not thread-safe: one host thread.
 */
#ifndef ADTOPK_TESTS_CUDA_LAUNCH_H
#define ADTOPK_TESTS_CUDA_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which thread runs next where several may. */
enum launch_order {
    LAUNCH_ROUND_ROBIN,
    LAUNCH_RANDOM,
    LAUNCH_WARP_AHEAD, /* a warp runs as far as it can before another one does */
    LAUNCH_REVERSE,    /* the last thread of the last block first */
    LAUNCH_ORDERS
};

struct launch {
    unsigned blocks;   /* of the grid */
    unsigned resident; /* that run at the same time, at most LAUNCH_RESIDENT */
    enum launch_order order;
    uint64_t seed;
};

enum { LAUNCH_THREADS = 256, LAUNCH_RESIDENT = 4 }; /* threads per block; blocks at a time */

typedef void launch_kernel(const void *parameters);

/** Runs the kernel to its end. */
void launch(const struct launch *how, launch_kernel *kernel, const void *parameters);

/** Memory that kernels reach at the same addresses as the host, aligned to 16 bytes; NULL: there is
 * no more. */
void *launch_memory(uint64_t bytes);

/** NULL is allowed. */
void launch_free(void *memory);

/* A kernel that has begun. Not on a GPU, as all of what follows. */
struct launched;

/** Begins a kernel; nothing of it has run yet. parameters: valid until launch_end(). */
struct launched *launch_begin(
    const struct launch *how, launch_kernel *kernel, const void *parameters);

/** Goes on for so many changes of thread, at most. True: the kernel has ended. */
bool launch_go_on(struct launched *launched, uint64_t switches);

/** Frees it; what has not run never will. */
void launch_end(struct launched *launched);

#ifdef __cplusplus
}
#endif
#endif
