/*
 * round: whole steps of a job of two ranks on two nodes, from when the last rank begins to push to
 * the last return.
 *
 * Two daemons run for the whole benchmark, each row is a job of its own. What the nodes sent comes
 * from adtopkctl. Then the floor is measured: two processes that each add the gradient and exchange
 * as many bytes over one TCP connection.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/policy/policy.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/tcp.h"
#include "tests/bench/perf/training.h"

#define RANKS 2

/* Shared by the two processes of the floor. */
struct bare {
    int fd[RANKS];
    uint64_t n;
    uint64_t count; /* samples */
    size_t wire;    /* bytes to exchange */
    const struct floor_loop *loop;
    double *time; /* of side 0: shared memory */
};

static bool bare_steps(
    const struct bare *bare, unsigned side, const struct floor_work *work, char *out, char *in)
{
    for (uint64_t i = 0; i < bare->count; i++) {
        uint64_t begin;

        if (!tcp_exchange(bare->fd[side], out, in, 1)) { /* both begin together */
            return false;
        }
        begin = clock_ns();
        bare->loop->add(work, 0, work->n);
        if (!tcp_exchange(bare->fd[side], out, in, bare->wire)) {
            return false;
        }
        if (side == 0) {
            bare->time[i] = clock_us_between(begin, clock_ns());
        }
    }
    return true;
}

static int bare_main(void *context, unsigned side)
{
    const struct bare *bare = context;
    const size_t size = bare->n * sizeof(float);
    float *r = data_map(size);
    const void *g = data_map(size);
    const struct floor_work work = {.r = r, .g = &g, .count = 1, .n = bare->n};
    char *out = calloc(1, bare->wire + 1);
    char *in = calloc(1, bare->wire + 1);
    const bool ok = r != NULL && g != NULL && out != NULL && in != NULL &&
                    bare_steps(bare, side, &work, out, in);

    data_unmap(r, size);
    data_unmap((void *)(uintptr_t)g, size);
    free(out);
    free(in);
    return ok ? 0 : 1;
}

/* The loop that is fastest for tensors of this size. */
static enum adtopk_status choose_loop(uint64_t n, const struct floor_loop **loop, struct error *err)
{
    const size_t size = n * sizeof(float);
    float *r = data_map(size);
    const void *g = data_map(size);
    const struct floor_work work = {.r = r, .g = &g, .count = 1, .n = n};
    struct floor_race race = {0};
    bool ok = r != NULL && g != NULL;

    for (int i = 0; i < 5 && ok; i++) {
        ok = floor_sample(&race, &work);
    }
    *loop = &floor_loops[floor_fastest(&race)];
    floor_free(&race);
    data_unmap(r, size);
    data_unmap((void *)(uintptr_t)g, size);
    return ok ? ADTOPK_OK : perf_no_memory(err, 2 * size);
}

static enum adtopk_status bare_run(struct bare *bare, struct series *floors, struct error *err)
{
    struct crew crew = {.count = 0};
    enum adtopk_status status = tcp_pair(bare->fd, err);

    for (unsigned side = 0; side < RANKS && status == ADTOPK_OK; side++) {
        status = crew_start(&crew, bare_main, bare, side, err);
    }
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    }
    crew_kill(&crew);
    tcp_close(bare->fd);
    for (uint64_t i = 0; i < bare->count && status == ADTOPK_OK && bare->time[i] > 0; i++) {
        if (!series_add(floors, bare->time[i])) {
            status = perf_no_memory(err, bare->count * sizeof(double));
        }
    }
    return status;
}

static enum adtopk_status measure_floor(
    const struct perf *perf, uint64_t n, double wire, struct series *floors, struct error *err)
{
    const size_t size = perf->options.iterations * sizeof(double);
    struct bare bare = {.fd = {-1, -1},
        .n = n,
        .count = perf->options.iterations,
        .wire = (size_t)llround(wire),
        .time = data_map(size)};
    enum adtopk_status status = ADTOPK_OK;

    if (bare.time == NULL) {
        return perf_no_memory(err, size);
    }
    status = choose_loop(n, &bare.loop, err);
    if (status == ADTOPK_OK) {
        status = bare_run(&bare, floors, err);
    }
    data_unmap(bare.time, size);
    return status;
}

/* Runs the job; `sent` is what node 0 sent in a step. */
static enum adtopk_status measure_job(struct training *training, struct series *times,
    struct nodes_sent *sent, double *cpu_us, struct error *err)
{
    struct diary *diary = NULL;
    enum adtopk_status status = training_run(training, &diary, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (!training_times(training, diary, true, times)) {
        status = perf_no_memory(err, training->steps * sizeof(double));
    }
    *cpu_us = training_cpu_us(training, diary);
    training_free(training, diary);
    if (status == ADTOPK_OK && !stop_requested()) {
        status = nodes_ask(training->nodes, 0, training->job, sent, err);
    }
    if (status == ADTOPK_OK && sent->steps > 0) {
        sent->wire_bytes /= sent->steps;
        sent->nonzeros /= sent->steps;
    }
    return status;
}

static enum adtopk_status report_job(struct perf *perf, const struct training *training,
    const struct nodes_sent *sent, double cpu_us, const struct series *times,
    const struct series *floors, struct error *err)
{
    const bool dense = training->density >= 1;
    const uint64_t count = training->count * training->tensors;
    char variant[24];
    const struct row row = {.benchmark = perf->benchmark,
        .variant = variant,
        .input = "2 nodes",
        .size = count * sizeof(float),
        .count = count,
        .type = "f32",
        .density = training->density,
        .tensors = training->tensors,
        .cpu_us = cpu_us,
        .alg_bytes = (double)(count * sizeof(float)),
        .bus_bytes = sent->wire_bytes,
        .wire_bytes = sent->wire_bytes,
        .nonzeros = sent->nonzeros > 0 ? sent->nonzeros
                    : dense            ? (double)count
                                       : NAN,
        .target_us = NAN,
        .time = times,
        .floor_name = "r+=g and tcp",
        .floor = floors};

    (void)snprintf(variant, sizeof(variant), "%s%s%s", dense ? "dense" : "adtopk",
        training->values != NULL ? " " : "", training->values != NULL ? training->values : "");
    return perf_row(perf, &row, err);
}

static enum adtopk_status one_job(struct perf *perf, struct training *training, struct error *err)
{
    struct series times = {0};
    struct series floors = {0};
    struct nodes_sent sent = {0};
    double cpu_us = 0;
    enum adtopk_status status;

    (void)training_shape(&training->count);
    status = measure_job(training, &times, &sent, &cpu_us, err);
    if (status == ADTOPK_OK && !stop_requested()) {
        status =
            measure_floor(perf, training->count * training->tensors, sent.wire_bytes, &floors, err);
    }
    if (status == ADTOPK_OK) {
        status = report_job(perf, training, &sent, cpu_us, &times, &floors, err);
    }
    series_free(&times);
    series_free(&floors);
    return status;
}

/* A job of each size. */
static enum adtopk_status all_sizes(
    struct perf *perf, const struct training *kind, unsigned tensors, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;
    static unsigned job;

    for (uint64_t size = options->min; size > 0 && status == ADTOPK_OK && !stop_requested();
         size = perf_next_size(options, size)) {
        const uint64_t count = size / sizeof(float) / tensors;
        struct training training = *kind;

        training.tensors = tensors;
        training.count = count > 0 ? count : 1;
        perf_progress(perf, "job", size, 0);
        (void)snprintf(training.job, sizeof(training.job), "round-%u", job++);
        status = one_job(perf, &training, err);
    }
    return status;
}

/* Jobs with each type of values; without --value the policy's default counts. */
static enum adtopk_status all_values(
    struct perf *perf, struct training *kind, unsigned tensors, struct error *err)
{
    const name_set asked = perf->options.values;
    enum adtopk_status status = ADTOPK_OK;

    if (asked == 0) {
        return all_sizes(perf, kind, tensors, err);
    }
    for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT && status == ADTOPK_OK; v++) {
        if (perf_has(asked, v)) {
            kind->values = policy_value_name((enum payload_value)v);
            status = all_sizes(perf, kind, tensors, err);
        }
    }
    return status;
}

static enum adtopk_status all_jobs(struct perf *perf, const struct nodes *nodes, struct error *err)
{
    const struct options *options = &perf->options;
    const size_t kinds = options->densities.count * options->tensors.count;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < kinds && status == ADTOPK_OK && !stop_requested(); i++) {
        const double tensors = options->tensors.value[i % options->tensors.count];
        struct training kind = {.nodes = nodes,
            .spread = true,
            .density = options->densities.value[i / options->tensors.count],
            .ranks = RANKS,
            .warmup = options->warmup,
            .steps = options->iterations};

        status = all_values(perf, &kind, (unsigned)tensors, err);
    }
    return status;
}

enum adtopk_status round_run(struct perf *perf, struct error *err)
{
    struct nodes nodes;
    enum adtopk_status status = nodes_start(&nodes, RANKS, &perf->options, err);

    if (status == ADTOPK_OK) {
        if (nodes.gpu_name[0] != '\0') {
            report_device(perf->report, nodes.gpu_name);
        }
        status = all_jobs(perf, &nodes, err);
        nodes_stop(&nodes);
    }
    return status;
}
