/*
 * What the files about gradients on a GPU share: device.c and beside.c.
 */
#ifndef ADTOPK_CLIENT_DEVICE_STATE_H
#define ADTOPK_CLIENT_DEVICE_STATE_H

#include "client/src/device.h"
#include "client/src/patience.h"
#include "proto/driver.h"

/* The arena of a batch of tensors. */
struct device_arena {
    CUdeviceptr window; /* addresses of its part on the device; 0: none */
    uint64_t size;
    CUmemGenericAllocationHandle handle; /* of the memory, which may be mapped again; 0: none */
    bool mapped;
    uint64_t begin;   /* the arena's offset at which that part begins */
    void *flags;      /* registered host memory; NULL: none */
    CUdeviceptr flag; /* the same for the device: one word per tensor */
    CUdeviceptr word; /* struct local_word, one per tensor, and in the first arena for the step */
    struct client_words words; /* the same for the host; NULL: the daemon has none */
};

/* An arena that cannot be given back yet: that would wait for streams that wait for words. */
struct device_gone {
    struct device_gone *next;
    struct device_arena arena;
    struct client_mapping host;
};

struct client_device {
    struct driver driver;
    struct driver_device device;
    CUcontext primary; /* the device's, as CUDA's runtime uses it */
    int mode;          /* of captures, in the thread that called client_device_enter() */
    struct device_arena arena[CLIENT_MAX_BATCHES];
    /* Of the daemon to which the rank has come back, until the step is over (beside.c). */
    struct device_arena beside[CLIENT_MAX_BATCHES];
    struct device_gone *gone;      /* those of daemons that went away before the step was over */
    struct client_mapping staging; /* registered: an update on its way to the device */
    CUstream mover;                /* copies between the two; NULL: none */
    bool moves;                    /* when last looked at, that was not done */
    uint64_t told;                 /* step + 1 of the last step whose word was copied */
};

/* Makes a call of the driver. On failure fills `err`. */
#define DEVICE_TRY(device, err, call, ...)                                                         \
    (DRIVER_TRY(&(device)->driver, &(device)->device, err, call, __VA_ARGS__) == ADTOPK_OK)

/** The device's context is the thread's until client_device_leave(). In between the thread's calls
 * of the driver do not spoil a graph that the program captures, in this thread or in another. */
bool client_device_enter(struct client_device *device, struct error *err);
void client_device_leave(struct client_device *device);

/** Takes the memory of the device of which the daemon sent a descriptor. */
bool client_device_import(
    struct client_device *device, struct device_arena *arena, int descriptor, struct error *err);

/** Maps memory at the arena's window. Makes a window if it has none. */
bool client_device_map_window(struct client_device *device, struct device_arena *arena,
    CUmemGenericAllocationHandle handle, struct error *err);

/** Lets streams write the flags, which begin here, and wait for the words behind them. */
bool client_device_register(struct client_device *device, struct device_arena *arena, void *flags,
    uint64_t size, struct error *err);

/** Finds a batch's arena in the reply. False: the reply says nonsense. The flags and words are in
 * `host`, and are not registered yet. */
bool client_device_read(adtopk_context *context, const struct client_reply *reply, unsigned batch,
    const struct client_mapping *host, struct device_arena *arena);

/** Gives back what an arena has, for the thread whose context is the device's. */
void client_device_drop(struct client_device *device, struct device_arena *arena);

/** Gives back what beside.c keeps, when no stream waits any more. */
void client_beside_clear(struct client_device *device);

/** The place of a tensor among those of its batch. */
uint32_t client_device_place(const adtopk_context *context, uint32_t tensor);

#endif
