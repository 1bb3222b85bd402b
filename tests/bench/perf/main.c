/* adtopk-perf: how fast the parts of adtopk are, and how far from the floor of this machine. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/perf/benchmarks.h"
#include "tests/bench/perf/cluster_ranks.h"
#include "tests/bench/perf/stop.h"

enum { EXIT_MEASURED = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int fail(const struct error *err)
{
    (void)fprintf(stderr, "adtopk-perf: %s\n", err->text);
    return EXIT_FAILED;
}

static enum report_layout layout_of(const struct benchmark *benchmark, const struct options *given)
{
    return benchmark->layout == REPORT_SELECT && given->layers ? REPORT_LAYERS : benchmark->layout;
}

static enum adtopk_status run_chosen(
    struct perf *perf, const struct options *given, name_set chosen, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < BENCHMARK_COUNT && status == ADTOPK_OK && !stop_requested(); i++) {
        const struct benchmark *benchmark = &benchmark_table[i];

        if (!perf_has(chosen, i)) {
            continue;
        }
        perf->options = *given;
        perf_fill(&perf->options, &benchmark->defaults);
        perf->benchmark = benchmark->name.name;
        report_begin(perf->report, layout_of(benchmark, given), benchmark->name.name,
            benchmark->name.help, benchmark->about);
        status = benchmark->run(perf, err);
        perf_progress_end(perf);
    }
    return status;
}

/* Measures, and reports to `out`. */
static int run_reported(struct perf *perf, const struct options *options, name_set chosen,
    FILE *out, int argc, char *const *argv)
{
    struct error err = {.code = ADTOPK_OK};
    struct error late = {.code = ADTOPK_OK};
    struct machine machine;
    enum adtopk_status status;

    machine_describe(&machine);
    perf->report = report_new(out, options->json, &machine, argc, argv);
    if (perf->report == NULL) {
        (void)perf_no_memory(&err, sizeof(*perf));
        return fail(&err);
    }
    status = run_chosen(perf, options, chosen, &err);
    if (stop_requested()) {
        status = ADTOPK_OK; /* what failed, failed because of that */
    }
    if (report_finish(perf->report, stop_requested(), &late) != ADTOPK_OK) {
        return fail(&late);
    }
    if (status != ADTOPK_OK) {
        return fail(&err);
    }
    return stop_requested() ? EXIT_FAILED : EXIT_MEASURED;
}

/* As one of many ranks, of which the first one reports. */
static int run_as_rank(
    struct perf *perf, const struct options *options, name_set chosen, int argc, char *const *argv)
{
    struct error err = {.code = ADTOPK_OK};
    struct cluster cluster = {.context = NULL};
    FILE *out = stdout;
    int code;

    if (cluster_open(&cluster, &err) != ADTOPK_OK) {
        cluster_close(&cluster);
        return fail(&err);
    }
    if (cluster.rank > 0) {
        out = fopen("/dev/null", "we");
        perf->progress = false;
    }
    if (out == NULL) {
        (void)error_set(&err, ADTOPK_ERR_SYSTEM, "cannot open /dev/null");
        code = fail(&err);
    } else {
        perf->cluster = &cluster;
        code = run_reported(perf, options, chosen, out, argc, argv);
    }
    if (out != NULL && out != stdout) {
        (void)fclose(out);
    }
    cluster_close(&cluster);
    return code;
}

static int run(const struct options *options, name_set chosen, int argc, char *const *argv)
{
    struct perf perf = {.progress = isatty(STDERR_FILENO) != 0};

    if (!stop_install()) {
        perror("adtopk-perf: cannot handle signals");
        return EXIT_FAILED;
    }
    for (unsigned i = 0; i < BENCHMARK_COUNT; i++) {
        if (benchmark_table[i].name.apart && perf_has(chosen, i)) {
            return run_as_rank(&perf, options, chosen, argc, argv);
        }
    }
    return run_reported(&perf, options, chosen, stdout, argc, argv);
}

int main(int argc, char **argv)
{
    struct vocabulary_storage storage;
    const struct vocabulary vocabulary = benchmarks_vocabulary(&storage);
    struct options options;
    enum options_action action;
    name_set chosen;
    struct error err;

    if (options_parse(&vocabulary, argc, argv, &options, &chosen, &action, &err) != ADTOPK_OK) {
        (void)fprintf(stderr, "adtopk-perf: %s\nadtopk-perf --help lists all\n", err.text);
        return EXIT_USAGE;
    }
    switch (action) {
    case OPTIONS_HELP: options_help(&vocabulary, chosen, stdout); break;
    case OPTIONS_VERSION: (void)printf("adtopk-perf " ADTOPK_VERSION "\n"); break;
    default: return run(&options, chosen, argc, argv);
    }
    return fflush(stdout) == 0 ? EXIT_MEASURED : EXIT_FAILED;
}
