/*
 * A line y = a + b x through observations, by least squares of relative errors that forget: the
 * sums of a step count for 0.9 of it in the next. Only steps that observe something forget, so what
 * a plan that is no longer in force taught is kept. Parameters are pulled a little to where they
 * are expected, which decides where observations do not: a, if everything was large; b, if small.
 */
#ifndef ADTOPK_ESTIMATE_LINE_H
#define ADTOPK_ESTIMATE_LINE_H

#include "daemon/core/estimate.h"

struct line {
    double offset; /* a, y for nothing */
    double slope;  /* b */
};

/** An observation; x at least 0, y at least `least` (above 0), the time that nobody beats: what is
 * quicker was not all of it, and counts as that. Times that are no times are ignored. */
void estimate_line_add(struct estimate_line *line, double x, double y, double least);

/** A step is over. */
void estimate_line_end(struct estimate_line *line);

/** Whether anything was ever observed. */
bool estimate_line_known(const struct estimate_line *line);

/** Whether sums that somebody else made can be those of observations. */
bool estimate_line_sane(const struct estimate_line *line);

/** Whichever of the two takes longer for what both saw on average. */
const struct estimate_line *estimate_line_slower(
    const struct estimate_line *a, const struct estimate_line *b);

/** The line; `expected` where nothing was observed (its parameters must be finite, and not below
 * 0). */
struct line estimate_line_fit(const struct estimate_line *line, struct line expected);

#endif
