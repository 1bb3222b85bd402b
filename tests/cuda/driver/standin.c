/* The library itself: its set-up, its devices, its context, and calls that are to fail. */
#include "tests/cuda/driver/standin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_MEMORY (UINT64_C(1) << 30)
#define GRANULE (UINT64_C(2) << 20)
#define VERSION 12040
#define NAMES_MAX 128

#define STACKED_MAX 8

struct CUctx_st {
    int device;
    unsigned users;       /* of cuDevicePrimaryCtxRetain() */
    struct timespec made; /* by the clock of files */
    CUresult poison;
};

static struct standin state;
static CUcontext primary;                            /* made */
static _Thread_local CUcontext context;              /* current */
static _Thread_local CUcontext stacked[STACKED_MAX]; /* below the current one */
static _Thread_local unsigned stack;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of what counts calls */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;  /* of the thread whose call it is */
static _Thread_local unsigned depth;                      /* calls of this thread within calls */

struct standin *standin_state(void)
{
    return &state;
}

struct standin_turn standin_alone(void)
{
    if (depth++ == 0) {
        (void)pthread_mutex_lock(&turn);
    }
    return (struct standin_turn){.depth = depth};
}

void standin_done(const struct standin_turn *ignored)
{
    (void)ignored;
    if (--depth == 0) {
        (void)pthread_mutex_unlock(&turn);
    }
}

void standin_pause(void)
{
    (void)pthread_mutex_unlock(&turn);
    (void)usleep(50);
    (void)pthread_mutex_lock(&turn);
}

uint64_t standin_random(uint64_t below)
{
    state.random = state.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state.random >> 33) % below;
}

/* ------------------------------------------------------------------ calls that fail */

static unsigned count_call(const char *name)
{
    static struct {
        char name[48];
        unsigned count;
    } seen[NAMES_MAX];
    unsigned i = 0, count;

    (void)pthread_mutex_lock(&mutex);
    while (seen[i].count > 0 && strcmp(seen[i].name, name) != 0) {
        i++;
    }
    (void)snprintf(seen[i].name, sizeof(seen[i].name), "%s", name);
    count = ++seen[i].count;
    (void)pthread_mutex_unlock(&mutex);
    return count;
}

/* ADTOPK_TEST_CUDA_FAIL is "call:n:result,...": the n-th call of this name in each process fails;
 * with result "hang" it never returns. */
static bool is_gone(void)
{
    const char *gone = getenv("ADTOPK_TEST_CUDA_GONE"); /* "DEVICE:PATH" */
    const char *path = gone != NULL ? strchr(gone, ':') : NULL;

    return path != NULL && context != NULL && context->device == atoi(gone) &&
           access(path + 1, F_OK) == 0;
}

CUresult standin_called(const char *name)
{
    const char *at = getenv("ADTOPK_TEST_CUDA_FAIL");
    const unsigned count = count_call(name);

    if (is_gone()) {
        return CUDA_ERROR_UNKNOWN;
    }
    for (; at != NULL && at[0] != '\0'; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        char wanted[48] = "", result[16] = "";
        unsigned number = 0;

        if (sscanf(at, "%47[^:]:%u:%15[^,]", wanted, &number, result) != 3 ||
            strcmp(wanted, name) != 0 || number != count) {
            continue;
        }
        while (strcmp(result, "hang") == 0) {
            (void)pause();
        }
        return atoi(result);
    }
    if (!standin_may_call(name)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return strcmp(name, "cuInit") != 0 && strcmp(name, "cuDriverGetVersion") != 0 &&
                   !state.initialised
               ? CUDA_ERROR_NOT_INITIALIZED
               : CUDA_SUCCESS;
}

/* ADTOPK_TEST_CUDA_FAULT is a file. It is as if, when it was made, a client of MPS had had a fault.
 */
static bool has_fault(void)
{
    const char *path = getenv("ADTOPK_TEST_CUDA_FAULT");
    struct stat file;

    return path != NULL && stat(path, &file) == 0 &&
           (file.st_mtim.tv_sec > context->made.tv_sec ||
               (file.st_mtim.tv_sec == context->made.tv_sec &&
                   file.st_mtim.tv_nsec > context->made.tv_nsec));
}

/* The daemon leaves contexts to its workers. So do its variants for tests, adtopkd-NAME, and the
 * program that ADTOPK_TEST_CUDA_DAEMON names. */
static bool is_daemon(void)
{
    const char *named = getenv("ADTOPK_TEST_CUDA_DAEMON");

    return strncmp(program_invocation_short_name, "adtopkd", strlen("adtopkd")) == 0 ||
           (named != NULL && strcmp(program_invocation_short_name, named) == 0);
}

static CUresult called_for_context(const char *name)
{
    if (is_daemon()) {
        (void)fprintf(stderr, "the stand-in driver: %s in %s, which must have no context\n", name,
            program_invocation_short_name);
        abort();
    }
    return standin_called(name);
}

CUresult standin_called_in_context(const char *name)
{
    CUresult result = called_for_context(name);

    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (has_fault()) {
        standin_poison(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    if (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_FAILED) {
        standin_poison(result);
    }
    return context->poison != CUDA_SUCCESS ? context->poison : result;
}

void standin_poison(CUresult result)
{
    context->poison = result;
}

/* ------------------------------------------------------------------ set-up */

static uint64_t setting(const char *name, uint64_t standard)
{
    const char *value = getenv(name);

    return value != NULL ? strtoull(value, NULL, 10) : standard;
}

/* A device is named by its number, or by its UUID, whose last byte is the number. */
static long read_number(const char *at, char **end)
{
    static const char uuid[] = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0";
    const bool named = strncmp(at, uuid, sizeof(uuid) - 1) == 0;

    return named ? strtol(at + sizeof(uuid) - 1, end, 16) : strtol(at, end, 10);
}

/* CUDA_VISIBLE_DEVICES names devices, up to the first that is not there. */
static void find_visible(void)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    const int there = state.devices;

    for (int i = 0; i < STANDIN_DEVICES_MAX; i++) {
        state.number[i] = i;
    }
    state.devices = at != NULL ? 0 : there;
    while (at != NULL && state.devices < there) {
        char *end;
        const long number = read_number(at, &end);

        if (end == at || number < 0 || number >= there) {
            return;
        }
        state.number[state.devices++] = (int)number;
        at = *end == ',' ? end + 1 : end;
    }
}

static void set_up(void)
{
    const char *when = getenv("ADTOPK_TEST_CUDA_STREAMS");

    state.devices = (int)setting("ADTOPK_TEST_CUDA_DEVICES", 1);
    find_visible();
    state.memory = setting("ADTOPK_TEST_CUDA_MEMORY", DEVICE_MEMORY);
    state.context = setting("ADTOPK_TEST_CUDA_CONTEXT", 0);
    state.granule = setting("ADTOPK_TEST_CUDA_GRANULE", GRANULE);
    state.version = (int)setting("ADTOPK_TEST_CUDA_VERSION", VERSION);
    state.shares = setting("ADTOPK_TEST_CUDA_CONNECTIONS", 0) == 1;
    state.kernel_us = setting("ADTOPK_TEST_CUDA_KERNEL_US", 0);
    state.when = STANDIN_LATE;
    if (when != NULL && strcmp(when, "early") == 0) {
        state.when = STANDIN_EARLY;
    } else if (when != NULL && strncmp(when, "chance", 6) == 0) {
        state.when = STANDIN_CHANCE;
        state.random = strtoull(when + (when[6] == ':' ? 7 : 6), NULL, 10);
    }
}

CUresult cuInit(unsigned flags)
{
    CUresult result = standin_called("cuInit");

    if (result != CUDA_SUCCESS || flags != 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    set_up();
    state.initialised = state.devices > 0;
    return state.initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    set_up();
    *version = state.version;
    return standin_called("cuDriverGetVersion");
}

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "MPS client failed to connect to the MPS control daemon or the MPS server"},
    {CUDA_ERROR_MPS_RPC_FAILURE, "CUDA_ERROR_MPS_RPC_FAILURE",
        "the remote procedural call between the MPS server and the MPS client failed"},
    {CUDA_ERROR_MPS_SERVER_NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "MPS server is not ready to accept new MPS client requests"},
    {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "the hardware resources required to create MPS client have been exhausted"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

#define ERRORS (sizeof(errors) / sizeof(errors[0]))

CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < ERRORS; i++) {
        *name = errors[i].result == result ? errors[i].name : *name;
    }
    return *name != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < ERRORS; i++) {
        *text = errors[i].result == result ? errors[i].text : *text;
    }
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------ devices */

CUresult cuDeviceGetCount(int *count)
{
    *count = state.devices;
    return standin_called("cuDeviceGetCount");
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < state.devices ? standin_called("cuDeviceGet")
                                                   : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)snprintf(name, (size_t)length, "stand-in %d%s", state.number[device],
        getenv("ADTOPK_TEST_CUDA_MIG") != NULL ? " MIG 1g.5gb" : "");
    return standin_called("cuDeviceGetName");
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    (void)memset(uuid->bytes, 0xa0, sizeof(uuid->bytes));
    uuid->bytes[15] = (char)state.number[device];
    return standin_called("cuDeviceGetUuid_v2");
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = state.memory;
    return standin_called("cuDeviceTotalMem_v2");
}

/* As with the real one, contexts are shared where a control daemon has its pipe. */
static bool has_mps(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/control", folder != NULL ? folder : "");
    return folder != NULL && access(path, F_OK) == 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case 39: *value = 2048; break; /* MAX_THREADS_PER_MULTIPROCESSOR */
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        if (state.version < 12010) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *value = has_mps();
        break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = getenv("ADTOPK_TEST_CUDA_PRIVATE") == NULL;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return standin_called("cuDeviceGetAttribute");
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    *can = device != peer && getenv("ADTOPK_TEST_CUDA_APART") == NULL;
    return standin_called("cuDeviceCanAccessPeer");
}

/* ------------------------------------------------------------------ context and modules */

/* A driver takes no CU_CTX_MAP_HOST here, though cuCtxCreate() does. */
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    CUresult result = called_for_context("cuDevicePrimaryCtxSetFlags_v2");

    (void)device;
    return result == CUDA_SUCCESS && flags != CU_CTX_SCHED_BLOCKING_SYNC ? CUDA_ERROR_INVALID_VALUE
                                                                         : result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    STANDIN_ALONE;
    CUresult result = called_for_context("cuDevicePrimaryCtxRetain");

    if (result != CUDA_SUCCESS || (primary != NULL && primary->device != device)) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (primary == NULL) {
        primary = standin_take(device, state.context) ? calloc(1, sizeof(*primary)) : NULL;
        if (primary == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        (void)clock_gettime(CLOCK_REALTIME_COARSE, &primary->made);
    }
    primary->device = device;
    primary->users++;
    *made = primary;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext made)
{
    CUresult result = called_for_context("cuCtxSetCurrent");

    context = result == CUDA_SUCCESS ? made : context;
    return result;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = called_for_context("cuCtxGetDevice");

    *device = context != NULL ? context->device : -1;
    return context != NULL ? result : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent_v2(CUcontext made)
{
    CUresult result = called_for_context("cuCtxPushCurrent_v2");

    if (result != CUDA_SUCCESS || stack == STACKED_MAX) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    stacked[stack++] = context;
    context = made;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *popped)
{
    CUresult result = called_for_context("cuCtxPopCurrent_v2");

    if (stack == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *popped = context;
    context = stacked[--stack];
    return result;
}

CUresult cuCtxSynchronize(void)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuCtxSynchronize");

    if (result == CUDA_SUCCESS) {
        standin_drain_all();
        result = standin_called_in_context("after cuCtxSynchronize");
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    STANDIN_ALONE;
    CUresult result = called_for_context("cuDevicePrimaryCtxRelease_v2");

    if (primary == NULL || primary->device != device) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--primary->users > 0) {
        return result;
    }
    standin_drop_streams();
    standin_drop_memory();
    standin_give_back(device, state.context);
    free(primary);
    context = primary = NULL;
    return result;
}

int standin_device(void)
{
    return context->device;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)(uintptr_t)image;
    return image != NULL ? standin_called_in_context("cuModuleLoadData") : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    return standin_called_in_context("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    const char *without = getenv("ADTOPK_TEST_CUDA_WITHOUT"); /* a kernel that is not there */
    const struct standin_kernel *kernel = standin_kernels;
    CUresult result = standin_called_in_context("cuModuleGetFunction");

    (void)module;
    while (kernel->name != NULL && strcmp(kernel->name, name) != 0) {
        kernel++;
    }
    if (kernel->name == NULL || (without != NULL && strcmp(without, name) == 0)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = (CUfunction)(uintptr_t)kernel;
    return result;
}

/* Registers, as a compiler might have used them; no kernel has local memory. */
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    *value = attribute == 4 ? 80 : 0;
    return function != NULL ? standin_called_in_context("cuFuncGetAttribute")
                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, CUfunction function, int threads, size_t shared)
{
    *blocks = 768 / threads;
    return function != NULL && shared == 0
               ? standin_called_in_context("cuOccupancyMaxActiveBlocksPerMultiprocessor")
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
    void **arguments, void **extra)
{
    STANDIN_ALONE;
    const struct standin_launch launch = {.arguments = arguments[0],
        .grid = {grid_x, grid_y, grid_z},
        .block = {block_x, block_y, block_z},
        .shared = shared};
    const uint64_t threads = (uint64_t)block_x * block_y * block_z;
    CUresult result = standin_called_in_context("cuLaunchKernel");

    if (result == CUDA_SUCCESS && (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 ||
                                      threads > 1024 || extra != NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? standin_launch(stream, (const void *)function, &launch)
                                  : result;
}
