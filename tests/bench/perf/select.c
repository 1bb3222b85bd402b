/*
 * select: the pass over one tensor, or over all of a model's, against the r += g loops.
 */
#include "tests/bench/perf/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/group.h"
#include "tests/bench/perf/peers.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/select_gpu.h"
#include "tests/bench/perf/stop.h"

#define CONVOLUTION 3 /* of [512, 512, 3, 3] */
#define CHANNELS 512
#define PEER_TURNS 7 /* they are slow */

enum select_view { VIEW_GLOBAL, VIEW_ROWS, VIEW_CONVOLUTION, VIEW_COUNT };

const char *const select_view_names[] = {[VIEW_GLOBAL] = "global",
    [VIEW_ROWS] = "rows",
    [VIEW_CONVOLUTION] = "conv",
    [VIEW_COUNT] = NULL};

enum select_residual { RESIDUAL_F32, RESIDUAL_BF16, RESIDUAL_COUNT };

const char *const select_residual_names[] = {
    [RESIDUAL_F32] = "f32", [RESIDUAL_BF16] = "bf16", [RESIDUAL_COUNT] = NULL};

static enum adtopk_status report_layers(
    struct perf *perf, const struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned t = 0; t < group->count && status == ADTOPK_OK; t++) {
        const struct tensor *tensor = &group->tensor[t];
        const struct row row = {.layer = group->shape[t].name,
            .count = tensor->n,
            .density = (double)tensor_selected(tensor) / (double)tensor->n};

        status = group_row(perf, group, &group->measured[t], &row, err);
    }
    return status;
}

static enum adtopk_status report_group(
    struct perf *perf, const struct group *group, struct error *err)
{
    struct row row = {.count = group_elements(group), .density = group->kind.params.density};
    struct series times[PEERS_COUNT] = {0};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned p = 0; p < PEERS_COUNT && status == ADTOPK_OK; p++) {
        if (perf_has(perf->options.peers, p) && group->count == 1 && group->kind.ranks == 1 &&
            !group->kind.rounded && group->tensor[0].pass.k > 0) {
            status = peers_measure(
                p, &group->tensor[0], team_threads(group->team), PEER_TURNS, &times[p], err);
        }
        row.peer[p] = (struct row_peer){peers_names[p], &times[p]};
    }
    if (status == ADTOPK_OK) {
        status = group_row(perf, group, &group->all, &row, err);
    }
    for (unsigned p = 0; p < PEERS_COUNT; p++) {
        series_free(&times[p]);
    }
    return status;
}

static enum adtopk_status one_group(struct perf *perf, struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (!group_open(group) || (group->gpu == NULL && !group_measure(perf, group))) {
        status = perf_no_memory(err, 16 * group_elements(group));
    }
    if (group->gpu != NULL) {
        status = status == ADTOPK_OK ? select_gpu_group(perf, group, group->gpu, err) : status;
        group_close(group);
        return status;
    }
    if (status == ADTOPK_OK && perf->options.layers) {
        status = report_layers(perf, group, err);
    }
    if (status == ADTOPK_OK) {
        status = report_group(perf, group, err);
    }
    group_close(group);
    return status;
}

static enum adtopk_status all_densities(struct perf *perf, struct group *group, struct error *err)
{
    const struct number_list *densities = &perf->options.densities;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < densities->count && status == ADTOPK_OK && !stop_requested(); i++) {
        group->kind.params.density = densities->value[i];
        status = one_group(perf, group, err);
    }
    return status;
}

static enum adtopk_status all_models(struct perf *perf, struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    group->kind.sparsifier = sparsifier_find("adtopk");
    for (unsigned m = 0; models_names[m] != NULL && status == ADTOPK_OK && !stop_requested(); m++) {
        if (perf_has(perf->options.models, m)) {
            group->name = models_names[m];
            group->count = 0;
            while (group->count < GROUP_MAX &&
                   models_tensor(m, group->count, &group->shape[group->count])) {
                group->count++;
            }
            status = all_densities(perf, group, err);
        }
    }
    return status;
}

/* About n elements: the whole, rows of so many columns, or convolutions. */
static struct tensor_shape shape_of(enum select_view view, uint64_t n, uint64_t columns)
{
    const uint64_t kernel = CONVOLUTION * CONVOLUTION;
    const uint64_t channels = n / kernel < CHANNELS ? n / kernel : CHANNELS;

    if (view == VIEW_CONVOLUTION) {
        return (struct tensor_shape){
            .dims = 4, .size = {n / (channels * kernel), channels, CONVOLUTION, CONVOLUTION}};
    }
    columns = view == VIEW_GLOBAL || columns > n ? n : columns;
    return (struct tensor_shape){.dims = 2, .size = {n / columns, columns}};
}

static enum adtopk_status one_view(struct perf *perf, struct group *group, enum select_view view,
    uint64_t columns, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;
    char name[32];

    (void)snprintf(name, sizeof(name), view == VIEW_ROWS ? "%s%.0f" : "%s", select_view_names[view],
        (double)columns);
    group->name = name;
    group->count = 1;
    group->kind.sparsifier = sparsifier_find(view == VIEW_GLOBAL ? "topk" : "adtopk");
    for (uint64_t size = options->min; size > 0 && status == ADTOPK_OK && !stop_requested();
         size = perf_next_size(options, size)) {
        group->shape[0].shape = shape_of(view, size / dtype_size(group->kind.dtype), columns);
        status = all_densities(perf, group, err);
    }
    return status;
}

static enum adtopk_status all_views(struct perf *perf, struct group *group, struct error *err)
{
    const struct number_list *columns = &perf->options.columns;
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned v = 0; v < VIEW_COUNT; v++) {
        const size_t kinds = v == VIEW_ROWS ? columns->count : 1;

        for (size_t i = 0; i < kinds && perf_has(perf->options.views, v); i++) {
            status = one_view(perf, group, (enum select_view)v, (uint64_t)columns->value[i], err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

static enum adtopk_status all_kinds(struct perf *perf, struct group *group, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < DTYPE_COUNT * DATA_COUNT * options->ranks.count; i++) {
        const unsigned dtype = i / DATA_COUNT / (unsigned)options->ranks.count;
        const unsigned distribution = i / (unsigned)options->ranks.count % DATA_COUNT;

        if (!perf_has(options->dtypes, dtype) || !perf_has(options->distributions, distribution)) {
            continue;
        }
        group->kind.dtype = (enum dtype)dtype;
        group->kind.distribution = (enum distribution)distribution;
        group->kind.ranks = (unsigned)options->ranks.value[i % options->ranks.count];
        status = options->models != 0 ? all_models(perf, group, err) : all_views(perf, group, err);
        if (status != ADTOPK_OK || stop_requested()) {
            return status;
        }
    }
    return status;
}

static enum adtopk_status all_residuals(struct perf *perf, struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned r = 0; r < RESIDUAL_COUNT && status == ADTOPK_OK && !stop_requested(); r++) {
        if (perf_has(perf->options.residuals, r)) {
            group->kind.rounded = r == RESIDUAL_BF16;
            status = all_kinds(perf, group, err);
        }
    }
    return status;
}

static enum adtopk_status all_threads(struct perf *perf, struct group *group, struct error *err)
{
    const struct number_list *threads = &perf->options.threads;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < threads->count && status == ADTOPK_OK && !stop_requested(); i++) {
        group->team = team_new((unsigned)threads->value[i]);
        status = group->team != NULL ? all_residuals(perf, group, err)
                                     : perf_no_threads(err, threads->value[i]);
        team_free(group->team);
    }
    return status;
}

static enum adtopk_status on_gpu(
    struct perf *perf, struct group *group, struct gpu *gpu, struct error *err)
{
    enum adtopk_status status = select_gpu_check(&perf->options, err);

    if (status == ADTOPK_OK) {
        status = gpu_open(gpu, perf->options.device, err);
    }
    if (status == ADTOPK_OK) {
        group->gpu = gpu;
        report_device(perf->report, gpu->name);
        status = all_threads(perf, group, err);
        gpu_close(gpu);
    }
    return status;
}

enum adtopk_status select_run(struct perf *perf, struct error *err)
{
    struct group *group = calloc(1, sizeof(*group));
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    enum adtopk_status status;

    if (group == NULL || gpu == NULL) {
        status = perf_no_memory(err, sizeof(*group) + sizeof(*gpu));
    } else {
        status = perf->options.device != NULL ? on_gpu(perf, group, gpu, err)
                                              : all_threads(perf, group, err);
    }
    free(group);
    free(gpu);
    return status;
}
