/*
 * What every benchmark gets, and the table of benchmarks.
 */
#ifndef PERF_H
#define PERF_H

#include "tests/bench/perf/options.h"
#include "tests/bench/perf/report.h"

struct cluster;

/* One run of the program. */
struct perf {
    struct options options; /* of the benchmark that runs: its defaults are filled in */
    struct report *report;
    const char *benchmark;
    struct cluster *cluster; /* of the benchmark cluster; NULL: no other processes take part */
    bool progress;           /* standard error is a terminal */
};

/* A benchmark adds rows to perf->report until it is through or stop_requested(). */
struct benchmark {
    struct benchmark_name name;
    const char *about; /* lines of text under the heading, each with '#' */
    enum report_layout layout;
    struct options defaults; /* for options that the command line leaves out */
    enum adtopk_status (*run)(struct perf *perf, struct error *err);
};

enum adtopk_status select_run(struct perf *perf, struct error *err);
enum adtopk_status encode_run(struct perf *perf, struct error *err);
enum adtopk_status decode_run(struct perf *perf, struct error *err);
enum adtopk_status sum_run(struct perf *perf, struct error *err);
enum adtopk_status handover_run(struct perf *perf, struct error *err);
enum adtopk_status round_run(struct perf *perf, struct error *err);
enum adtopk_status link_run(struct perf *perf, struct error *err);
enum adtopk_status overtake_run(struct perf *perf, struct error *err);
enum adtopk_status cluster_run(struct perf *perf, struct error *err);
enum adtopk_status sparsify_run(struct perf *perf, struct error *err);

/** The size after `size`: times the factor, and the largest one last; 0 when that was it. */
uint64_t perf_next_size(const struct options *options, uint64_t size);

/** True if bit `index` of the set is there. */
static inline bool perf_has(name_set set, unsigned index)
{
    return (set >> index & 1u) != 0;
}

/** On a terminal: which row is being measured, and how many samples of it there are already. Erased
 * by perf_progress_end(). */
void perf_progress(const struct perf *perf, const char *what, uint64_t size, uint64_t samples);
void perf_progress_end(const struct perf *perf);

/** Prints or keeps a row of the report: see report_row(). */
enum adtopk_status perf_row(struct perf *perf, const struct row *row, struct error *err);

/** Fills the missing options from `defaults`. */
void perf_fill(struct options *options, const struct options *defaults);

enum adtopk_status perf_no_threads(struct error *err, double threads);
enum adtopk_status perf_no_memory(struct error *err, uint64_t bytes);

#endif
