/*
 * cluster: jobs of ranks that a launcher started on several machines, through the daemons that run
 * there.
 *
 * Happy path: all ranks join one job and find out which of them share a node. Then each rank trains
 * alone, each pair of nodes exchanges data, and last all ranks together, once per size and
 * density. After each part the ranks tell each other what they measured, and rank 0 reports it.
 *
 * Failures: all errors of the client library. A daemon whose control socket does not answer leaves
 * its figures out.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/cluster_judge.h"
#include "tests/bench/perf/cluster_links.h"
#include "tests/bench/perf/cluster_trial.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/training.h"

#define ALONE_BYTES (UINT64_C(1) << 20)
#define ALONE_STEPS 15
#define SPARSE 0.01

/* What the ranks tell each other after a row, and their places. */
enum {
    ROW_TIME,
    ROW_WIRE,
    ROW_NONZEROS,
    ROW_BUSY,
    ROW_PHASES,
    ROW_FIGURES = ROW_PHASES + TOLD_PHASES
};

/* Of one node: from the largest row of each kind. */
struct cluster_node {
    double number, encrypts;      /* as its daemon says */
    double busy;                  /* in the largest dense row */
    double phase_us[TOLD_PHASES]; /* in the largest sparse row */
};

struct survey {
    struct perf *perf;
    struct cluster *cluster;
    struct cluster_node *nodes;
    struct judge_link slowest;        /* link */
    uint64_t dense_size, sparse_size; /* elements of the largest rows */
};

/* ------------------------------------------------------------------ ranks, each alone */

/* How many ranks of this rank's node come before it. */
static unsigned cluster_place_of(const struct cluster *cluster, unsigned rank)
{
    unsigned place = 0;

    for (unsigned other = 0; other < rank; other++) {
        place += cluster->node[other] == cluster->node[rank];
    }
    return place;
}

static unsigned cluster_crowd(const struct cluster *cluster)
{
    unsigned most = 0;

    for (unsigned rank = 0; rank < cluster->world; rank++) {
        const unsigned place = cluster_place_of(cluster, rank);

        most = place + 1 > most ? place + 1 : most;
    }
    return most;
}

static enum adtopk_status cluster_report_ranks(
    const struct survey *survey, const double *alone, struct error *err)
{
    const struct cluster *cluster = survey->cluster;
    double *sorted = malloc(cluster->world * sizeof(*sorted));
    enum adtopk_status status = ADTOPK_OK;
    double median;

    if (sorted == NULL) {
        return perf_no_memory(err, cluster->world * sizeof(*sorted));
    }
    memcpy(sorted, alone, cluster->world * sizeof(*sorted));
    median = judge_median(sorted, cluster->world);
    free(sorted);
    for (unsigned rank = 0; rank < cluster->world && status == ADTOPK_OK; rank++) {
        const bool slow = judge_is_slow(alone[rank], median);
        const struct report_fact facts[] = {{.name = "rank", .number = rank, .whole = true},
            {.name = "node", .number = cluster->node[rank], .whole = true},
            {.name = "alone", .unit = "us", .number = alone[rank]},
            {.name = "slow", .text = slow ? "yes" : "no"}};

        status = report_facts(
            survey->perf->report, "ranks", facts, 4, cluster->world <= CLUSTER_LISTED || slow, err);
    }
    return status;
}

static enum adtopk_status cluster_alone(
    const struct cluster *cluster, const struct trial *trial, double *median, struct error *err)
{
    struct series times = {0};
    struct trial_told told;
    enum adtopk_status status = trial_run(cluster, trial, &times, &told, err);

    if (status == ADTOPK_OK) {
        status = trial_median(&times, median, err);
    }
    series_free(&times);
    return status;
}

/* The ranks of a node train one after the other, those of all nodes at once. */
static enum adtopk_status cluster_ranks(const struct survey *survey, struct error *err)
{
    struct cluster *cluster = survey->cluster;
    const unsigned turns = cluster_crowd(cluster);
    const unsigned own = cluster_place_of(cluster, cluster->rank);
    double *alone = malloc(cluster->world * sizeof(*alone));
    struct trial trial = {.world = 1,
        .density = SPARSE,
        .count = ALONE_BYTES / sizeof(float),
        .warmup = survey->perf->options.warmup,
        .steps = ALONE_STEPS};
    enum adtopk_status status =
        alone != NULL ? ADTOPK_OK : perf_no_memory(err, cluster->world * sizeof(*alone));
    double median = NAN;

    (void)snprintf(trial.name, sizeof(trial.name), "rank%u", cluster->rank);
    for (unsigned turn = 0; turn < turns && status == ADTOPK_OK; turn++) {
        if (turn == own) {
            status = cluster_alone(cluster, &trial, &median, err);
        }
        if (status == ADTOPK_OK) {
            status = cluster_gather(cluster, &median, 1, err);
        }
    }
    for (unsigned rank = 0; rank < cluster->world && status == ADTOPK_OK; rank++) {
        alone[rank] = cluster_figure(cluster, rank, 0);
    }
    if (status == ADTOPK_OK) {
        status = cluster_report_ranks(survey, alone, err);
    }
    free(alone);
    return status;
}

/* ------------------------------------------------------------------ rows, all ranks together */

/* The largest figure that some leader told; NAN: none did. */
static double cluster_most(const struct cluster *cluster, unsigned figure)
{
    double most = NAN;

    for (unsigned node = 0; node < cluster->nodes; node++) {
        most = fmax(most, cluster_figure(cluster, cluster->lead[node], figure));
    }
    return most;
}

static enum adtopk_status cluster_report_row(const struct survey *survey, const struct trial *trial,
    const struct series *times, struct error *err)
{
    const struct cluster *cluster = survey->cluster;
    const bool dense = trial->density >= 1, alone = cluster->nodes < 2;
    const double wire = alone ? NAN : cluster_most(cluster, ROW_WIRE);
    const double nonzeros = alone ? NAN : cluster_most(cluster, ROW_NONZEROS);
    const double floor_us = wire / survey->slowest.bytes_s * 1e6;
    struct series floors = {0};
    char input[32];
    const struct row row = {.benchmark = survey->perf->benchmark,
        .variant = dense ? "dense" : "adtopk",
        .input = input,
        .size = trial->count * sizeof(float),
        .count = trial->count,
        .type = "f32",
        .density = trial->density,
        .alg_bytes = (double)(trial->count * sizeof(float)),
        .bus_bytes = wire,
        .wire_bytes = wire,
        .nonzeros = dense ? (double)trial->count : nonzeros,
        .target_us = NAN,
        .ranks = cluster->world,
        .time = times,
        .floor_name = "the node's bytes at the rate of the slowest link",
        .floor = &floors};
    enum adtopk_status status;

    (void)snprintf(input, sizeof(input), "%u ranks/%u", cluster->world, cluster->nodes);
    if (!isnan(floor_us) && !series_add(&floors, floor_us)) {
        return perf_no_memory(err, sizeof(double));
    }
    status = perf_row(survey->perf, &row, err);
    series_free(&floors);
    return status;
}

/* Keeps what the summary of the nodes shows of the largest rows. */
static void cluster_remember(struct survey *survey, const struct trial *trial)
{
    const struct cluster *cluster = survey->cluster;
    const bool dense = trial->density >= 1;
    uint64_t *largest = dense ? &survey->dense_size : &survey->sparse_size;

    if (trial->count < *largest) {
        return;
    }
    *largest = trial->count;
    for (unsigned node = 0; node < cluster->nodes; node++) {
        const unsigned lead = cluster->lead[node];
        for (unsigned i = 0; i < TOLD_PHASES && !dense; i++) {
            survey->nodes[node].phase_us[i] = cluster_figure(cluster, lead, ROW_PHASES + i);
        }
        if (dense) {
            survey->nodes[node].busy = cluster_figure(cluster, lead, ROW_BUSY);
        }
    }
}

static enum adtopk_status cluster_share_row(struct survey *survey, const struct trial *trial,
    const struct series *times, const struct trial_told *told, struct error *err)
{
    double figures[ROW_FIGURES] = {[ROW_WIRE] = told->job.wire_bytes,
        [ROW_NONZEROS] = told->job.nonzeros,
        [ROW_BUSY] = told->busy};
    enum adtopk_status status = trial_median(times, &figures[ROW_TIME], err);

    memcpy(&figures[ROW_PHASES], told->job.phase_us, sizeof(told->job.phase_us));
    if (status == ADTOPK_OK) {
        status = cluster_gather(survey->cluster, figures, ROW_FIGURES, err);
    }
    if (status == ADTOPK_OK) {
        cluster_remember(survey, trial);
        status = cluster_report_row(survey, trial, times, err);
    }
    return status;
}

static enum adtopk_status cluster_row(struct survey *survey, struct trial *trial, struct error *err)
{
    struct series times = {0};
    struct trial_told told;
    enum adtopk_status status;

    perf_progress(
        survey->perf, trial->density < 1 ? "adtopk" : "dense", trial->count * sizeof(float), 0);
    (void)training_shape(&trial->count);
    status = trial_run(survey->cluster, trial, &times, &told, err);
    if (status == ADTOPK_OK) {
        status = cluster_share_row(survey, trial, &times, &told, err);
    }
    series_free(&times);
    return status;
}

static enum adtopk_status cluster_rows(struct survey *survey, struct error *err)
{
    const struct options *options = &survey->perf->options;
    enum adtopk_status status = ADTOPK_OK;
    unsigned number = 0;

    for (size_t d = 0; d < options->densities.count && status == ADTOPK_OK; d++) {
        for (uint64_t size = options->min;
             size != 0 && status == ADTOPK_OK && !survey->cluster->stopped;
             size = perf_next_size(options, size)) {
            struct trial trial = {.rank = survey->cluster->rank,
                .world = survey->cluster->world,
                .density = options->densities.value[d],
                .count = size / sizeof(float),
                .warmup = options->warmup,
                .steps = options->iterations};

            (void)snprintf(trial.name, sizeof(trial.name), "row%u", number++);
            status = cluster_row(survey, &trial, err);
        }
    }
    return status;
}

/* ------------------------------------------------------------------ nodes, and the whole */

/* Every rank must know the numbers by which daemons call their peers. */
static enum adtopk_status cluster_meet(struct survey *survey, struct error *err)
{
    struct cluster *cluster = survey->cluster;
    const double figures[] = {cluster->daemon.node, cluster->daemon.encrypts};
    enum adtopk_status status = cluster_gather(cluster, figures, 2, err);
    unsigned silent = 0;
    char text[ERROR_TEXT_SIZE + 128];

    for (unsigned node = 0; node < cluster->nodes && status == ADTOPK_OK; node++) {
        struct cluster_node *found = &survey->nodes[node];

        *found = (struct cluster_node){.number = cluster_figure(cluster, cluster->lead[node], 0),
            .encrypts = cluster_figure(cluster, cluster->lead[node], 1),
            .busy = NAN,
            .phase_us = {NAN, NAN, NAN, NAN}};
        silent += isnan(found->number) ? 1u : 0u;
    }
    if (status == ADTOPK_OK && silent > 0) {
        (void)snprintf(text, sizeof(text),
            "%u of %u nodes tell nothing of wire bytes, rates and phases%s%s. "
            "$ADTOPK_CONTROL_SOCKET "
            "names a daemon's control socket.",
            silent, cluster->nodes, cluster->silence.text[0] != '\0' ? ": " : "",
            cluster->silence.text);
        status = report_remark(survey->perf->report, text, err);
    }
    return status;
}

static enum adtopk_status cluster_report_nodes(const struct survey *survey, struct error *err)
{
    const struct cluster *cluster = survey->cluster;
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned node = 0; node < cluster->nodes && status == ADTOPK_OK; node++) {
        const struct cluster_node *found = &survey->nodes[node];
        const double *phase_us = found->phase_us;
        unsigned ranks = 0;

        for (unsigned rank = 0; rank < cluster->world; rank++) {
            ranks += cluster->node[rank] == node;
        }
        const struct report_fact facts[] = {{.name = "node", .number = node, .whole = true},
            {.name = "daemon", .number = found->number, .whole = true},
            {.name = "ranks", .number = ranks, .whole = true},
            {.name = "select", .unit = "us", .number = phase_us[0]},
            {.name = "exchange", .unit = "us", .number = phase_us[1]},
            {.name = "reduce", .unit = "us", .number = phase_us[2]},
            {.name = "settle", .unit = "us", .number = phase_us[3]},
            {.name = "network", .unit = "%", .number = 100 * found->busy},
            {.name = "traffic",
                .text = isnan(found->encrypts) ? "-"
                        : found->encrypts > 0  ? "curve"
                                               : "clear"}};

        status = report_facts(survey->perf->report, "nodes", facts, 9, true, err);
    }
    return status;
}

static enum adtopk_status cluster_conclude(const struct survey *survey, struct error *err)
{
    char text[300];
    enum adtopk_status status = cluster_report_nodes(survey, err);

    if (status == ADTOPK_OK && survey->cluster->nodes > 1) {
        judge_bound(&survey->slowest, text, sizeof(text));
        status = report_remark(survey->perf->report, text, err);
    }
    return status;
}

enum adtopk_status cluster_run(struct perf *perf, struct error *err)
{
    struct survey survey = {.perf = perf, .cluster = perf->cluster, .slowest.bytes_s = NAN};
    enum adtopk_status status;

    survey.nodes = malloc(survey.cluster->nodes * sizeof(*survey.nodes));
    if (survey.nodes == NULL) {
        return perf_no_memory(err, survey.cluster->nodes * sizeof(*survey.nodes));
    }
    status = cluster_meet(&survey, err);
    if (status == ADTOPK_OK) {
        status = cluster_ranks(&survey, err);
    }
    if (status == ADTOPK_OK) {
        status = cluster_links(perf, survey.cluster, &survey.slowest, err);
    }
    if (status == ADTOPK_OK) {
        status = cluster_rows(&survey, err);
    }
    if (status == ADTOPK_OK) {
        status = cluster_conclude(&survey, err);
    }
    free(survey.nodes);
    return status;
}
