/*
 * select: the pass over one tensor, or over all of a model's, against the r += g loops.
 *
 * Happy path, one turn: new gradients; every loop, and at last the pass, each from the residual of
 * this turn, which is copied back before; then what was selected leaves the residual. Only loops
 * and pass are timed (and the leaving, apart). Loops and pass go over all tensors of a model before
 * the next begins, so that each finds the caches as a training step would leave them.
 */
#include "tests/bench/perf/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/models.h"
#include "tests/bench/perf/peers.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/tensor.h"

#define CONVOLUTION 3 /* of [512, 512, 3, 3] */
#define CHANNELS 512
#define TENSORS_MAX 256 /* of a model */
#define PEER_TURNS 7    /* they are slow */

enum select_view { VIEW_GLOBAL, VIEW_ROWS, VIEW_CONVOLUTION, VIEW_COUNT };

const char *const select_view_names[] = {[VIEW_GLOBAL] = "global",
    [VIEW_ROWS] = "rows",
    [VIEW_CONVOLUTION] = "conv",
    [VIEW_COUNT] = NULL};

/* The samples of one tensor, or of all together. */
struct measured {
    struct series time, settle;
    struct floor_race race;
};

/* What is measured together. */
struct group {
    const char *name;
    struct tensor_kind kind;
    struct model_tensor shape[TENSORS_MAX]; /* a name only where it is a model's */
    unsigned count;
    struct tensor tensor[TENSORS_MAX];
    struct measured measured[TENSORS_MAX];
    struct measured all;
    struct team *team;
    struct journal *journals; /* one a thread */
};

static size_t journals_size(const struct group *group)
{
    return team_threads(group->team) * sizeof(struct journal);
}

static void measured_free(struct measured *measured)
{
    series_free(&measured->time);
    series_free(&measured->settle);
    floor_free(&measured->race);
}

static void group_close(struct group *group)
{
    for (unsigned t = 0; t < group->count; t++) {
        tensor_close(&group->tensor[t]);
        measured_free(&group->measured[t]);
    }
    measured_free(&group->all);
    data_unmap(group->journals, journals_size(group));
}

static bool group_open(struct group *group)
{
    bool ok;

    memset(group->tensor, 0, sizeof(group->tensor));
    memset(group->measured, 0, sizeof(group->measured));
    memset(&group->all, 0, sizeof(group->all));
    group->journals = data_map(journals_size(group));
    ok = group->journals != NULL;
    for (unsigned t = 0; t < group->count && ok && !stop_requested(); t++) {
        ok = tensor_open(
            &group->tensor[t], &group->kind, &group->shape[t].shape, team_threads(group->team));
    }
    return ok;
}

static void restore(struct group *group)
{
    for (unsigned t = 0; t < group->count; t++) {
        tensor_restore(&group->tensor[t]);
    }
}

static bool sample_floor(struct group *group, unsigned loop)
{
    double all = 0;
    bool ok = true;

    restore(group);
    for (unsigned t = 0; t < group->count && ok; t++) {
        const struct floor_work work = tensor_floor(&group->tensor[t]);
        const double time = floor_time(&work, loop, group->team);

        all += time;
        ok = series_add(&group->measured[t].race.time[loop], time);
    }
    return ok && series_add(&group->all.race.time[loop], all);
}

static bool sample_pass(struct group *group, bool counts)
{
    double all = 0;
    double settled = 0;
    bool ok = true;

    restore(group);
    for (unsigned t = 0; t < group->count && ok; t++) {
        const double time = tensor_pass(&group->tensor[t], group->team, group->journals);

        all += time;
        ok = !counts || series_add(&group->measured[t].time, time);
    }
    for (unsigned t = 0; t < group->count && ok; t++) {
        const double time = tensor_settle(&group->tensor[t]);

        settled += time;
        ok = !counts || series_add(&group->measured[t].settle, time);
    }
    return ok && (!counts || (series_add(&group->all.time, all) &&
                                 series_add(&group->all.settle, settled)));
}

static uint64_t elements(const struct group *group)
{
    uint64_t n = 0;

    for (unsigned t = 0; t < group->count; t++) {
        n += group->tensor[t].n;
    }
    return n;
}

static bool measure(const struct perf *perf, struct group *group)
{
    const uint64_t warmup = perf->options.warmup;
    bool ok = true;

    for (uint64_t turn = 0; turn < warmup + perf->options.iterations && ok && !stop_requested();
         turn++) {
        const bool counts = turn >= warmup;

        perf_progress(perf, group->name, elements(group) * dtype_size(group->kind.dtype),
            counts ? turn - warmup : 0);
        for (unsigned t = 0; t < group->count; t++) {
            tensor_turn(&group->tensor[t], turn);
        }
        for (unsigned loop = 0; loop < FLOOR_LOOPS && counts && ok; loop++) {
            ok = sample_floor(group, loop);
        }
        ok = ok && sample_pass(group, counts);
    }
    return ok;
}

/* The row of one tensor, or of all of them. */
static enum adtopk_status report_measured(struct perf *perf, const struct group *group,
    const struct measured *measured, const struct row *own, struct error *err)
{
    const struct tensor_kind *kind = &group->kind;
    const unsigned fastest = floor_fastest(&measured->race);
    struct row row = *own;

    row.benchmark = perf->benchmark;
    row.variant = group->name;
    row.input = data_names[kind->distribution];
    row.type = data_dtype_names[kind->dtype];
    row.threads = team_threads(group->team);
    row.ranks = kind->ranks;
    row.size = row.count * dtype_size(kind->dtype);
    row.alg_bytes = (double)row.size;
    row.bus_bytes = (double)(row.size * kind->ranks + 2 * row.count * sizeof(float));
    row.wire_bytes = row.nonzeros = row.target_us = NAN;
    row.time = &measured->time;
    row.settle = &measured->settle;
    row.floor_name = floor_loops[fastest].name;
    row.floor = &measured->race.time[fastest];
    row.paired = true;
    return perf_row(perf, &row, err);
}

static enum adtopk_status report_layers(
    struct perf *perf, const struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned t = 0; t < group->count && status == ADTOPK_OK; t++) {
        const struct tensor *tensor = &group->tensor[t];
        const struct row row = {.layer = group->shape[t].name,
            .count = tensor->n,
            .density = (double)tensor_selected(tensor) / (double)tensor->n};

        status = report_measured(perf, group, &group->measured[t], &row, err);
    }
    return status;
}

static enum adtopk_status report_group(
    struct perf *perf, const struct group *group, struct error *err)
{
    struct row row = {.count = elements(group), .density = group->kind.params.density};
    struct series times[PEERS_COUNT] = {0};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned p = 0; p < PEERS_COUNT && status == ADTOPK_OK; p++) {
        if (perf_has(perf->options.peers, p) && group->count == 1 && group->kind.ranks == 1) {
            status = peers_measure(
                p, &group->tensor[0], team_threads(group->team), PEER_TURNS, &times[p], err);
        }
        row.peer[p] = (struct row_peer){peers_names[p], &times[p]};
    }
    if (status == ADTOPK_OK) {
        status = report_measured(perf, group, &group->all, &row, err);
    }
    for (unsigned p = 0; p < PEERS_COUNT; p++) {
        series_free(&times[p]);
    }
    return status;
}

static enum adtopk_status one_group(struct perf *perf, struct group *group, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (!group_open(group) || !measure(perf, group)) {
        status = perf_no_memory(err, 16 * elements(group));
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
            while (group->count < TENSORS_MAX &&
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

enum adtopk_status select_run(struct perf *perf, struct error *err)
{
    const struct number_list *threads = &perf->options.threads;
    struct group *group = calloc(1, sizeof(*group));
    enum adtopk_status status = ADTOPK_OK;

    if (group == NULL) {
        return perf_no_memory(err, sizeof(*group));
    }
    for (size_t i = 0; i < threads->count && status == ADTOPK_OK && !stop_requested(); i++) {
        group->team = team_new((unsigned)threads->value[i]);
        if (group->team != NULL) {
            status = all_kinds(perf, group, err);
        } else {
            status =
                error_set(err, ADTOPK_ERR_SYSTEM, "cannot start %.0f threads", threads->value[i]);
        }
        team_free(group->team);
    }
    free(group);
    return status;
}
