#include "proto/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define LIBRARY_VARIABLE "ADTOPK_CUDA_LIBRARY"
#define VISIBLE_VARIABLE "CUDA_VISIBLE_DEVICES"

/* Where each call of the library goes in struct driver. */
static const struct driver_symbol {
    const char *name;
    size_t offset;
} driver_symbol[] = {
#define DRIVER_SYMBOL(name, parameters) {#name, offsetof(struct driver, name)},
    DRIVER_CALLS(DRIVER_SYMBOL)
#undef DRIVER_SYMBOL
};

#define SYMBOLS (sizeof(driver_symbol) / sizeof(driver_symbol[0]))

static const char *driver_library(void)
{
    const char *named = getenv(LIBRARY_VARIABLE);

    return named != NULL && named[0] != '\0' ? named : LIBRARY;
}

static enum adtopk_status driver_find_calls(struct driver *driver, struct error *err)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        void *found = dlsym(driver->library, driver_symbol[i].name);

        if (found == NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "the NVIDIA driver %.100s has no %s: adtopk needs one for CUDA %d.%d or later",
                driver_library(), driver_symbol[i].name, DRIVER_MINIMUM / 1000,
                DRIVER_MINIMUM % 1000 / 10);
        }
        (void)memcpy((char *)driver + driver_symbol[i].offset, &found, sizeof(found));
    }
    return ADTOPK_OK;
}

static enum adtopk_status driver_check_version(struct driver *driver, struct error *err)
{
    enum adtopk_status status = DRIVER_TRY(driver, NULL, err, cuDriverGetVersion, &driver->version);

    if (status == ADTOPK_OK && driver->version < DRIVER_MINIMUM) {
        status = error_set(err, ADTOPK_ERR_ARGUMENT,
            "the NVIDIA driver on this node is for CUDA %d.%d, and adtopk needs one for CUDA %d.%d "
            "or later",
            driver->version / 1000, driver->version % 1000 / 10, DRIVER_MINIMUM / 1000,
            DRIVER_MINIMUM % 1000 / 10);
    }
    return status;
}

static enum adtopk_status driver_initialise(struct driver *driver, struct error *err)
{
    const char *visible = getenv(VISIBLE_VARIABLE);
    CUresult result = driver->cuInit(0);

    if (result == CUDA_ERROR_NO_DEVICE && visible != NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM,
            "cuInit finds no GPU, and " VISIBLE_VARIABLE " is \"%.100s\": it hides those that it "
            "does not name",
            visible);
    }
    return driver_check(driver, result, "cuInit", NULL, err);
}

enum adtopk_status driver_open(struct driver *driver, struct error *err)
{
    enum adtopk_status status;

    *driver = (struct driver){.library = dlopen(driver_library(), RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "this node has no NVIDIA driver: %.200s", dlerror());
    }
    status = driver_find_calls(driver, err);
    if (status == ADTOPK_OK) {
        status = driver_check_version(driver, err); /* which works before cuInit() */
    }
    if (status == ADTOPK_OK) {
        status = driver_initialise(driver, err);
    }
    if (status != ADTOPK_OK) {
        driver_close(driver);
    }
    return status;
}

void driver_close(struct driver *driver)
{
    if (driver->library != NULL) {
        (void)dlclose(driver->library);
    }
    *driver = (struct driver){.library = NULL};
}

/* ------------------------------------------------------------------ errors */

/* Some errors come from what other users or processes do. The hint says what to look at. */
static const char *driver_hint(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return ": another process has the GPU to itself, or its compute mode is prohibited "
               "(nvidia-smi -q -d COMPUTE)";
    case CUDA_ERROR_NOT_PERMITTED: return ": it may be a GPU of another user";
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
        return ": no MPS control daemon of this user listens in CUDA_MPS_PIPE_DIRECTORY";
    case CUDA_ERROR_MPS_RPC_FAILURE:
        return ": the MPS server has ended, as it does when a client of it has a fault";
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
        return ": MPS serves one user at a time, and may still have clients of another one";
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED: return ": end other processes on this GPU";
    default: return "";
    }
}

enum adtopk_status driver_failed(const struct driver *driver, CUresult result, const char *call,
    const struct driver_device *device, struct error *err)
{
    const char *name = NULL, *text = NULL;

    (void)driver->cuGetErrorName(result, &name);
    (void)driver->cuGetErrorString(result, &text);
    return error_set(err,
        result == CUDA_ERROR_OUT_OF_MEMORY ? ADTOPK_ERR_MEMORY : ADTOPK_ERR_SYSTEM,
        "%s%s%s%s%s%s: %s (%s, %d)%s", call, device != NULL ? " on " : "",
        device != NULL ? device->uuid : "", device != NULL ? " (" : "",
        device != NULL ? device->name : "", device != NULL ? ")" : "",
        text != NULL ? text : "an error that the driver does not explain",
        name != NULL ? name : "unknown", result, driver_hint(result));
}

/* ------------------------------------------------------------------ devices */

static void driver_print_uuid(const CUuuid *uuid, bool instance, char text[DRIVER_UUID_SIZE])
{
    int at = snprintf(text, DRIVER_UUID_SIZE, "%s-", instance ? "MIG" : "GPU");

    for (unsigned i = 0; i < sizeof(uuid->bytes); i++) {
        const char *gap = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";

        at += snprintf(text + at, DRIVER_UUID_SIZE - (size_t)at, "%s%02x", gap,
            (unsigned)(unsigned char)uuid->bytes[i]);
    }
}

static enum adtopk_status driver_attribute(const struct driver *driver,
    const struct driver_device *device, int attribute, unsigned *value, struct error *err)
{
    int found = 0;
    enum adtopk_status status =
        DRIVER_TRY(driver, device, err, cuDeviceGetAttribute, &found, attribute, device->handle);

    *value = found > 0 ? (unsigned)found : 0;
    return status;
}

static enum driver_mps driver_ask_mps(
    const struct driver *driver, const struct driver_device *device)
{
    int found = 0;

    if (driver->cuDeviceGetAttribute(&found, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device->handle) !=
        CUDA_SUCCESS) {
        return DRIVER_MPS_UNKNOWN;
    }
    return found != 0 ? DRIVER_MPS_ON : DRIVER_MPS_OFF;
}

static enum adtopk_status driver_describe(
    const struct driver *driver, struct driver_device *device, struct error *err)
{
    const struct {
        int attribute;
        unsigned *value;
    } wanted[] = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &device->major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &device->minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->multiprocessors}};
    unsigned shares = 0;
    size_t memory = 0;
    enum adtopk_status status =
        DRIVER_TRY(driver, device, err, cuDeviceTotalMem_v2, &memory, device->handle);

    device->memory = memory;
    for (unsigned i = 0; status == ADTOPK_OK && i < 3; i++) {
        status = driver_attribute(driver, device, wanted[i].attribute, wanted[i].value, err);
    }
    if (status == ADTOPK_OK) {
        status = driver_attribute(driver, device,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &shares, err);
    }
    device->shares = shares != 0;
    device->mps = driver_ask_mps(driver, device);
    return status;
}

static enum adtopk_status driver_look_at(
    const struct driver *driver, int ordinal, struct driver_device *device, struct error *err)
{
    CUuuid uuid;
    enum adtopk_status status;

    *device = (struct driver_device){.uuid = "a GPU"};
    status = DRIVER_TRY(driver, NULL, err, cuDeviceGet, &device->handle, ordinal);
    if (status == ADTOPK_OK) {
        status = DRIVER_TRY(driver, NULL, err, cuDeviceGetName, device->name,
            (int)sizeof(device->name) - 1, device->handle);
    }
    if (status == ADTOPK_OK) {
        status = DRIVER_TRY(driver, device, err, cuDeviceGetUuid_v2, &uuid, device->handle);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    device->instance = strstr(device->name, " MIG ") != NULL;
    driver_print_uuid(&uuid, device->instance, device->uuid);
    return driver_describe(driver, device, err);
}

enum adtopk_status driver_list(const struct driver *driver,
    struct driver_device list[DRIVER_DEVICES_MAX], unsigned *count, struct error *err)
{
    int there = 0;
    enum adtopk_status status = DRIVER_TRY(driver, NULL, err, cuDeviceGetCount, &there);

    *count = 0;
    for (int i = 0; status == ADTOPK_OK && i < there && i < DRIVER_DEVICES_MAX; i++) {
        status = driver_look_at(driver, i, &list[i], err);
        *count += status == ADTOPK_OK;
    }
    return status;
}

unsigned driver_index(const struct driver_device *list, unsigned count, const char *uuid)
{
    unsigned index = 0;

    while (index < count && strcmp(list[index].uuid, uuid) != 0) {
        index++;
    }
    return index;
}

void driver_names(const struct driver_device *list, unsigned count, char text[ERROR_TEXT_SIZE])
{
    int at = snprintf(text, ERROR_TEXT_SIZE, "%s", count == 0 ? "no GPU" : "");

    /* Four names fit into a sentence. */
    for (unsigned i = 0; i < count && i < 4; i++) {
        at += snprintf(
            text + at, ERROR_TEXT_SIZE - (size_t)at, "%s%s", i > 0 ? ", " : "", list[i].uuid);
    }
    if (count > 4) {
        (void)snprintf(text + at, ERROR_TEXT_SIZE - (size_t)at, " and %u more", count - 4);
    }
}

CUmemAllocationProp driver_shared_memory(const struct driver_device *device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->handle}};
}
