/*
 * Streams: queues of operations, which run on the thread that waits for them, or early, or by
 * chance. An operation waits until those before it in its stream are done, and for what it names:
 * an event, or a word of memory. Nothing else orders two streams.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/driver/standin.h"

#define CHANCE_MOST 3u /* operations that one call may set going */
#define ARGUMENTS_MAX 4096u

enum kind { KERNEL, COPY, SET, WRITE_WORD, WAIT_WORD, RECORD, WAIT_EVENT, POLL };

struct operation {
    struct operation *next;
    uint64_t age; /* younger ones have larger numbers */
    enum kind kind;
    void *to;
    const void *from;
    uint64_t size;
    uint32_t value;
    CUevent event;
    uint64_t number;              /* RECORD, WAIT_EVENT: of the event's recordings */
    bool (*poll)(void *argument); /* POLL */
    void *argument;
    const struct standin_kernel *kernel;
    struct standin_launch launch;
    _Alignas(16) char arguments[];
};

struct CUstream_st {
    CUstream next;
    struct operation *first, **last;
    const void *captures; /* names the thread that began a capture; NULL: there is none */
    int mode;             /* of the capture */
    bool spoilt;
};

struct CUevent_st {
    uint64_t recorded, done;
    struct timespec when;
};

static uint64_t pushed; /* operations */
static _Thread_local int
    thread_mode; /* CU_STREAM_CAPTURE_MODE_GLOBAL; its address names the thread */
static CUstream streams;
static CUstream default_stream; /* NULL to callers; among `streams`, once it was used */

/* ------------------------------------------------------------------ running */

static bool may_run(const struct operation *operation)
{
    if (operation->kind == POLL) {
        bool done;

        standin_unlock();
        done = operation->poll(operation->argument);
        standin_lock();
        return done;
    }
    if (operation->kind == WAIT_EVENT) {
        return operation->event->done >= operation->number;
    }
    if (operation->kind == WAIT_WORD) {
        const uint32_t there = atomic_load((_Atomic uint32_t *)operation->to);

        return (int32_t)(there - operation->value) >= 0;
    }
    return true;
}

/* A kernel that takes longer than it does on this processor. */
static void linger(void)
{
    const uint64_t us = standin_state()->kernel_us;
    const struct timespec time = {
        .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};

    (void)nanosleep(&time, NULL);
}

static void run(struct operation *operation)
{
    CUresult result;

    switch (operation->kind) {
    case KERNEL:
        operation->launch.arguments = operation->arguments;
        linger();
        result = operation->kernel->run(&operation->launch);
        if (result != CUDA_SUCCESS) {
            standin_poison(result);
        }
        break;
    case COPY: (void)memcpy(operation->to, operation->from, operation->size); break;
    case SET: (void)memset(operation->to, (int)operation->value, operation->size); break;
    case WRITE_WORD: atomic_store((_Atomic uint32_t *)operation->to, operation->value); break;
    case RECORD:
        operation->event->done = operation->number;
        (void)clock_gettime(CLOCK_MONOTONIC, &operation->event->when);
        break;
    case WAIT_WORD:
    case WAIT_EVENT:
    case POLL: break;
    }
}

/* The stream with the oldest operation. */
static CUstream oldest(CUstream stream)
{
    for (CUstream other = streams; other != NULL; other = other->next) {
        if (other->first != NULL &&
            (stream->first == NULL || other->first->age < stream->first->age)) {
            stream = other;
        }
    }
    return stream;
}

/* Runs the stream's first operation, or the oldest of all if streams share a connection to the
 * device; false: there is none, or it waits. */
static bool step(CUstream stream)
{
    struct operation *operation;

    stream = standin_state()->shares ? oldest(stream) : stream;
    operation = stream->first;
    if (operation == NULL || !may_run(operation)) {
        return false;
    }
    stream->first = operation->next;
    if (stream->first == NULL) {
        stream->last = &stream->first;
    }
    standin_unlock();
    run(operation);
    standin_lock();
    free(operation);
    return true;
}

/* Something of another stream, which the first one may wait for. */
static bool step_any(void)
{
    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        if (step(stream)) {
            return true;
        }
    }
    return false;
}

static void drain(CUstream stream)
{
    standin_unlock();
    while (stream->first != NULL) {
        if (!step(stream) && !step_any()) {
            standin_pause(); /* another process or thread writes the word */
        }
    }
    standin_lock();
}

void standin_drain_all(void)
{
    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        drain(stream);
    }
}

static unsigned stream_count(void)
{
    unsigned count = 0;

    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        count++;
    }
    return count;
}

static void run_some(void)
{
    uint64_t steps = standin_random(CHANCE_MOST + 1);

    for (uint64_t i = 0; i < steps; i++) {
        CUstream stream = streams;

        for (uint64_t skip = standin_random(stream_count()); skip > 0; skip--) {
            stream = stream->next;
        }
        (void)step(stream);
    }
}

/* ------------------------------------------------------------------ queueing */

static CUstream stream_new(void)
{
    CUstream stream = calloc(1, sizeof(*stream));

    if (stream != NULL) {
        stream->last = &stream->first;
        stream->next = streams;
        streams = stream;
    }
    return stream;
}

/* The stream that a caller means. */
static CUstream stream_of(CUstream stream)
{
    if (stream != NULL) {
        return stream;
    }
    default_stream = default_stream != NULL ? default_stream : stream_new();
    return default_stream;
}

/* What a stream captures goes into the graph. */
static CUresult push(CUstream meant, const struct operation *like, const void *arguments)
{
    const size_t size = arguments != NULL ? like->kernel->size : 0;
    struct operation *operation = calloc(1, sizeof(*operation) + size);
    CUstream stream = stream_of(meant);

    if (operation == NULL || stream == NULL) {
        free(operation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stream->captures != NULL) {
        free(operation);
        return CUDA_SUCCESS;
    }
    *operation = *like;
    operation->age = ++pushed;
    if (arguments != NULL) {
        (void)memcpy(operation->arguments, arguments, size);
    }
    *stream->last = operation;
    stream->last = &operation->next;
    if (standin_state()->when == STANDIN_EARLY) {
        while (step(stream)) {
        }
    } else if (standin_state()->when == STANDIN_CHANCE) {
        run_some();
    }
    return CUDA_SUCCESS;
}

CUresult standin_launch(
    CUstream stream, const struct standin_kernel *kernel, const struct standin_launch *launch)
{
    const struct operation operation = {.kind = KERNEL, .kernel = kernel, .launch = *launch};

    return kernel->size <= ARGUMENTS_MAX ? push(stream, &operation, launch->arguments)
                                         : CUDA_ERROR_INVALID_VALUE;
}

void standin_poll(CUstream stream, bool (*poll)(void *argument), void *argument)
{
    STANDIN_ALONE;
    const struct operation operation = {.kind = POLL, .poll = poll, .argument = argument};

    if (push(stream, &operation, NULL) != CUDA_SUCCESS) {
        abort();
    }
}

/* Real copies are asynchronous only from and to registered memory; here all must be. And from host
 * memory to host memory they never are: the call returns when the stream has got so far. */
static CUresult push_copy(CUstream stream, const struct operation *copy)
{
    CUresult result = push(stream, copy, NULL);

    if (result == CUDA_SUCCESS && copy->kind == COPY &&
        standin_is_registered(copy->to, copy->size) &&
        standin_is_registered(copy->from, copy->size)) {
        drain(stream_of(stream));
    }
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    STANDIN_ALONE;
    const struct operation operation = {
        .kind = COPY, .to = (void *)(uintptr_t)to, .from = from, .size = size};
    CUresult result = standin_called_in_context("cuMemcpyHtoDAsync_v2");

    if (result == CUDA_SUCCESS && !standin_is_registered(from, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? push_copy(stream, &operation) : result;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    STANDIN_ALONE;
    struct operation operation = {
        .kind = COPY, .to = to, .from = (const void *)(uintptr_t)from, .size = size};
    CUresult result = standin_called_in_context("cuMemcpyDtoHAsync_v2");

    if (result == STANDIN_SPOILT) {
        operation = (struct operation){.kind = SET, .to = to, .value = 0xff, .size = size};
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS && !standin_is_registered(to, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? push_copy(stream, &operation) : result;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    STANDIN_ALONE;
    const struct operation operation = {.kind = COPY,
        .to = (void *)(uintptr_t)to,
        .from = (const void *)(uintptr_t)from,
        .size = size};
    CUresult result = standin_called_in_context("cuMemcpyDtoDAsync_v2");

    return result == CUDA_SUCCESS ? push_copy(stream, &operation) : result;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
    STANDIN_ALONE;
    const struct operation operation = {
        .kind = SET, .to = (void *)(uintptr_t)to, .value = value, .size = size};
    CUresult result = standin_called_in_context("cuMemsetD8Async");

    return result == CUDA_SUCCESS ? push(stream, &operation, NULL) : result;
}

static CUresult word(
    CUstream stream, enum kind kind, CUdeviceptr address, uint32_t value, const char *call)
{
    const struct operation operation = {
        .kind = kind, .to = (void *)(uintptr_t)address, .value = value};
    CUresult result = standin_called_in_context(call);

    if (result == CUDA_SUCCESS && !standin_is_word(address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? push(stream, &operation, NULL) : result;
}

CUresult cuStreamWriteValue32_v2(
    CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    STANDIN_ALONE;
    return flags == CU_STREAM_WRITE_VALUE_DEFAULT
               ? word(stream, WRITE_WORD, address, value, "cuStreamWriteValue32_v2")
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamWaitValue32_v2(
    CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    STANDIN_ALONE;
    return flags == CU_STREAM_WAIT_VALUE_GEQ
               ? word(stream, WAIT_WORD, address, value, "cuStreamWaitValue32_v2")
               : CUDA_ERROR_NOT_SUPPORTED;
}

/* ------------------------------------------------------------------ captures */

/* NVIDIA names examples only, so these are all calls that may allocate, free, wait or ask. */
static const char *const unsafe[] = {"cuMemCreate", "cuMemRelease",
    "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap",
    "cuMemUnmap", "cuMemSetAccess", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2",
    "cuMemHostUnregister", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize",
    "cuStreamQuery", "cuEventDestroy_v2"};

static bool is_unsafe(const char *name)
{
    unsigned i = 0;

    while (i < sizeof(unsafe) / sizeof(unsafe[0]) && strcmp(unsafe[i], name) != 0) {
        i++;
    }
    return i < sizeof(unsafe) / sizeof(unsafe[0]);
}

/* Whether a capture forbids this thread the call. Nobody waits for the whole context meanwhile. */
static bool forbids(const struct CUstream_st *stream, const char *name)
{
    const bool others = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

    if (stream->captures == NULL || strcmp(name, "cuCtxSynchronize") == 0) {
        return stream->captures != NULL;
    }
    return is_unsafe(name) && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
           stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
           (others || stream->captures == &thread_mode);
}

bool standin_may_call(const char *name)
{
    bool may = true;

    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        if (forbids(stream, name)) {
            stream->spoilt = true;
            may = false;
        }
    }
    return may;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    STANDIN_ALONE;
    const int before = thread_mode;
    CUresult result = standin_called("cuThreadExchangeStreamCaptureMode");

    if (result != CUDA_SUCCESS || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuStreamBeginCapture_v2");

    if (result != CUDA_SUCCESS || stream == NULL || stream->captures != NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    stream->captures = &thread_mode;
    stream->mode = mode;
    stream->spoilt = false;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuStreamEndCapture");

    if (result != CUDA_SUCCESS || stream->captures != &thread_mode) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    stream->captures = NULL;
    *graph = stream->spoilt ? NULL : stream;
    return stream->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ streams and events */

CUresult cuStreamCreate(CUstream *made, unsigned flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuStreamCreate");
    CUstream stream;

    (void)flags;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    stream = stream_new();
    *made = stream;
    return stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuStreamDestroy_v2");
    CUstream *at = &streams;

    drain(stream);
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    free(stream);
    return result;
}

void standin_drop_streams(void)
{
    default_stream = NULL;
    while (streams != NULL) {
        CUstream stream = streams;

        streams = stream->next;
        while (stream->first != NULL) {
            struct operation *operation = stream->first;
            stream->first = operation->next;
            free(operation);
        }
        free(stream);
    }
}

CUresult cuStreamSynchronize(CUstream stream)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuStreamSynchronize");

    if (result == CUDA_SUCCESS) {
        drain(stream_of(stream));
        result = standin_called_in_context("after cuStreamSynchronize");
    }
    return result;
}

/* Whoever looks again and again has things happen, too. */
CUresult cuStreamQuery(CUstream meant)
{
    STANDIN_ALONE;
    CUstream stream = stream_of(meant);
    CUresult result = standin_called_in_context("cuStreamQuery");

    while (result == CUDA_SUCCESS && step(stream)) {
        result = standin_called_in_context("after cuStreamQuery");
    }
    return result == CUDA_SUCCESS && stream->first != NULL ? CUDA_ERROR_NOT_READY : result;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuEventCreate");

    (void)flags;
    *event = result == CUDA_SUCCESS ? calloc(1, sizeof(**event)) : NULL;
    return *event != NULL || result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    STANDIN_ALONE;
    standin_drain_all();
    free(event);
    return standin_called_in_context("cuEventDestroy_v2");
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    STANDIN_ALONE;
    const struct operation operation = {
        .kind = RECORD, .event = event, .number = event->recorded + 1};
    CUresult result = standin_called_in_context("cuEventRecord");

    if (result == CUDA_SUCCESS) {
        event->recorded++;
        result = push(stream, &operation, NULL);
    }
    return result;
}

/* How long this processor took. */
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    STANDIN_ALONE;
    if (begin->done == 0 || end->done < end->recorded) {
        return CUDA_ERROR_NOT_READY;
    }
    *ms = (float)(end->when.tv_sec - begin->when.tv_sec) * 1e3f +
          (float)(end->when.tv_nsec - begin->when.tv_nsec) * 1e-6f;
    return standin_called_in_context("cuEventElapsedTime");
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    STANDIN_ALONE;
    const struct operation operation = {
        .kind = WAIT_EVENT, .event = event, .number = event->recorded};
    CUresult result = standin_called_in_context("cuStreamWaitEvent");

    (void)flags;
    return result == CUDA_SUCCESS ? push(stream, &operation, NULL) : result;
}
