/*
 * The times of the daemon's computes on one thread of a real machine: a table that measuring.c
 * made, read from a file (tests/data/computes.csv).
 *
 * A row has the times of a bucket of so many tensors, with so many elements together, under a
 * choice of the planner. These are its selection, all computes between the phases of its exchange
 * together, its sum and its settling. Between rows of one tensor costs are interpolated. Beyond the
 * longest they are in proportion, below the shortest the same. Rows of several tensors give the
 * cost of each further one.
 */
#ifndef ADTOPK_REGRET_COSTS_H
#define ADTOPK_REGRET_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/policy/choices.h"

#define COSTS_ROWS 16

enum stage { COSTS_SELECT, COSTS_COMBINE, COSTS_REDUCE, COSTS_SETTLE, COSTS_STAGES };

struct costs_row {
    double elements;
    double ns[COSTS_STAGES];
};

struct costs {
    unsigned nodes; /* among which it was measured */
    double density;
    unsigned rows[CHOICES];
    struct costs_row row[CHOICES][COSTS_ROWS]; /* of one tensor, ascending by elements */
    double further_ns[CHOICES][COSTS_STAGES];  /* of each tensor after the first */
};

/** False, and a sentence in *err, if the file cannot be read or has not all rows. */
bool costs_read(struct costs *costs, const char *path, struct error *err);

/** Nanoseconds that a stage of a bucket takes on one thread. */
double costs_of(const struct costs *costs, enum choice choice, enum stage stage, uint64_t elements,
    unsigned tensors);

#endif
