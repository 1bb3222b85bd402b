/*
 * Device workers as the daemon starts them. What does a context take of the device? How long is an
 * order on its way there? How soon is the next worker ready when one was killed?
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/process.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/gpu.h"
#include "tests/gpu/measure.h"

#define JOB 1u
#define OWNER 1000u
#define WAIT_US (20 * UINT64_C(1000000))
#define PART (UINT64_C(4) << 20) /* bytes of residuals */

static void workers_wake(void *context)
{
    (void)context;
}

/* The device of the measurement, among those that the daemon sees. */
static struct device *workers_open(const struct measure *measure, unsigned *gpu, struct error *err)
{
    const struct device_config config = {.wake = workers_wake};
    struct driver_device wanted;
    char name[GPU_NAME];
    struct device *device;

    if (gpu_find(measure->device, &wanted, name, err) != ADTOPK_OK) {
        return NULL;
    }
    device = device_create(&config, err);
    if (device != NULL) {
        *gpu = driver_index(device->gpu, device->gpus, wanted.uuid);
        (void)printf("%s\n", name);
    }
    return device;
}

/* ------------------------------------------------------------------ what a context takes */

bool context_measure(const struct measure *measure, struct error *err)
{
    struct device_info info;
    unsigned gpu;
    struct device *device = workers_open(measure, &gpu, err);

    if (device == NULL) {
        return false;
    }
    (void)device_info(device, gpu, &info);
    if (info.context == 0) {
        (void)printf("what a context takes is not known\n");
    } else {
        figure_print(&(struct figure){
            "context of a worker", "MiB", (double)info.context / (1 << 20), NAN, NAN});
    }
    device_destroy(device);
    return true;
}

/* ------------------------------------------------------------------ from the page to the device */

#define POST_SAMPLES 501u
#define POST_BYTES 64u
#define POST_TARGET_US 20
#define ASLEEP_US 20000 /* a worker that has nothing to do sleeps by then */

/* A worker without a feeder, and this process with a context of its own. */
struct post {
    struct worker worker;
    uint32_t posted;
    struct gpu gpu;
    CUdeviceptr word, memory; /* the first word of gpu.staging; what is cleared */
    volatile uint32_t *seen;
};

/* The entry's kernel has run, and the stream has said so. */
static bool post_await(struct post *post, uint64_t begin, struct error *err)
{
    while (!page_is_done(post->worker.page, post->posted)) {
        if (clock_ns() - begin > WAIT_US * 1000) {
            if (process_listen(&post->worker, 0, err) == ADTOPK_OK) {
                (void)error_set(err, ADTOPK_ERR_SYSTEM, "the worker does nothing");
            }
            return false;
        }
    }
    return true;
}

/* As the feeder does (feed.c). */
static bool post_entry(struct post *post, enum page_command command, double *us, struct error *err)
{
    const struct message wake = {.type = MESSAGE_WAKE};
    const uint64_t begin = clock_ns();
    struct page *page = post->worker.page;

    page->entry[(post->posted + 1) % PAGE_ENTRIES] =
        (struct page_entry){.command = command, .size = POST_BYTES};
    atomic_store(&page->tail, ++post->posted);
    if (atomic_load(&page->worker_asleep) != 0) {
        (void)message_send(post->worker.socket, &wake, -1);
    }
    if (!post_await(post, begin, err)) {
        return false;
    }
    *us = clock_us_between(begin, clock_ns());
    return true;
}

/* The same calls of the driver, made here. */
static bool post_floor(struct post *post, double *us, struct error *err)
{
    const struct driver *driver = &post->gpu.driver;
    const uint64_t begin = clock_ns();
    const uint32_t next = *post->seen + 1;
    CUresult result = driver->cuMemsetD8Async(post->memory, 0, POST_BYTES, post->gpu.stream);

    if (result == CUDA_SUCCESS) {
        result = driver->cuStreamWriteValue32_v2(
            post->gpu.stream, post->word, next, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    while (*post->seen != next && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)) {
        result = driver->cuStreamQuery(post->gpu.stream);
    }
    *us = clock_us_between(begin, clock_ns());
    return driver_check(driver, result, "cuMemsetD8Async", &post->gpu.device, err) == ADTOPK_OK;
}

static bool post_open(
    struct post *post, struct device *device, unsigned gpu, const char *which, struct error *err)
{
    double ignored;

    post->worker = (struct worker){
        .device = device, .gpu = gpu, .owner = OWNER, .socket = -1, .page_descriptor = -1};
    if (gpu_open(&post->gpu, which, err) != ADTOPK_OK) {
        return false;
    }
    post->seen = post->gpu.staging;
    post->memory = (CUdeviceptr)(uintptr_t)gpu_memory(&post->gpu, POST_BYTES);
    *err = post->gpu.err;
    return post->memory != 0 &&
           DRIVER_TRY(&post->gpu.driver, &post->gpu.device, err, cuMemHostGetDevicePointer_v2,
               &post->word, post->gpu.staging, 0) == ADTOPK_OK &&
           process_start(&post->worker, err) == ADTOPK_OK &&
           post_entry(post, PAGE_ROOM, &ignored, err);
}

static bool post_sample(
    struct post *post, bool awake, const struct measure *measure, struct error *err)
{
    const unsigned samples = measure->brief ? 5 : awake ? POST_SAMPLES : POST_SAMPLES / 5;
    struct series times = {0}, floors = {0};
    double time, floor;
    bool ok = true;

    for (unsigned i = 0; i < samples && ok; i++) {
        ok = post_floor(post, &floor, err);
        if (ok && awake) {
            ok = post_entry(post, PAGE_CLEAR, &time, err); /* so that the next one finds it awake */
        } else {
            (void)usleep(ASLEEP_US);
        }
        ok = ok && post_entry(post, PAGE_CLEAR, &time, err) && measure_add(&times, time, err) &&
             measure_add(&floors, floor, err);
    }
    ok = ok && figure_print_series(awake ? "post to the end of a first kernel, awake"
                                         : "post to the end of a first kernel, asleep",
                   &times, &floors, POST_TARGET_US);
    series_free(&times);
    series_free(&floors);
    return ok;
}

bool post_measure(const struct measure *measure, struct error *err)
{
    static struct post post;
    unsigned gpu;
    struct device *device = workers_open(measure, &gpu, err);
    bool ok;

    if (device == NULL) {
        return false;
    }
    ok = post_open(&post, device, gpu, measure->device, err) &&
         post_sample(&post, true, measure, err) && post_sample(&post, false, measure, err);
    process_end(&post.worker, false);
    gpu_forget(&post.gpu);
    gpu_close(&post.gpu);
    device_destroy(device);
    return ok;
}

/* ------------------------------------------------------------------ a worker that is killed */

#define RESTARTS 9u
#define RESTART_TARGET_MS 3000

/* The next event, for which nobody waits longer than WAIT_US from `begin` on. */
static bool restart_take(
    struct device *device, uint64_t begin, struct device_event *event, struct error *err)
{
    *event = (struct device_event){.text = ""};
    while (!device_take(device, event)) {
        if (clock_ns() - begin > WAIT_US * 1000) {
            (void)error_set(err, ADTOPK_ERR_SYSTEM, "nothing is heard of the worker");
            return false;
        }
        (void)usleep(100);
    }
    return true;
}

/* The feeder says that its worker is ready. */
static bool restart_await(struct device *device, struct error *err)
{
    const uint64_t begin = clock_ns();
    struct device_event event;

    do {
        if (!restart_take(device, begin, &event, err)) {
            return false;
        }
    } while (strstr(event.text, "is ready") == NULL);
    return true;
}

/* A batch without orders: workers that fail without a batch in between count together. */
static bool restart_settle(struct device *device, struct engine_batch *batch, struct error *err)
{
    const uint64_t begin = clock_ns();
    struct device_event event;

    engine_cuda.submit(device, batch);
    do {
        if (!restart_take(device, begin, &event, err)) {
            return false;
        }
    } while (event.type != DEVICE_DONE && event.type != DEVICE_LOST);
    if (event.type == DEVICE_LOST) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "the worker's memory was lost");
    }
    return event.type == DEVICE_DONE;
}

static bool restart_sample(
    struct device *device, struct engine_batch *batch, struct series *times, struct error *err)
{
    struct device_worker_info info;
    uint64_t begin;

    if (!restart_settle(device, batch, err)) {
        return false;
    }
    if (!device_worker_info(device, 0, &info) || info.pid <= 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "the worker does not run");
        return false;
    }
    begin = clock_ns();
    (void)kill(info.pid, SIGKILL);
    return restart_await(device, err) &&
           measure_add(times, clock_us_between(begin, clock_ns()) * 1e-3, err);
}

static bool restart_samples(
    struct device *device, unsigned restarts, struct series *times, struct error *err)
{
    const struct device_part part = {
        .job = JOB, .owner = OWNER, .shards = 1, .size = PART, .residuals = true};
    const struct engine_memory memory = {.job = JOB, .shards = 1, .batches = 1};
    struct device_left left = {.store = 0};
    struct engine_batch batch;
    bool ok = engine_batch_init(&batch, &memory, 1, 1) &&
              device_open_part(device, &part, &left, err) == ADTOPK_OK &&
              restart_await(device, err);

    for (unsigned i = 0; i < restarts && ok; i++) {
        ok = restart_sample(device, &batch, times, err);
    }
    engine_batch_free(&batch);
    return ok;
}

bool restart_measure(const struct measure *measure, struct error *err)
{
    struct series times = {0};
    struct summary summary;
    unsigned gpu;
    struct device *device = workers_open(measure, &gpu, err);
    bool ok;

    if (device == NULL) {
        return false;
    }
    ok = restart_samples(device, measure->brief ? 2 : RESTARTS, &times, err) &&
         series_summarise(&times, &summary);
    if (ok) {
        figure_print(&(struct figure){"SIGKILL to the next worker, ready: median", "ms",
            summary.median, NAN, RESTART_TARGET_MS});
        figure_print(&(struct figure){"SIGKILL to the next worker, ready: longest", "ms",
            summary.max, NAN, RESTART_TARGET_MS});
    }
    device_stop(device);
    device_drop_part(device, JOB, 0);
    device_destroy(device);
    series_free(&times);
    return ok;
}
