/*
 * select: compensate, select exactly, update the residual, against the r += g loops.
 *
 * Every sample of a kernel and of the loops starts from the same residual, which is what a few
 * turns of the same gradient left; it is copied back before each, outside of the time. A kernel
 * that remembers something remembers what it learned a turn earlier.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"
#include "tests/bench/perf/kernels.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"

/* One row's tensor. */
struct tensor {
    struct turn turn;
    float *start;             /* the residual before every sample */
    void *state[KERNELS_MAX]; /* of the kernels that were asked for */
    double density;
    enum distribution distribution;
};

static size_t residual_size(const struct turn *turn)
{
    return turn->n * sizeof(*turn->residual);
}

static void tensor_free(struct tensor *tensor)
{
    struct turn *turn = &tensor->turn;

    data_unmap(turn->residual, residual_size(turn));
    data_unmap(tensor->start, residual_size(turn));
    data_unmap(turn->gradient, turn->n * dtype_size(turn->dtype));
    free(turn->out.position);
    free(turn->out.value);
    for (unsigned k = 0; k < KERNELS_MAX; k++) {
        if (tensor->state[k] != NULL) {
            kernel_table[k].drop(tensor->state[k]);
        }
    }
}

/* The elements of so many bytes, and how they are cut into fibres of at most `fibre`. */
static void tensor_shape(struct turn *turn, uint64_t size, uint64_t fibre)
{
    const uint64_t n = size / dtype_size(turn->dtype);
    const uint64_t length = fibre < n ? fibre : n;

    turn->view = (struct view){.fibres = n / length, .length = length, .stride = 1};
    turn->n = view_size(&turn->view);
}

static bool tensor_allocate(struct tensor *tensor)
{
    struct turn *turn = &tensor->turn;
    const uint64_t fibres = turn->view.fibres * turn->per_fibre;
    const uint64_t most = fibres > turn->k ? fibres : turn->k;

    turn->residual = data_map(residual_size(turn));
    tensor->start = data_map(residual_size(turn));
    turn->gradient = data_map(turn->n * dtype_size(turn->dtype));
    turn->out = (struct sparse){.position = malloc(most * sizeof(uint32_t)),
        .value = malloc(most * sizeof(float)),
        .capacity = most};
    return turn->residual != NULL && tensor->start != NULL && turn->gradient != NULL &&
           turn->out.position != NULL && turn->out.value != NULL;
}

static bool prepare_kernels(const struct perf *perf, struct tensor *tensor)
{
    bool ok = true;

    for (unsigned k = 0; kernel_table[k].name != NULL && ok; k++) {
        /* The first one also makes the residual. */
        if (k == 0 || perf_has(perf->options.kernels, k)) {
            tensor->state[k] = kernel_table[k].prepare(&tensor->turn);
            ok = tensor->state[k] != NULL;
        }
    }
    return ok;
}

/* Every kernel's first turn, from the residual that `start` holds: what it learns is one turn old
 * when the samples are taken. */
static void first_turns(const struct perf *perf, struct tensor *tensor)
{
    for (unsigned k = 0; kernel_table[k].name != NULL; k++) {
        if (perf_has(perf->options.kernels, k)) {
            memcpy(tensor->turn.residual, tensor->start, residual_size(&tensor->turn));
            kernel_table[k].run(&tensor->turn, tensor->state[k]);
        }
    }
}

/* `start` moves on by a turn of the first kernel. */
static void next_turn(struct tensor *tensor)
{
    struct turn *turn = &tensor->turn;

    memcpy(turn->residual, tensor->start, residual_size(turn));
    kernel_table[0].run(turn, tensor->state[0]);
    memcpy(tensor->start, turn->residual, residual_size(turn));
}

static void tensor_fill(const struct perf *perf, struct tensor *tensor)
{
    struct turn *turn = &tensor->turn;

    data_fill(turn->residual, turn->n, tensor->distribution, 1);
    data_store(turn->gradient, turn->dtype, turn->residual, turn->n);
    memset(tensor->start, 0, residual_size(turn));
    for (uint64_t i = 0; i < perf->options.warmup && !stop_requested(); i++) {
        next_turn(tensor);
    }
    first_turns(perf, tensor);
    next_turn(tensor);
}

/* Loops and kernels in turns: a machine that slows down slows both. */
static bool measure(
    struct perf *perf, struct tensor *tensor, struct floor_race *race, struct series *times)
{
    struct turn *turn = &tensor->turn;

    for (uint64_t i = 0; i < perf->options.iterations && !stop_requested(); i++) {
        perf_progress(perf, data_names[tensor->distribution], turn->n * dtype_size(turn->dtype), i);
        if (!floor_sample(
                race, turn->residual, turn->gradient, turn->dtype, turn->n, tensor->start)) {
            return false;
        }
        for (unsigned k = 0; kernel_table[k].name != NULL; k++) {
            uint64_t begin;

            if (!perf_has(perf->options.kernels, k)) {
                continue;
            }
            if (kernel_table[k].begin != NULL) {
                kernel_table[k].begin(tensor->state[k]);
            }
            memcpy(turn->residual, tensor->start, residual_size(turn));
            begin = clock_ns();
            kernel_table[k].run(turn, tensor->state[k]);
            if (!series_add(&times[k], clock_us_between(begin, clock_ns()))) {
                return false;
            }
        }
    }
    return true;
}

static enum adtopk_status report_kernels(struct perf *perf, const struct tensor *tensor,
    const struct floor_race *race, const struct series *times, struct error *err)
{
    const struct turn *turn = &tensor->turn;
    const uint64_t size = turn->n * dtype_size(turn->dtype);
    struct row row = {.benchmark = perf->benchmark,
        .input = data_names[tensor->distribution],
        .size = size,
        .count = turn->n,
        .type = data_dtype_names[turn->dtype],
        .density = tensor->density,
        .alg_bytes = (double)size,
        .bus_bytes = (double)(size + 2 * residual_size(turn)),
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .paired = true};
    enum adtopk_status status = floor_report(perf, &row, race, err);

    for (unsigned k = 0; kernel_table[k].name != NULL && status == ADTOPK_OK; k++) {
        row.variant = kernel_table[k].name;
        row.time = &times[k];
        status = perf_row(perf, &row, err);
    }
    return status;
}

static enum adtopk_status one_tensor(
    struct perf *perf, struct tensor *tensor, uint64_t size, struct error *err)
{
    struct floor_race race = {0};
    struct series times[KERNELS_MAX] = {0};
    enum adtopk_status status;

    tensor_shape(&tensor->turn, size, perf->options.fibre);
    tensor->turn.k = data_share(tensor->turn.n, tensor->density);
    tensor->turn.per_fibre = data_share(tensor->turn.view.length, tensor->density);
    if (!tensor_allocate(tensor) || !prepare_kernels(perf, tensor)) {
        status = perf_no_memory(err, 3 * size);
    } else {
        tensor_fill(perf, tensor);
        status = measure(perf, tensor, &race, times)
                     ? report_kernels(perf, tensor, &race, times, err)
                     : perf_no_memory(err, sizeof(double));
    }
    for (unsigned k = 0; k < KERNELS_MAX; k++) {
        series_free(&times[k]);
    }
    floor_free(&race);
    tensor_free(tensor);
    return status;
}

static enum adtopk_status all_sizes(struct perf *perf, const struct tensor *kind, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t size = options->min; size > 0; size = perf_next_size(options, size)) {
        for (size_t i = 0; i < options->densities.count; i++) {
            struct tensor tensor = *kind;

            tensor.density = options->densities.value[i];
            status = one_tensor(perf, &tensor, size, err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

enum adtopk_status select_run(struct perf *perf, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned d = 0; d < DATA_COUNT; d++) {
            const struct tensor kind = {
                .turn.dtype = (enum dtype)dtype, .distribution = (enum distribution)d};

            if (perf_has(perf->options.dtypes, dtype) && perf_has(perf->options.distributions, d)) {
                status = all_sizes(perf, &kind, err);
            }
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}
