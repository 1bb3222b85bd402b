/*
 * handover: how long a small tensor takes through the daemon of its own node.
 *
 * One daemon serves the whole benchmark. For each mode the bare round trip between two processes is
 * measured, then jobs of one and more ranks push and wait.
 */
#include "tests/bench/perf/handover.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/pingpong.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/training.h"

static const struct mode {
    uint64_t divisor; /* of the iterations: what a step takes differs by that much */
    bool paused, burned;
    enum pingpong_wait floor;
    double target_us; /* of the median, 4 KB */
    double gpu_us;    /* the same with residuals on a GPU; 0: none */
} modes[] = {
    {.divisor = 1, .target_us = 10, .gpu_us = 60},
    {.divisor = 20, .paused = true, .floor = PINGPONG_FUTEX, .target_us = 100},
    /* With more processes than cores a yield costs milliseconds: sleeping is faster. */
    {.divisor = 10, .burned = true, .floor = PINGPONG_FUTEX, .target_us = 50},
};

const char *const handover_mode_names[] = {"awake", "asleep", "busy", NULL};

#define MODES (sizeof(modes) / sizeof(modes[0]))

static int burn(void *context, unsigned index)
{
    volatile uint64_t turns = 0;

    (void)context;
    (void)index;
    for (;;) {
        turns = turns + 1;
    }
    return 0;
}

static uint64_t part(uint64_t count, const struct mode *mode)
{
    return (count + mode->divisor - 1) / mode->divisor;
}

static double target_us(const struct perf *perf, unsigned mode, uint64_t size)
{
    const double target = perf->options.device != NULL ? modes[mode].gpu_us : modes[mode].target_us;

    return size == 4096 && target > 0 ? target : NAN;
}

static enum adtopk_status report_training(struct perf *perf, unsigned mode,
    const struct training *training, const struct series *times, const struct series *floors,
    struct error *err)
{
    const uint64_t size = training->count * sizeof(float);
    char input[32];
    const struct row row = {.benchmark = perf->benchmark,
        .variant = handover_mode_names[mode],
        .input = input,
        .size = size,
        .count = training->count,
        .type = "f32",
        .density = training->density,
        .alg_bytes = (double)size,
        .bus_bytes = NAN,
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = target_us(perf, mode, size),
        .time = times,
        .floor_name = modes[mode].floor == PINGPONG_FUTEX ? "futex" : "spin",
        .floor = floors};

    (void)snprintf(
        input, sizeof(input), "%u rank%s", training->ranks, training->ranks > 1 ? "s" : "");
    return perf_row(perf, &row, err);
}

static enum adtopk_status one_job(struct perf *perf, unsigned mode, struct training *training,
    const struct series *floors, struct error *err)
{
    struct series times = {0};
    struct diary *diary = NULL;
    enum adtopk_status status;

    training->warmup = part(perf->options.warmup, &modes[mode]);
    training->steps = part(perf->options.iterations, &modes[mode]);
    training->pause_us = modes[mode].paused ? perf->options.pause_ms * 1000 : 0;
    (void)training_shape(&training->count);
    status = training_run(training, &diary, err);
    if (status == ADTOPK_OK) {
        status = training_times(training, diary, false, &times)
                     ? report_training(perf, mode, training, &times, floors, err)
                     : perf_no_memory(err, training->steps * sizeof(double));
        training_free(training, diary);
    }
    series_free(&times);
    return status;
}

static enum adtopk_status all_jobs(struct perf *perf, unsigned mode, const struct nodes *nodes,
    const struct series *floors, struct error *err)
{
    const struct options *options = &perf->options;
    const size_t kinds = options->ranks.count * options->densities.count;
    enum adtopk_status status = ADTOPK_OK;
    unsigned job = 0;

    for (uint64_t size = options->min; size > 0; size = perf_next_size(options, size)) {
        for (size_t i = 0; i < kinds; i++) {
            struct training training = {.nodes = nodes,
                .density = options->densities.value[i % options->densities.count],
                .tensors = 1,
                .ranks = (unsigned)options->ranks.value[i / options->densities.count],
                .count = size / sizeof(float)};

            perf_progress(perf, handover_mode_names[mode], size, 0);
            (void)snprintf(
                training.job, sizeof(training.job), "%s-%u", handover_mode_names[mode], job++);
            status = one_job(perf, mode, &training, floors, err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

static enum adtopk_status one_mode(
    struct perf *perf, unsigned mode, const struct nodes *nodes, struct error *err)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t burners =
        perf->options.burners > 0 ? perf->options.burners : (uint64_t)(cores > 0 ? cores : 1);
    struct crew crew = {.count = 0};
    struct series floors = {0};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; modes[mode].burned && i < burners && status == ADTOPK_OK; i++) {
        status = crew_start(&crew, burn, NULL, i, err);
    }
    if (status == ADTOPK_OK) {
        status = pingpong_run(part(perf->options.iterations, &modes[mode]), modes[mode].floor,
            modes[mode].paused ? perf->options.pause_ms * 1000 : 0, &floors, err);
    }
    if (status == ADTOPK_OK && !stop_requested()) {
        status = all_jobs(perf, mode, nodes, &floors, err);
    }
    crew_kill(&crew);
    series_free(&floors);
    return status;
}

enum adtopk_status handover_run(struct perf *perf, struct error *err)
{
    struct nodes nodes;
    enum adtopk_status status = nodes_start(&nodes, 1, &perf->options, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (nodes.gpu_name[0] != '\0') {
        report_device(perf->report, nodes.gpu_name);
    }
    for (unsigned mode = 0; mode < MODES && status == ADTOPK_OK && !stop_requested(); mode++) {
        if (perf_has(perf->options.modes, mode)) {
            status = one_mode(perf, mode, &nodes, err);
        }
    }
    nodes_stop(&nodes);
    return status;
}
