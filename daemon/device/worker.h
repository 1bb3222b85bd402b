/*
 * What the files of the program adtopk-device share: the process that holds a context on one
 * device, for the jobs of one user.
 *
 * It is adtopkd's child, and ends with it, or when the socket is closed. It survives nothing: any
 * error of the driver is told in one message, and it ends.
 */
#ifndef ADTOPK_DEVICE_WORKER_H
#define ADTOPK_DEVICE_WORKER_H

#include "daemon/device/nccl.h"
#include "daemon/device/page.h"
#include "kernels/cuda/kernels.h"
#include "proto/driver.h"

/* The kernels of kernels/cuda: KERNEL_add_stream and so on. */
enum worker_kernel {
#define WORKER_KERNEL(name, parameter) KERNEL_##name,
    CUDA_KERNELS(WORKER_KERNEL)
#undef WORKER_KERNEL
        WORKER_KERNELS
};

/* A part of a store that is mapped. */
struct worker_arena {
    CUdeviceptr address; /* 0: not mapped */
    uint64_t size;
    struct pool pool; /* its slots */
    CUmemGenericAllocationHandle handle;
    /* The communicator of its job, where it is the job's first part. */
    ncclComm_t comm; /* NULL: there is none */
    uint64_t group;  /* number of its group; 0: it is not ready */
    uint32_t kinds;  /* of operations that it has carried: a bit for each enum cargo_kind */
    uint64_t taken;  /* bytes that the device had less when it was made, and behind those */
};

struct worker_state {
    struct driver driver;
    struct nccl nccl;
    char no_nccl[ERROR_TEXT_SIZE]; /* why it is not open */
    struct driver_device device;
    CUcontext context;
    CUstream stream;
    CUfunction kernel[WORKER_KERNELS];
    struct page *page;
    CUdeviceptr page_address; /* of the page on the device */
    CUdeviceptr scratch;
    uint64_t scratch_size;
    /* Why the entries up to the next PAGE_ROOM are left out. OK: they are not; MEMORY: there was no
     * room; SYSTEM: NCCL has failed. */
    enum adtopk_status left_out;
    CUdeviceptr window; /* all arenas are in it; slots are numbered from there */
    struct worker_arena arena[PAGE_ARENAS];
    struct spin spin;
    struct error error;
};

/* worker.c */

/** A call of the driver: an error goes to state->error. */
#define WORKER_TRY(state, call, ...)                                                               \
    (DRIVER_TRY(&(state)->driver, &(state)->device, &(state)->error, call, __VA_ARGS__) ==         \
        ADTOPK_OK)

/* worker_context.c */

/** Opens the driver, the device of this UUID, and a context. */
bool worker_enter(struct worker_state *state, const char *uuid);

/** Opens the rest: NCCL, if it is there, a stream, and the kernels. */
bool worker_open(struct worker_state *state);

/** The kernels that are not in the module, as "add_begin, top_emit"; "" if all are there. */
void worker_missing(const struct worker_state *state, char text[ERROR_TEXT_SIZE]);

/** Registers the page. */
bool worker_share(struct worker_state *state, int descriptor);

/** Maps a part of a store, and clears it if it is new or without its mark (*cleared). Closes the
 * descriptor. */
bool worker_map(
    struct worker_state *state, const struct message *message, int descriptor, bool *cleared);

bool worker_unmap(struct worker_state *state, uint32_t arena);

/** Bytes of the device that no process has; 0: none, or the driver does not say. */
uint64_t worker_left(const struct worker_state *state);

/* worker_probe.c */

/** Tries the device, and prints what is wrong with it or what it has. Returns the exit status. */
int worker_probe(struct worker_state *state, const char *uuid);

/* worker_run.c */

/** Puts everything of an entry into the stream. */
bool worker_entry(struct worker_state *state, uint32_t number);

/** Where the device sees a place of the page. */
CUdeviceptr worker_on_device(const struct worker_state *state, const void *in_page);

/* worker_carry.c */

/** Makes an operation of NCCL, of entry `number`, and waits for it. What goes wrong with NCCL is
 * in carry->error. */
bool worker_carry(struct worker_state *state, struct page_carry *carry, uint32_t number);

/** Ends the communicator of an arena, if it has one. */
void worker_drop_group(struct worker_state *state, struct worker_arena *arena);

/* worker_kernels.c */

/** Launches the kernels of a run, whose inputs are in scratch memory. */
bool worker_launch(struct worker_state *state, struct page_run *page);

#endif
