/* The worker's device: a context, the kernels, and the memory that the daemon shares. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/device/code.h"
#include "daemon/device/worker.h"

static const char *const worker_names[WORKER_KERNELS] = {
#define WORKER_NAME(name, parameter) [KERNEL_##name] = #name,
    CUDA_KERNELS(WORKER_NAME)
#undef WORKER_NAME
};

static bool worker_find_device(struct worker_state *state, const char *uuid)
{
    struct driver_device list[DRIVER_DEVICES_MAX];
    unsigned count, at;

    if (driver_list(&state->driver, list, &count, &state->error) != ADTOPK_OK) {
        return false;
    }
    at = driver_index(list, count, uuid);
    if (at < count) {
        state->device = list[at];
        return true;
    }
    (void)error_set(&state->error, ADTOPK_ERR_SYSTEM, "this node has no %s any more", uuid);
    return false;
}

static bool worker_load(struct worker_state *state)
{
    const struct driver *driver = &state->driver;
    CUmodule module;
    CUresult result = driver->cuModuleLoadData(&module, device_kernels);

    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
        (void)error_set(&state->error, ADTOPK_ERR_SYSTEM,
            "this build has no kernels that run on %s, compute capability %u.%u, with a driver for "
            "CUDA %d.%d",
            state->device.name, state->device.major, state->device.minor, driver->version / 1000,
            driver->version % 1000 / 10);
        return false;
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && !device_has_kernels()) {
        (void)error_set(&state->error, ADTOPK_ERR_SYSTEM,
            "this build has no device kernels: it was made without the CUDA toolkit (nvcc)");
        return false;
    }
    if (driver_check(driver, result, "cuModuleLoadData", &state->device, &state->error) !=
        ADTOPK_OK) {
        return false;
    }
    for (unsigned k = 0; k < WORKER_KERNELS; k++) {
        if (driver->cuModuleGetFunction(&state->kernel[k], module, worker_names[k]) !=
            CUDA_SUCCESS) {
            state->kernel[k] = NULL;
        }
    }
    return true;
}

/* Addresses for all parts, mapped later. */
static bool worker_reserve(struct worker_state *state)
{
    return WORKER_TRY(
        state, cuMemAddressReserve, &state->window, page_window(state->device.memory), 0, 0, 0);
}

/* The device's primary context, since NCCL knows no other. */
bool worker_enter(struct worker_state *state, const char *uuid)
{
    return driver_open(&state->driver, &state->error) == ADTOPK_OK &&
           worker_find_device(state, uuid) &&
           WORKER_TRY(state, cuDevicePrimaryCtxSetFlags_v2, state->device.handle,
               CU_CTX_SCHED_BLOCKING_SYNC) &&
           WORKER_TRY(state, cuDevicePrimaryCtxRetain, &state->context, state->device.handle) &&
           WORKER_TRY(state, cuCtxSetCurrent, state->context);
}

bool worker_open(struct worker_state *state)
{
    struct error none;

    if (nccl_open(&state->nccl, &none) != ADTOPK_OK) {
        (void)snprintf(state->no_nccl, sizeof(state->no_nccl), "%s", none.text);
    }
    return WORKER_TRY(state, cuStreamCreate, &state->stream, CU_STREAM_NON_BLOCKING) &&
           worker_load(state) && worker_reserve(state);
}

void worker_missing(const struct worker_state *state, char text[ERROR_TEXT_SIZE])
{
    int at = 0;

    text[0] = '\0';
    for (unsigned k = 0; k < WORKER_KERNELS && at < ERROR_TEXT_SIZE; k++) {
        if (state->kernel[k] == NULL) {
            at += snprintf(text + at, ERROR_TEXT_SIZE - (size_t)at, "%s%s", at > 0 ? ", " : "",
                worker_names[k]);
        }
    }
}

/* ------------------------------------------------------------------ memory */

uint64_t worker_left(const struct worker_state *state)
{
    size_t left = 0, total;

    return state->driver.cuMemGetInfo_v2(&left, &total) == CUDA_SUCCESS ? left : 0;
}

static bool worker_system_failed(struct worker_state *state, const char *call)
{
    (void)error_set(&state->error, ADTOPK_ERR_SYSTEM, "%s: %s", call, strerror(errno));
    return false;
}

static bool worker_check_release(struct worker_state *state)
{
    char release[PAGE_RELEASE_SIZE];

    if (strcmp(page_release(state->page, release), PAGE_RELEASE) == 0) {
        return true;
    }
    (void)error_set(&state->error, ADTOPK_ERR_PROTOCOL,
        "its program is of release %s, and adtopkd of %s: restart adtopkd", PAGE_RELEASE, release);
    return false;
}

bool worker_share(struct worker_state *state, int descriptor)
{
    struct stat info;

    if (fstat(descriptor, &info) != 0 || info.st_size != (off_t)sizeof(struct page)) {
        (void)error_set(&state->error, ADTOPK_ERR_PROTOCOL,
            "the page has not the size of this build's: restart adtopkd, which is of another one");
        return false;
    }
    state->page =
        mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (state->page == MAP_FAILED) {
        return worker_system_failed(state, "mmap of the page");
    }
    (void)close(descriptor);
    state->device.multiprocessors = state->page->multiprocessors;
    return worker_check_release(state) &&
           WORKER_TRY(state, cuMemHostRegister_v2, state->page, sizeof(struct page),
               CU_MEMHOSTREGISTER_DEVICEMAP) &&
           WORKER_TRY(state, cuMemHostGetDevicePointer_v2, &state->page_address, state->page, 0);
}

static bool worker_map_handle(struct worker_state *state, struct worker_arena *arena)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = state->device.handle},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return WORKER_TRY(state, cuMemMap, arena->address, arena->size, 0, arena->handle, 0) &&
           WORKER_TRY(state, cuMemSetAccess, arena->address, arena->size, &access, 1);
}

/* Where a part's mark is. */
static CUdeviceptr worker_mark_there(const struct worker_arena *arena)
{
    return arena->address + arena->size - sizeof(uint64_t);
}

/* Looks for a part's mark. Memory that has lost its content has not got it. */
static bool worker_look(
    struct worker_state *state, const struct worker_arena *arena, uint64_t mark, bool *found)
{
    const bool read = WORKER_TRY(state, cuMemcpyDtoHAsync_v2, &state->page->mark,
                          worker_mark_there(arena), sizeof(uint64_t), state->stream) &&
                      WORKER_TRY(state, cuStreamSynchronize, state->stream);

    *found = read && state->page->mark == mark;
    return read;
}

/* Zeros, with the mark behind them. */
static bool worker_begin(
    struct worker_state *state, const struct worker_arena *arena, uint64_t mark)
{
    state->page->mark = mark;
    return WORKER_TRY(state, cuMemsetD8Async, arena->address, 0, arena->size, state->stream) &&
           WORKER_TRY(state, cuMemcpyHtoDAsync_v2, worker_mark_there(arena), &state->page->mark,
               sizeof(uint64_t), state->stream) &&
           WORKER_TRY(state, cuStreamSynchronize, state->stream);
}

bool worker_map(
    struct worker_state *state, const struct message *message, int descriptor, bool *cleared)
{
    struct worker_arena *arena = &state->arena[message->arena % PAGE_ARENAS];
    bool mapped, found = true;

    *arena = (struct worker_arena){
        .address = state->window + message->place, .size = message->size, .pool = message->pool};
    mapped = WORKER_TRY(state, cuMemImportFromShareableHandle, &arena->handle,
                 (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
             worker_map_handle(state, arena);
    (void)close(descriptor);
    if (mapped && message->mark != 0 && message->fresh == 0) {
        mapped = worker_look(state, arena, message->mark, &found);
    }
    *cleared = message->fresh != 0 || !found;
    return mapped && (message->fresh == 0 || worker_begin(state, arena, message->mark));
}

bool worker_unmap(struct worker_state *state, uint32_t number)
{
    struct worker_arena *arena = &state->arena[number % PAGE_ARENAS];
    bool done;

    worker_drop_group(state, arena);
    done = WORKER_TRY(state, cuMemsetD8Async, arena->address, 0, arena->size, state->stream) &&
           WORKER_TRY(state, cuStreamSynchronize, state->stream) &&
           WORKER_TRY(state, cuMemUnmap, arena->address, arena->size) &&
           WORKER_TRY(state, cuMemRelease, arena->handle);
    *arena = (struct worker_arena){.address = 0};
    return done;
}
