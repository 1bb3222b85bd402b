/*
 * gpu-measure: figures of one GPU that adtopk-perf does not have. Each measurement is a file, and a
 * row of the table in measure.c.
 */
#ifndef ADTOPK_TESTS_GPU_MEASURE_H
#define ADTOPK_TESTS_GPU_MEASURE_H

#include <stdbool.h>

#include "proto/error.h"
#include "tests/bench/perf/series.h"

struct measure {
    const char *device; /* a number or a UUID */
    bool brief;         /* a few small samples: does it work at all? */
};

struct figure {
    const char *what, *unit;
    double value;
    double floor;  /* of the same run, or what is wanted at least; NAN: none */
    double target; /* the most that it should be; NAN: none */
};

/** Prints a line: the figure, its floor and its target, and its ratio to each. */
void figure_print(const struct figure *figure);

/** The same of the median of samples, whose floor was measured in turns with them. floor: NULL:
 * there is none. False without memory. */
bool figure_print_series(
    const char *what, const struct series *times, const struct series *floors, double target_us);

/** Keeps a sample. Errors: MEMORY. */
bool measure_add(struct series *series, double sample, struct error *err);

bool occupancy_measure(const struct measure *measure, struct error *err);
bool payload_measure(const struct measure *measure, struct error *err);
bool overlap_measure(const struct measure *measure, struct error *err);
bool post_measure(const struct measure *measure, struct error *err);
bool context_measure(const struct measure *measure, struct error *err);
bool restart_measure(const struct measure *measure, struct error *err);

#endif
