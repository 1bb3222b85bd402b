/*
 * From a selection on the device to the payload in host memory: the list is copied, and this thread
 * encodes it. (The daemon encodes the segments of a bucket side by side.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/payload.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/gpu.h"
#include "tests/gpu/measure.h"

#define ENTRIES 250000u
#define SHARE 100u /* elements for each entry */
#define SAMPLES 101u
#define WARMUP 5u
#define TARGET_US 60

struct selected {
    struct gpu gpu;
    size_t count;
    struct payload_shape shape;
    struct sparse list; /* where the copy comes */
    void *position, *value;
    struct payload_writer writer;
};

/* One position of each stretch of SHARE elements. */
static bool selected_make(struct selected *selected, struct error *err)
{
    const size_t count = selected->count, bytes = count * sizeof(float);
    struct sparse *list = &selected->list;

    selected->shape = (struct payload_shape){
        .view = {.fibres = 1, .length = count * SHARE, .stride = 1}, .max_count = count};
    *list = (struct sparse){
        .position = malloc(bytes), .value = malloc(bytes), .capacity = count, .count = count};
    if (list->position == NULL || list->value == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a list");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        list->position[i] = (uint32_t)(i * SHARE + i * 7919 % SHARE);
        list->value[i] = (float)(i % 1000) / 500 - 1;
    }
    selected->position = gpu_memory(&selected->gpu, bytes);
    selected->value = gpu_memory(&selected->gpu, bytes);
    if (selected->position == NULL || selected->value == NULL ||
        !gpu_put(&selected->gpu, selected->position, list->position, bytes) ||
        !gpu_put(&selected->gpu, selected->value, list->value, bytes)) {
        *err = selected->gpu.err;
        return false;
    }
    return true;
}

static bool selected_copy(struct selected *selected)
{
    const size_t bytes = selected->count * sizeof(float);

    return gpu_get(&selected->gpu, selected->list.position, selected->position, bytes) &&
           gpu_get(&selected->gpu, selected->list.value, selected->value, bytes);
}

/* As a policy has it that says nothing of indices and values. */
static bool selected_encode(struct selected *selected)
{
    const struct payload_header header = {.run = 1};

    if (payload_begin(&selected->writer, &header) != ADTOPK_OK ||
        payload_put_list(&selected->writer, &selected->shape, &selected->list, PAYLOAD_INDEX_AUTO,
            PAYLOAD_VALUE_BF16) != ADTOPK_OK) {
        return false;
    }
    payload_end(&selected->writer);
    return true;
}

static bool selected_sample(struct selected *selected, double *all, double *copy, struct error *err)
{
    const uint64_t begin = clock_ns();
    uint64_t copied;

    if (!selected_copy(selected)) {
        *err = selected->gpu.err;
        return false;
    }
    copied = clock_ns();
    if (!selected_encode(selected)) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "the list cannot be encoded");
        return false;
    }
    *copy = clock_us_between(begin, copied);
    *all = clock_us_between(begin, clock_ns());
    return true;
}

static bool selected_measure(struct selected *selected, unsigned samples, struct error *err)
{
    struct series all = {0}, copies = {0};
    bool ok = selected_make(selected, err);
    char what[64];

    for (unsigned i = 0; i < WARMUP + samples && ok; i++) {
        double time, copy;

        ok = selected_sample(selected, &time, &copy, err) &&
             (i < WARMUP || (measure_add(&all, time, err) && measure_add(&copies, copy, err)));
    }
    if (ok) {
        (void)snprintf(what, sizeof(what), "payload of %zu entries", selected->count);
        ok = figure_print_series(what, &all, &copies, TARGET_US);
        (void)printf("  the floor is the copy of the list alone; the payload has %zu bytes\n",
            selected->writer.size);
    }
    series_free(&all);
    series_free(&copies);
    return ok;
}

bool payload_measure(const struct measure *measure, struct error *err)
{
    struct selected selected = {.count = measure->brief ? ENTRIES / 100 : ENTRIES};
    bool ok;

    if (gpu_open(&selected.gpu, measure->device, err) != ADTOPK_OK) {
        return false;
    }
    (void)printf("%s\n", selected.gpu.name);
    ok = selected_measure(&selected, measure->brief ? 3 : SAMPLES, err);
    payload_free(&selected.writer);
    free(selected.list.position);
    free(selected.list.value);
    gpu_forget(&selected.gpu);
    gpu_close(&selected.gpu);
    return ok;
}
