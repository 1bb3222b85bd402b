/*
 * Samples of one measurement, in the order in which they were taken, and their statistics.
 */
#ifndef PERF_SERIES_H
#define PERF_SERIES_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialised it is empty. */
struct series {
    double *value;
    size_t count;
    size_t capacity;
};

struct summary {
    double min, median, p90, p99, max;
    double spread; /* interquartile range / median; 0 where the median is 0 */
};

/** Appends a sample; false without memory, and the series is as before. */
bool series_add(struct series *series, double value);

void series_free(struct series *series);

/** False without memory. Of an empty series everything is NAN. */
bool series_summarise(const struct series *series, struct summary *summary);

/**
 * The ratio of `time` to `floor`. `paired`: their samples were taken in turns, and the result is
 * the median of the ratios of the pairs. A machine that slows down for a while does not change it.
 * Pairs whose floor took no time are left out. Otherwise it is the ratio of the medians. NAN if
 * nothing is left to compare; returns false without memory.
 */
bool series_ratio(
    const struct series *time, const struct series *floor, bool paired, double *ratio);

#endif
