/*
 * sum: several contributions into one, as a node does with what its peers sent.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/merge.h"
#include "kernels/cpu/scatter.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"

#define LISTS_MAX 256

/* One row's contributions. */
struct sum {
    uint64_t n;
    double density;
    unsigned count;
    struct sparse list[LISTS_MAX];
    struct sparse merged;
    float *dense;
    struct view view;
};

/* ((l0 + l1) + l2) + ... */
static void run_merge(struct sum *sum)
{
    const struct parallel alone = {0};
    size_t cursor[LISTS_MAX];
    struct merge merge = {.list = sum->list,
        .lists = sum->count,
        .positions = sum->n,
        .scale = 1,
        .out = &sum->merged,
        .cursor = cursor,
        .parts = 1};

    merge_run(&merge, &alone);
}

/* ... and the dense form of it. */
static void run_scatter(struct sum *sum)
{
    const struct parallel alone = {0};

    scatter_dense(sum->dense, &sum->view, &sum->merged, &alone);
}

/* The floor of both: reading all lists once. */
static void run_read(struct sum *sum)
{
    volatile uint64_t sink; /* what was read is needed */
    uint64_t all = 0;

    for (unsigned i = 0; i < sum->count; i++) {
        all ^= data_read(sum->list[i].position, sum->list[i].count * sizeof(uint32_t));
        all ^= data_read(sum->list[i].value, sum->list[i].count * sizeof(float));
    }
    sink = all;
    (void)sink;
}

static const struct variant {
    const char *name;
    void (*run)(struct sum *sum);
} variants[] = {
    {"merge", run_merge},
    {"scatter", run_scatter},
};

#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static double time_of(void (*run)(struct sum *sum), struct sum *sum)
{
    const uint64_t begin = clock_ns();

    run(sum);
    return clock_us_between(begin, clock_ns());
}

static bool sum_fill(struct sum *sum)
{
    const uint64_t k = data_share(sum->n, sum->density);
    const uint64_t most = sum->count * k < sum->n ? sum->count * k : sum->n;

    for (unsigned i = 0; i < sum->count; i++) {
        if (!data_list(&sum->list[i], sum->n, sum->n, k, i + 1)) {
            return false;
        }
    }
    sum->merged = (struct sparse){.position = malloc(most * sizeof(uint32_t)),
        .value = malloc(most * sizeof(float)),
        .capacity = most};
    if (sum->merged.position == NULL || sum->merged.value == NULL) {
        return false;
    }
    sum->view = (struct view){.fibres = 1, .length = sum->n, .stride = 1};
    sum->dense = data_map(sum->n * sizeof(float));
    return sum->dense != NULL;
}

static void sum_free(struct sum *sum)
{
    for (unsigned i = 0; i < LISTS_MAX; i++) {
        data_list_free(&sum->list[i]);
    }
    data_list_free(&sum->merged);
    data_unmap(sum->dense, sum->n * sizeof(float));
}

static bool measure(
    struct perf *perf, struct sum *sum, struct series times[VARIANTS], struct series *floors)
{
    const uint64_t all = perf->options.warmup + perf->options.iterations;
    bool ok = true;

    for (uint64_t i = 0; i < all && ok && !stop_requested(); i++) {
        double time = time_of(run_read, sum);
        const bool counts = i >= perf->options.warmup;

        ok = !counts || series_add(floors, time);
        for (size_t v = 0; v < VARIANTS && ok; v++) {
            time = time_of(variants[v].run, sum);
            ok = !counts || series_add(&times[v], time);
        }
    }
    return ok;
}

static enum adtopk_status report_sum(struct perf *perf, const struct sum *sum, const char *variant,
    const struct series *times, const struct series *floors, struct error *err)
{
    char input[32];
    const struct row row = {.benchmark = perf->benchmark,
        .variant = variant,
        .input = input,
        .size = sum->n * sizeof(float),
        .count = sum->n,
        .type = "f32",
        .density = sum->density,
        .alg_bytes = (double)(sum->n * sizeof(float)),
        .bus_bytes = (double)sum->count * (double)sum->list[0].count * 8,
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = times,
        .floor_name = "read",
        .floor = floors,
        .paired = true};

    (void)snprintf(input, sizeof(input), "%u lists", sum->count);
    return perf_row(perf, &row, err);
}

static enum adtopk_status one_sum(
    struct perf *perf, uint64_t n, double density, unsigned count, struct error *err)
{
    struct series times[VARIANTS] = {0};
    struct series floors = {0};
    struct sum *sum = calloc(1, sizeof(*sum));
    enum adtopk_status status = ADTOPK_OK;

    if (sum == NULL) {
        return perf_no_memory(err, sizeof(*sum));
    }
    sum->n = n;
    sum->density = density;
    sum->count = count;
    if (!sum_fill(sum) || !measure(perf, sum, times, &floors)) {
        status = perf_no_memory(err, n * sizeof(float));
    }
    for (size_t v = 0; v < VARIANTS; v++) {
        if (status == ADTOPK_OK) {
            status = report_sum(perf, sum, variants[v].name, &times[v], &floors, err);
        }
        series_free(&times[v]);
    }
    series_free(&floors);
    sum_free(sum);
    free(sum);
    return status;
}

static bool measure_dense(const struct perf *perf, float *acc, const float *x, uint64_t n,
    struct series *times, struct floor_race *race)
{
    for (uint64_t i = 0; i < perf->options.iterations && !stop_requested(); i++) {
        uint64_t begin;

        if (!floor_sample(race, acc, x, DTYPE_F32, n, NULL)) {
            return false;
        }
        begin = clock_ns();
        dense_add(acc, x, n);
        if (!series_add(times, clock_us_between(begin, clock_ns()))) {
            return false;
        }
    }
    return true;
}

/* One dense contribution into the sum. */
static enum adtopk_status one_dense(struct perf *perf, uint64_t n, struct error *err)
{
    const size_t size = n * sizeof(float);
    struct series times = {0};
    struct floor_race race = {0};
    struct row row = {.benchmark = perf->benchmark,
        .variant = "dense-add",
        .input = "",
        .size = size,
        .count = n,
        .type = "f32",
        .density = 1,
        .alg_bytes = (double)size,
        .bus_bytes = 3 * (double)size,
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = &times,
        .paired = true};
    float *acc = data_map(size);
    float *x = data_map(size);
    enum adtopk_status status = ADTOPK_OK;

    if (acc == NULL || x == NULL || !measure_dense(perf, acc, x, n, &times, &race)) {
        status = perf_no_memory(err, 2 * size);
    } else {
        status = floor_report(perf, &row, &race, err);
    }
    if (status == ADTOPK_OK) {
        status = perf_row(perf, &row, err);
    }
    data_unmap(acc, size);
    data_unmap(x, size);
    series_free(&times);
    floor_free(&race);
    return status;
}

static enum adtopk_status all_lists(struct perf *perf, uint64_t n, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t d = 0; d < options->densities.count; d++) {
        for (size_t i = 0; i < options->lists.count; i++) {
            status = one_sum(
                perf, n, options->densities.value[d], (unsigned)options->lists.value[i], err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

enum adtopk_status sum_run(struct perf *perf, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t size = options->min; size > 0 && status == ADTOPK_OK && !stop_requested();
         size = perf_next_size(options, size)) {
        perf_progress(perf, "lists", size, 0);
        status = all_lists(perf, size / sizeof(float), err);
        if (status == ADTOPK_OK && !stop_requested()) {
            status = one_dense(perf, size / sizeof(float), err);
        }
    }
    perf_progress_end(perf);
    return status;
}
