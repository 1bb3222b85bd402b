#include "tests/bench/perf/series.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SERIES_FIRST 64

bool series_add(struct series *series, double value)
{
    if (series->count == series->capacity) {
        size_t capacity = series->capacity > 0 ? 2 * series->capacity : SERIES_FIRST;
        double *grown = NULL;

        if (capacity <= SIZE_MAX / sizeof(*grown)) {
            grown = realloc(series->value, capacity * sizeof(*grown));
        }
        if (grown == NULL) {
            return false;
        }
        series->value = grown;
        series->capacity = capacity;
    }
    series->value[series->count++] = value;
    return true;
}

void series_free(struct series *series)
{
    free(series->value);
    memset(series, 0, sizeof(*series));
}

/* The value below which the fraction p (0..1) of `count` >= 1 ascending values lies: linear
 * between the two nearest, as numpy.percentile() has it. */
static double series_percentile(const double *ascending, size_t count, double p)
{
    double at = p * (double)(count - 1);
    size_t below = (size_t)at;
    size_t above = below + 1 < count ? below + 1 : below;

    return ascending[below] + (at - (double)below) * (ascending[above] - ascending[below]);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

bool series_summarise(const struct series *series, struct summary *summary)
{
    const size_t count = series->count;
    double *sorted;

    if (count == 0) {
        *summary = (struct summary){NAN, NAN, NAN, NAN, NAN, NAN};
        return true;
    }
    sorted = malloc(count * sizeof(*sorted));
    if (sorted == NULL) {
        return false;
    }
    memcpy(sorted, series->value, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare);
    summary->min = sorted[0];
    summary->median = series_percentile(sorted, count, 0.5);
    summary->p90 = series_percentile(sorted, count, 0.9);
    summary->p99 = series_percentile(sorted, count, 0.99);
    summary->max = sorted[count - 1];
    summary->spread =
        series_percentile(sorted, count, 0.75) - series_percentile(sorted, count, 0.25);
    summary->spread = summary->median > 0 ? summary->spread / summary->median : 0;
    free(sorted);
    return true;
}

static bool ratio_of_medians(const struct series *time, const struct series *floor, double *ratio)
{
    struct summary above;
    struct summary below;

    if (!series_summarise(time, &above) || !series_summarise(floor, &below)) {
        return false;
    }
    *ratio = below.median > 0 ? above.median / below.median : NAN;
    return true;
}

static bool ratio_of_pairs(const struct series *time, const struct series *floor, double *ratio)
{
    const size_t count = time->count < floor->count ? time->count : floor->count;
    struct series pairs = {0};
    struct summary summary;
    bool ok = true;

    for (size_t i = 0; i < count && ok; i++) {
        if (floor->value[i] > 0) { /* a clock that did not move says nothing */
            ok = series_add(&pairs, time->value[i] / floor->value[i]);
        }
    }
    ok = ok && series_summarise(&pairs, &summary);
    if (ok) {
        *ratio = summary.median;
    }
    series_free(&pairs);
    return ok;
}

bool series_ratio(const struct series *time, const struct series *floor, bool paired, double *ratio)
{
    return paired ? ratio_of_pairs(time, floor, ratio) : ratio_of_medians(time, floor, ratio);
}
