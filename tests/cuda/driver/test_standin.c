/*
 * The test library catches what it is there for: a host that touches device memory, a stream that
 * does not wait for another one, calls that fail, a context that is poisoned.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/driver.h"
#include "tests/cuda/driver/captures.h"
#include "tests/cuda/driver/small_kernels.h"

#define SIZE (2u << 20)
#define WORDS 1000u

static struct driver cuda;
static struct driver_device devices[DRIVER_DEVICES_MAX];
static CUcontext context;
static CUfunction add, fault;
static uint32_t *page; /* registered host memory */

static int open_context(const char *when, const char *fails)
{
    static const char image[1];
    struct error err;
    CUmodule module;
    unsigned count;

    (void)setenv("ADTOPK_TEST_CUDA_STREAMS", when, 1);
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", fails, 1);
    page = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED || driver_open(&cuda, &err) != ADTOPK_OK ||
           driver_list(&cuda, devices, &count, &err) != ADTOPK_OK ||
           cuda.cuDevicePrimaryCtxRetain(&context, devices[0].handle) != CUDA_SUCCESS ||
           cuda.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
           cuda.cuMemHostRegister_v2(page, SIZE, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
           cuda.cuModuleLoadData(&module, image) != CUDA_SUCCESS ||
           cuda.cuModuleGetFunction(&add, module, "small_add") != CUDA_SUCCESS ||
           cuda.cuModuleGetFunction(&fault, module, "small_fault") != CUDA_SUCCESS;
}

static int late(void **state)
{
    (void)state;
    return open_context("late", "");
}

static int early(void **state)
{
    (void)state;
    return open_context("early", "");
}

static int close_context(void **state)
{
    (void)state;
    (void)cuda.cuDevicePrimaryCtxRelease_v2(devices[0].handle);
    (void)munmap(page, SIZE);
    driver_close(&cuda);
    return 0;
}

static CUdeviceptr allocate(void)
{
    CUdeviceptr words = 0;

    assert_int_equal(cuda.cuMemAlloc_v2(&words, WORDS * sizeof(uint32_t)), CUDA_SUCCESS);
    return words;
}

static CUstream stream_new(void)
{
    CUstream stream = NULL;

    assert_int_equal(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

static CUresult launch(CUfunction function, CUdeviceptr words, uint32_t value, CUstream stream)
{
    struct small_add arguments = {.words = words, .count = WORDS, .value = value};
    void *list[] = {&arguments};

    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL);
}

/* ------------------------------------------------------------------ what it does */

static void test_runs_kernels(void **state)
{
    CUdeviceptr words = allocate();
    CUstream stream = stream_new();

    (void)state;
    page[0] = 5;
    assert_int_equal(
        cuda.cuMemsetD8Async(words, 0, WORDS * sizeof(uint32_t), stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemcpyHtoDAsync_v2(words, page, 4, stream), CUDA_SUCCESS);
    assert_int_equal(launch(add, words, 7, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, words, WORDS * 4, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamWriteValue32_v2(stream, (CUdeviceptr)(uintptr_t)(page + WORDS),
                         99, CU_STREAM_WRITE_VALUE_DEFAULT),
        CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 12);
    assert_int_equal(page[WORDS - 1], 7);
    assert_int_equal(page[WORDS], 99);
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = devices[0].handle},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = 0;

    assert_int_equal(cuda.cuMemAddressReserve(&address, SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemMap(address, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemSetAccess(address, SIZE, &access, 1), CUDA_SUCCESS);
    return address;
}

/* Two mappings of one memory, through a descriptor, as two processes would have them. */
static void test_shares_memory(void **state)
{
    const CUmemAllocationProp prop = driver_shared_memory(&devices[0]);
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr first, second;
    CUstream stream = stream_new();
    int fd;

    (void)state;
    assert_int_equal(cuda.cuMemCreate(&handle, SIZE, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(
        cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemImportFromShareableHandle(
                         &imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_SUCCESS);
    first = map(handle);
    second = map(imported);
    (void)close(fd);
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, second, 4, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 0xa5a5a5a5); /* new memory is not zero */
    assert_int_equal(launch(add, first, 1, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, second, 4, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 0xa5a5a5a6);
    assert_int_equal(cuda.cuMemUnmap(first, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAddressFree(first, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemRelease(imported), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemRelease(handle), CUDA_SUCCESS);
}

/* Two memories in one range of addresses, at places of the caller's choice. */
static void test_maps_into_a_range(void **state)
{
    const CUmemAllocationProp prop = driver_shared_memory(&devices[0]);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr window = 0;

    (void)state;
    assert_int_equal(cuda.cuMemCreate(&handle, SIZE, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAddressReserve(&window, 8 * SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemMap(window + 3 * SIZE, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_not_equal(cuda.cuMemMap(window + 3 * SIZE, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_not_equal(cuda.cuMemMap(window + 8 * SIZE, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemMap(window + 4 * SIZE, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_not_equal(cuda.cuMemAddressFree(window, 8 * SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemUnmap(window + 3 * SIZE, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemMap(window + 3 * SIZE, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemUnmap(window + 3 * SIZE, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemUnmap(window + 4 * SIZE, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAddressFree(window, 8 * SIZE), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemRelease(handle), CUDA_SUCCESS);
}

static void test_waits_for_a_word(void **state)
{
    CUdeviceptr word = (CUdeviceptr)(uintptr_t)(page + WORDS);
    CUstream waits = stream_new(), writes = stream_new();
    CUdeviceptr words = allocate();

    (void)state;
    page[WORDS] = 3;
    assert_int_equal(
        cuda.cuStreamWaitValue32_v2(waits, word, 4, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, words, 4, waits), CUDA_SUCCESS);
    assert_int_equal(
        cuda.cuMemsetD8Async(words, 0, WORDS * sizeof(uint32_t), writes), CUDA_SUCCESS);
    assert_int_equal(launch(add, words, 21, writes), CUDA_SUCCESS);
    assert_int_equal(
        cuda.cuStreamWriteValue32_v2(writes, word, 4, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(waits), CUDA_SUCCESS);
    assert_int_equal(page[0], 21);
}

/* ------------------------------------------------------------------ what it catches */

/* A copy of a word to host memory is no operation of the stream. */
static void test_waits_for_host_copies(void **state)
{
    CUdeviceptr words = allocate();
    CUstream stream = stream_new();

    (void)state;
    page[0] = page[WORDS] = 1;
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, words, 4, stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 1);
    assert_int_equal(
        cuda.cuMemcpyDtoHAsync_v2(page + WORDS, (CUdeviceptr)(uintptr_t)page, 4, stream),
        CUDA_SUCCESS);
    assert_int_equal(page[WORDS], 0xa5a5a5a5);
}

static void test_host_may_not_touch(void **state)
{
    CUdeviceptr words = allocate();
    int status = 0;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)*(volatile char *)(uintptr_t)words;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    /* A signal, or the end that a sanitizer makes of it. */
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static CUresult list_devices(void)
{
    struct error err;
    unsigned count;

    return driver_list(&cuda, devices, &count, &err) == ADTOPK_OK ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_UNKNOWN;
}

static CUresult retain_context(void)
{
    return cuda.cuDevicePrimaryCtxRetain(&context, devices[0].handle);
}

static CUresult ask_for_device(void)
{
    CUdevice device;

    return cuda.cuCtxGetDevice(&device);
}

static CUresult use_context(void)
{
    return cuda.cuCtxSetCurrent(context);
}

static CUresult make_stream(void)
{
    CUstream stream;

    return cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}

/* Whether a program of this name is aborted in the call. */
static bool is_aborted_as(const char *name, CUresult (*call)(void))
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        const struct rlimit no_core = {.rlim_cur = 0};

        program_invocation_short_name = (char *)(uintptr_t)name;
        (void)signal(SIGABRT, SIG_DFL);
        (void)setrlimit(RLIMIT_CORE, &no_core);
        _exit(call() == CUDA_SUCCESS ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_daemon_has_no_context(void **state)
{
    CUresult (*const calls[])(void) = {retain_context, use_context, ask_for_device, make_stream};

    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        assert_true(is_aborted_as("adtopkd", calls[i]));
        assert_true(is_aborted_as("adtopkd-points", calls[i]));
        assert_false(is_aborted_as("adtopk-device", calls[i]));
        assert_false(is_aborted_as("test_other", calls[i]));
        assert_int_equal(setenv("ADTOPK_TEST_CUDA_DAEMON", "test_other", 1), 0);
        assert_true(is_aborted_as("test_other", calls[i]));
        assert_int_equal(unsetenv("ADTOPK_TEST_CUDA_DAEMON"), 0);
    }
    assert_false(is_aborted_as("adtopkd", list_devices));
}

/* Without the event, a late stream copies what is not there yet. */
static uint32_t copied_beside(bool with_event)
{
    CUdeviceptr words = allocate();
    CUstream computes = stream_new(), copies = stream_new();
    CUevent event;

    assert_int_equal(cuda.cuMemsetD8Async(words, 0, 4, computes), CUDA_SUCCESS);
    assert_int_equal(launch(add, words, 9, computes), CUDA_SUCCESS);
    assert_int_equal(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    assert_int_equal(cuda.cuEventRecord(event, computes), CUDA_SUCCESS);
    if (with_event) {
        assert_int_equal(cuda.cuStreamWaitEvent(copies, event, 0), CUDA_SUCCESS);
    }
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, words, 4, copies), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(copies), CUDA_SUCCESS);
    assert_int_equal(cuda.cuEventDestroy_v2(event), CUDA_SUCCESS);
    return page[0];
}

static void test_missing_event(void **state)
{
    (void)state;
    assert_int_equal(copied_beside(true), 9);
    assert_int_not_equal(copied_beside(false), 9);
}

static void test_early_streams_hide_it(void **state)
{
    (void)state;
    assert_int_equal(copied_beside(false), 9);
}

/* A stream that nobody waits for has done nothing, and a word says so. */
static void test_missing_wait(void **state)
{
    CUdeviceptr words = allocate();
    CUstream stream = stream_new();

    (void)state;
    page[0] = 1;
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, words, 4, stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 1);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
    assert_int_equal(page[0], 0xa5a5a5a5);
}

static void test_poisoned(void **state)
{
    CUdeviceptr words = allocate();
    CUstream stream = stream_new();

    (void)state;
    assert_int_equal(launch(fault, words, 0, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(launch(add, words, 0, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuda.cuMemFree_v2(words), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int third_launch_fails(void **state)
{
    (void)state;
    return open_context("late", "cuMemFree_v2:1:1,cuLaunchKernel:3:719");
}

static void test_nth_call_fails(void **state)
{
    CUdeviceptr words = allocate();
    CUstream stream = stream_new();

    (void)state;
    assert_int_equal(launch(add, words, 0, stream), CUDA_SUCCESS);
    assert_int_equal(launch(add, words, 0, stream), CUDA_SUCCESS);
    assert_int_equal(launch(add, words, 0, stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
}

static void test_out_of_memory(void **state)
{
    CUdeviceptr words;

    (void)state;
    assert_int_equal(cuda.cuMemAlloc_v2(&words, devices[0].memory), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAlloc_v2(&words, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static int small_device(void **state)
{
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "8388608", 1);
    return late(state);
}

static void test_unregistered_memory(void **state)
{
    CUdeviceptr words = allocate();
    uint32_t own = 0;

    (void)state;
    assert_int_equal(
        cuda.cuMemcpyDtoHAsync_v2(&own, words, 4, stream_new()), CUDA_ERROR_INVALID_VALUE);
}

/* The driver locks whole pages, each once. */
static void test_registers_once(void **state)
{
    uint8_t *const bytes = (uint8_t *)page;

    (void)state;
    assert_int_not_equal(
        cuda.cuMemHostRegister_v2(bytes + 4096, 4096, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemHostUnregister(bytes), CUDA_SUCCESS);
    assert_int_equal(
        cuda.cuMemHostRegister_v2(bytes, 4100, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
    assert_int_not_equal(
        cuda.cuMemHostRegister_v2(bytes + 5000, 64, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
    assert_int_equal(
        cuda.cuMemHostRegister_v2(bytes + 8192, 64, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
}

/* A stream writes to memory that the device reaches, and waits for nothing else. */
static void test_words(void **state)
{
    static uint32_t unknown;
    CUstream stream = stream_new();
    const CUdeviceptr words = allocate();
    const CUdeviceptr places[] = {words, (CUdeviceptr)(uintptr_t)page, words + 2,
        (CUdeviceptr)(uintptr_t)&unknown, (CUdeviceptr)(uintptr_t)page + SIZE};

    (void)state;
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const CUresult expected = i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

        assert_int_equal(
            cuda.cuStreamWriteValue32_v2(stream, places[i], 1, CU_STREAM_WRITE_VALUE_DEFAULT),
            expected);
        assert_int_equal(
            cuda.cuStreamWaitValue32_v2(stream, places[i], 1, CU_STREAM_WAIT_VALUE_GEQ), expected);
    }
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

static void test_no_context(void **state)
{
    CUdeviceptr words;

    (void)state;
    assert_int_equal(cuda.cuDevicePrimaryCtxRelease_v2(devices[0].handle), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAlloc_v2(&words, 4), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuda.cuDevicePrimaryCtxRetain(&context, devices[0].handle), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* A library in the same process, which has a user's context of its own for the length of a call. */
static void test_context_of_two(void **state)
{
    CUcontext second, popped;
    CUdevice device;
    CUdeviceptr words;

    (void)state;
    assert_int_equal(cuda.cuDevicePrimaryCtxRetain(&second, devices[0].handle), CUDA_SUCCESS);
    assert_ptr_equal(second, context);
    assert_int_equal(cuda.cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuda.cuCtxPushCurrent_v2(second), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxGetDevice(&device), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAlloc_v2(&words, 4), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemsetD8Async(words, 1, 4, NULL), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamQuery(NULL), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
    assert_ptr_equal(popped, second);
    assert_int_equal(cuda.cuMemAlloc_v2(&words, 4), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuda.cuDevicePrimaryCtxRelease_v2(devices[0].handle), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemAlloc_v2(&words, 4), CUDA_SUCCESS);
}

/* ---- memory of all processes ---- */

static size_t left_over(void)
{
    size_t left = 0, total = 0;

    assert_int_equal(cuda.cuMemGetInfo_v2(&left, &total), CUDA_SUCCESS);
    assert_int_equal(total, devices[0].memory);
    return left;
}

/* A process that opens a context, and allocates, when it is told to. It lives until it is killed.
 */
static pid_t start_another(int told, int tells)
{
    const pid_t pid = fork();
    char word = 0;

    if (pid == 0) {
        if (read(told, &word, 1) != 1 || open_context("early", "") != 0) {
            _exit(1);
        }
        (void)allocate();
        (void)!write(tells, &word, 1);
        for (;;) {
            (void)pause();
        }
    }
    return pid;
}

static int own_account(void **state)
{
    static char path[64];

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/adtopk-accounts-%d", (int)getpid());
    (void)setenv("ADTOPK_TEST_CUDA_ACCOUNTS", path, 1);
    (void)setenv("ADTOPK_TEST_CUDA_CONTEXT", "5000000", 1);
    return 0;
}

static int forget_account(void **state)
{
    (void)unlink(getenv("ADTOPK_TEST_CUDA_ACCOUNTS"));
    (void)unsetenv("ADTOPK_TEST_CUDA_ACCOUNTS");
    (void)unsetenv("ADTOPK_TEST_CUDA_CONTEXT");
    return close_context(state);
}

/* What is left says what contexts and allocations of all processes have. A process that was killed
 * has nothing. */
static void test_what_is_left(void **state)
{
    int there[2], back[2];
    size_t before;
    char word = 1;
    pid_t another;
    CUdeviceptr words;

    (void)state;
    assert_int_equal(pipe(there) + pipe(back), 0);
    another = start_another(there[0], back[1]);
    assert_int_equal(open_context("early", ""), 0);
    before = left_over();
    assert_int_equal(before, devices[0].memory - 5000000);
    words = allocate();
    assert_int_equal(left_over(), before - SIZE);
    assert_int_equal(write(there[1], &word, 1), 1);
    assert_int_equal(read(back[0], &word, 1), 1);
    assert_int_equal(left_over(), before - 2 * SIZE - 5000000);
    assert_int_equal(
        cuda.cuMemAlloc_v2(&words, devices[0].memory - 6000000), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(kill(another, SIGKILL), 0);
    assert_int_equal(waitpid(another, NULL, 0), another);
    assert_int_equal(left_over(), before - SIZE);
}

/* ---- captures ---- */

static void *call_beside(void *result)
{
    CUdeviceptr address;

    (void)cuda.cuCtxSetCurrent(context);
    *(CUresult *)result = cuda.cuMemAlloc_v2(&address, SIZE);
    return NULL;
}

static void *call_beside_relaxed(void *result)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    assert_int_equal(cuda.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    return call_beside(result);
}

/* What another thread's call returns during a capture in this mode, and what the capture does. */
static void assert_captures(int mode, void *(*call)(void *result), CUresult called, CUresult ended)
{
    CUresult result;
    CUstream stream;
    pthread_t thread;

    assert_int_equal(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(captures_begin(&cuda, stream, mode), CUDA_SUCCESS);
    assert_int_equal(pthread_create(&thread, NULL, call, &result), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(result, called);
    assert_int_equal(captures_end(&cuda, stream), ended);
    assert_int_equal(cuda.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static void test_captures(void **state)
{
    CUstream stream;

    (void)state;
    assert_captures(CU_STREAM_CAPTURE_MODE_GLOBAL, call_beside,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_captures(CU_STREAM_CAPTURE_MODE_GLOBAL, call_beside_relaxed, CUDA_SUCCESS, CUDA_SUCCESS);
    assert_captures(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, call_beside, CUDA_SUCCESS, CUDA_SUCCESS);
    assert_captures(CU_STREAM_CAPTURE_MODE_RELAXED, call_beside, CUDA_SUCCESS, CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(captures_begin(&cuda, stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamQuery(stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(captures_end(&cuda, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_runs_kernels, late, close_context),
        cmocka_unit_test_setup_teardown(test_shares_memory, late, close_context),
        cmocka_unit_test_setup_teardown(test_maps_into_a_range, late, close_context),
        cmocka_unit_test_setup_teardown(test_waits_for_a_word, late, close_context),
        cmocka_unit_test_setup_teardown(test_waits_for_host_copies, late, close_context),
        cmocka_unit_test_setup_teardown(test_host_may_not_touch, late, close_context),
        cmocka_unit_test_setup_teardown(test_daemon_has_no_context, late, close_context),
        cmocka_unit_test_setup_teardown(test_missing_event, late, close_context),
        cmocka_unit_test_setup_teardown(test_early_streams_hide_it, early, close_context),
        cmocka_unit_test_setup_teardown(test_missing_wait, late, close_context),
        cmocka_unit_test_setup_teardown(test_poisoned, late, close_context),
        cmocka_unit_test_setup_teardown(test_nth_call_fails, third_launch_fails, close_context),
        cmocka_unit_test_setup_teardown(test_unregistered_memory, late, close_context),
        cmocka_unit_test_setup_teardown(test_registers_once, late, close_context),
        cmocka_unit_test_setup_teardown(test_words, late, close_context),
        cmocka_unit_test_setup_teardown(test_no_context, late, close_context),
        cmocka_unit_test_setup_teardown(test_context_of_two, late, close_context),
        cmocka_unit_test_setup_teardown(test_what_is_left, own_account, forget_account),
        cmocka_unit_test_setup_teardown(test_captures, late, close_context),
        cmocka_unit_test_setup_teardown(test_out_of_memory, small_device, close_context),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
