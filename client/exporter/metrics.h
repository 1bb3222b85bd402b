/*
 * A snapshot as metrics for Prometheus. README.md lists them; metrics_list() prints that list.
 */
#ifndef ADTOPK_EXPORTER_METRICS_H
#define ADTOPK_EXPORTER_METRICS_H

#include <stdbool.h>
#include <stdio.h>

#include "client/exporter/source.h"

/** Writes all metrics. open_metrics: as OpenMetrics 1.0, with its end mark; otherwise in
 * Prometheus' text format 0.0.4. A value that the documents do not have is left out. */
void metrics_write(FILE *out, const struct snapshot *snapshot, bool open_metrics);

/** A row "| name | labels | meaning |" for each metric. */
void metrics_list(FILE *out);

#endif
