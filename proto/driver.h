/*
 * NVIDIA's driver: the library, its calls, the devices.
 *
 * The library is opened at run time: `libcuda.so.1`, or the file that the variable
 * ADTOPK_CUDA_LIBRARY names. adtopkd makes calls that need no context: it lists devices and
 * allocates their memory. Device workers and trainers make the others.
 *
 * Errors are ARGUMENT where this node has no driver, or one that is too old, and SYSTEM where a
 * call failed: its name, the device and the driver's words. One thread at a time uses a struct
 * driver for opening and closing; calls may come from any thread.
 */
#ifndef ADTOPK_PROTO_DRIVER_H
#define ADTOPK_PROTO_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/cuda.h"
#include "proto/error.h"

#define DRIVER_MINIMUM 12000 /* CUDA 12.0: stream memory operations of version 2 */
#define DRIVER_DEVICES_MAX 64
#define DRIVER_UUID_SIZE 41 /* "GPU-" and 36 characters */
#define DRIVER_NAME_SIZE 96

struct driver {
    void *library; /* NULL: not open */
    int version;   /* 12040 is CUDA 12.4 */
#define DRIVER_MEMBER(name, parameters) CUresult(*name) parameters;
    DRIVER_CALLS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

/* Whether processes share a device's context by MPS. */
enum driver_mps { DRIVER_MPS_OFF, DRIVER_MPS_ON, DRIVER_MPS_UNKNOWN /* to an older driver */ };

/** A GPU, or an instance of one that MIG has divided. */
struct driver_device {
    CUdevice handle;
    char uuid[DRIVER_UUID_SIZE]; /* as nvidia-smi prints it */
    char name[DRIVER_NAME_SIZE];
    uint64_t memory;       /* bytes in all */
    unsigned major, minor; /* of its compute capability */
    unsigned multiprocessors;
    bool instance; /* of a GPU that MIG has divided */
    bool shares;   /* its memory can be shared by descriptor */
    enum driver_mps mps;
};

/** Opens and initialises the driver. On an error nothing is left open: ARGUMENT (this machine has
 * no driver, or one that is too old), SYSTEM (a call of the driver failed). */
enum adtopk_status driver_open(struct driver *driver, struct error *err);

/** Closes the library; a driver that is not open is allowed. */
void driver_close(struct driver *driver);

/** Lists the devices that this process may use, at most DRIVER_DEVICES_MAX. */
enum adtopk_status driver_list(const struct driver *driver,
    struct driver_device list[DRIVER_DEVICES_MAX], unsigned *count, struct error *err);

/** The index in a list of the device with this UUID, as nvidia-smi prints it; `count`: none. */
unsigned driver_index(const struct driver_device *list, unsigned count, const char *uuid);

/** The UUIDs of a list, as "GPU-..., GPU-..."; "no GPU" if it is empty. */
void driver_names(const struct driver_device *list, unsigned count, char text[ERROR_TEXT_SIZE]);

/** The sentence of a call that failed: "cuMemCreate on GPU-... (name): out of memory (...)". The
 * code is MEMORY where the device has no memory left, else SYSTEM. `device` may be NULL. */
enum adtopk_status driver_failed(const struct driver *driver, CUresult result, const char *call,
    const struct driver_device *device, struct error *err);

/** Makes a call; on failure fills `err` and yields its code. */
#define DRIVER_TRY(driver, device, err, call, ...)                                                 \
    driver_check(driver, (driver)->call(__VA_ARGS__), #call, device, err)

static inline enum adtopk_status driver_check(const struct driver *driver, CUresult result,
    const char *call, const struct driver_device *device, struct error *err)
{
    return result == CUDA_SUCCESS ? ADTOPK_OK : driver_failed(driver, result, call, device, err);
}

/** How memory on a device is made that other processes may map. */
CUmemAllocationProp driver_shared_memory(const struct driver_device *device);

#endif
