/*
 * The table of benchmarks, and the words of the command line that they understand.
 */
#ifndef PERF_BENCHMARKS_H
#define PERF_BENCHMARKS_H

#include "tests/bench/perf/frames.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/sparsify.h"

#define BENCHMARK_COUNT 10

extern const struct benchmark benchmark_table[BENCHMARK_COUNT];

/* Memory of the vocabulary. */
struct vocabulary_storage {
    struct benchmark_name names[BENCHMARK_COUNT];
    const char *sparsifiers[SPARSIFY_MAX];
    const char *indices[FRAMES_NAMES_MAX];
    const char *values[FRAMES_NAMES_MAX];
};

struct vocabulary benchmarks_vocabulary(struct vocabulary_storage *storage);

#endif
