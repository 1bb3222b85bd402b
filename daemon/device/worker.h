/*
 * What the files of the program adtopk-device share: the process that holds a context on one
 * device, for the jobs of one user.
 *
 * It is adtopkd's child, and ends with it, or when the socket is closed. It survives nothing: any
 * error of the driver is told in one message, and it ends.
 */
#ifndef ADTOPK_DEVICE_WORKER_H
#define ADTOPK_DEVICE_WORKER_H

#include "daemon/device/driver.h"
#include "daemon/device/page.h"

/* What a kernel for a whole order gets: addresses on the device. */
struct worker_arguments {
    uint64_t order;  /* struct engine_order: each place is ENGINE_HERE, with an address */
    uint64_t part;   /* struct engine_part, order.parts of them: likewise */
    uint64_t result; /* struct engine_result */
    uint64_t spare;  /* PAGE_SPARE bytes that survive this process */
};

/* A part of a store that is mapped. */
struct worker_arena {
    CUdeviceptr address; /* 0: not mapped */
    uint64_t size;
    CUmemGenericAllocationHandle handle;
};

struct worker_state {
    struct driver driver;
    struct driver_device device;
    CUcontext context;
    CUstream stream;
    CUfunction kernel[ENGINE_KINDS];
    struct page *page;
    CUdeviceptr page_address; /* of the page on the device */
    CUdeviceptr scratch;
    uint64_t scratch_size;
    bool no_room; /* for the order at hand */
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

/** Opens the driver, the device of this UUID, a context, and the kernels. */
bool worker_open(struct worker_state *state, const char *uuid);

/** The kinds of orders without a kernel, as "add, leave"; "" if there are none. */
void worker_missing(const struct worker_state *state, char text[ERROR_TEXT_SIZE]);

/** Registers the page. */
bool worker_share(struct worker_state *state, int descriptor);

/** Maps a part of a store, and clears it if it is new. Closes the descriptor. */
bool worker_map(struct worker_state *state, const struct message *message, int descriptor);

bool worker_unmap(struct worker_state *state, uint32_t arena);

/* worker_run.c */

/** Puts everything of an entry into the stream. */
bool worker_entry(struct worker_state *state, uint32_t number);

#endif
