/*
 * sum: several contributions into one, as a node does with what its peers sent.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/merge.h"
#include "kernels/cpu/scatter.h"
#include "kernels/cpu/stream.h"
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
    struct parallel parallel;
    size_t *cursor; /* scratch of the merge */
};

static uint64_t entries(const struct sum *sum)
{
    return sum->count * sum->list[0].count;
}

/* ((l0 + l1) + l2) + ..., as a list. */
static void run_merge(struct sum *sum)
{
    struct merge merge = {.list = sum->list,
        .lists = sum->count,
        .positions = sum->n,
        .scale = 1,
        .out = &sum->merged,
        .cursor = sum->cursor,
        .parts = merge_parts(sum->n, entries(sum), false, &sum->parallel)};

    merge_run(&merge, &sum->parallel);
}

/* The same as a dense array, without a list. */
static void run_scatter(struct sum *sum)
{
    struct merge merge = {.list = sum->list,
        .lists = sum->count,
        .positions = sum->n,
        .scale = 1,
        .dense = sum->dense,
        .cursor = sum->cursor,
        .parts = merge_parts(sum->n, entries(sum), true, &sum->parallel)};

    merge_run(&merge, &sum->parallel);
}

/* The list's dense form. */
static void run_dense(struct sum *sum)
{
    scatter_dense(sum->dense, &sum->view, &sum->merged, &sum->parallel);
}

/* Part p of so many parts of size bytes, in whole cache lines. */
static size_t cut(size_t size, unsigned p, unsigned parts)
{
    return p == parts ? size : size / 64 * p / parts * 64;
}

static void read_part(void *arg, unsigned p, unsigned thread)
{
    const struct sum *sum = arg;
    const unsigned parts = parallel_threads(&sum->parallel);
    volatile uint64_t sink; /* what was read is needed */
    uint64_t all = 0;

    (void)thread;
    for (unsigned i = 0; i < sum->count; i++) {
        const size_t size = sum->list[i].count * sizeof(uint32_t);
        const size_t first = cut(size, p, parts);
        const size_t length = cut(size, p + 1, parts) - first;

        all ^= data_read((const char *)sum->list[i].position + first, length);
        all ^= data_read((const char *)sum->list[i].value + first, length);
    }
    sink = all;
    (void)sink;
}

/* The floor of a merge: reading all lists once. */
static void run_read(struct sum *sum)
{
    parallel_for(&sum->parallel, read_part, sum, parallel_threads(&sum->parallel));
}

/* Large arrays past the caches, which is faster than memset(). */
static void clear_part(void *arg, unsigned p, unsigned thread)
{
    const struct sum *sum = arg;
    const unsigned parts = parallel_threads(&sum->parallel);
    const size_t end = cut(sum->n, p + 1, parts);
    static const float zero[8192];
    size_t step;

    (void)thread;
    for (size_t i = cut(sum->n, p, parts); i < end; i += step) {
        step = end - i < 8192 ? end - i : 8192;
        if (sum->n < STREAM_LEAST) {
            memset(sum->dense + i, 0, step * sizeof(float));
        } else {
            stream_scaled(sum->dense + i, zero, (unsigned)step, 1, sum->n);
        }
    }
}

/* The floor of the dense form: writing it once. */
static void run_clear(struct sum *sum)
{
    parallel_for(&sum->parallel, clear_part, sum, parallel_threads(&sum->parallel));
}

static const struct variant {
    const char *name;
    void (*run)(struct sum *sum);
    const char *floor_name;
    void (*floor)(struct sum *sum);
} variants[] = {
    {"merge", run_merge, "read", run_read},
    {"dense", run_dense, "clear", run_clear},
    {"scatter", run_scatter, "clear", run_clear},
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
    sum->cursor = calloc((size_t)MERGE_PARTS * sum->count, sizeof(*sum->cursor));
    sum->view = (struct view){.fibres = 1, .length = sum->n, .stride = 1};
    sum->dense = data_map(sum->n * sizeof(float));
    return sum->dense != NULL && sum->cursor != NULL;
}

static void sum_free(struct sum *sum)
{
    for (unsigned i = 0; i < LISTS_MAX; i++) {
        data_list_free(&sum->list[i]);
    }
    data_list_free(&sum->merged);
    free(sum->cursor);
    data_unmap(sum->dense, sum->n * sizeof(float));
}

static bool measure(const struct perf *perf, struct sum *sum, struct series times[VARIANTS],
    struct series floors[VARIANTS])
{
    const uint64_t all = perf->options.warmup + perf->options.iterations;
    bool ok = true;

    for (uint64_t i = 0; i < all && ok && !stop_requested(); i++) {
        for (size_t v = 0; v < VARIANTS && ok; v++) {
            const double floor = time_of(variants[v].floor, sum);
            const double time = time_of(variants[v].run, sum);

            ok = i < perf->options.warmup ||
                 (series_add(&floors[v], floor) && series_add(&times[v], time));
        }
    }
    return ok;
}

static enum adtopk_status report_sum(struct perf *perf, const struct sum *sum,
    const struct variant *variant, const struct series *times, const struct series *floors,
    struct error *err)
{
    const unsigned threads = parallel_threads(&sum->parallel);
    const double size = (double)(sum->n * sizeof(float));
    char input[32];
    const struct row row = {.benchmark = perf->benchmark,
        .variant = variant->name,
        .input = input,
        .size = sum->n * sizeof(float),
        .count = sum->n,
        .type = "f32",
        .density = sum->density,
        .threads = threads,
        .alg_bytes = size,
        .bus_bytes = variant->run == run_merge ? (double)entries(sum) * 8 : size,
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = times,
        .floor_name = variant->floor_name,
        .floor = floors,
        .paired = true};

    (void)snprintf(
        input, sizeof(input), threads > 1 ? "%u lists %u thr" : "%u lists", sum->count, threads);
    return perf_row(perf, &row, err);
}

static enum adtopk_status one_sum(struct perf *perf, const struct sum *kind, struct error *err)
{
    struct series times[VARIANTS] = {0};
    struct series floors[VARIANTS] = {0};
    struct sum *sum = malloc(sizeof(*sum));
    enum adtopk_status status = ADTOPK_OK;

    if (sum == NULL) {
        return perf_no_memory(err, sizeof(*sum));
    }
    *sum = *kind;
    if (!sum_fill(sum) || !measure(perf, sum, times, floors)) {
        status = perf_no_memory(err, sum->n * sizeof(float));
    }
    for (size_t v = 0; v < VARIANTS; v++) {
        if (status == ADTOPK_OK) {
            status = report_sum(perf, sum, &variants[v], &times[v], &floors[v], err);
        }
        series_free(&times[v]);
        series_free(&floors[v]);
    }
    sum_free(sum);
    free(sum);
    return status;
}

static bool measure_dense(const struct perf *perf, float *acc, const float *x, uint64_t n,
    struct series *times, struct floor_race *race)
{
    const void *const gradient = x;
    const struct floor_work work = {.r = acc, .g = &gradient, .count = 1, .n = n};

    for (uint64_t i = 0; i < perf->options.iterations && !stop_requested(); i++) {
        uint64_t begin;

        if (!floor_sample(race, &work)) {
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

static enum adtopk_status all_lists(
    struct perf *perf, uint64_t n, struct team *team, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < options->densities.count * options->lists.count; i++) {
        const struct sum kind = {.n = n,
            .density = options->densities.value[i / options->lists.count],
            .count = (unsigned)options->lists.value[i % options->lists.count],
            .parallel = team_parallel(team)};

        status = one_sum(perf, &kind, err);
        if (status != ADTOPK_OK || stop_requested()) {
            return status;
        }
    }
    return status;
}

/* All lists, on as many threads as asked for. */
static enum adtopk_status all_threads(struct perf *perf, uint64_t n, struct error *err)
{
    const struct number_list *threads = &perf->options.threads;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < threads->count && status == ADTOPK_OK && !stop_requested(); i++) {
        struct team *team = team_new((unsigned)threads->value[i]);

        status =
            team != NULL ? all_lists(perf, n, team, err) : perf_no_threads(err, threads->value[i]);
        team_free(team);
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
        status = all_threads(perf, size / sizeof(float), err);
        if (status == ADTOPK_OK && !stop_requested()) {
            status = one_dense(perf, size / sizeof(float), err);
        }
    }
    perf_progress_end(perf);
    return status;
}
