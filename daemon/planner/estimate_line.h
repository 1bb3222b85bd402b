/*
 * A line y = a + b x through observations, by least squares of relative errors that forget: the
 * sums of a step count for 0.9 in the next. Only steps with observations forget, so the line keeps
 * what it learnt under a plan that is no longer in force. A weak prior pulls a and b towards their
 * expected values. It decides a if all observations were large, and b if all were small.
 */
#ifndef ADTOPK_ESTIMATE_LINE_H
#define ADTOPK_ESTIMATE_LINE_H

#include "daemon/planner/estimate.h"

struct line {
    double offset; /* a, y for nothing */
    double slope;  /* b */
};

/** Adds an observation. x is at least 0. `least`, above 0, is the shortest possible time: a smaller
 * y missed a part and counts as `least`. Times that are not finite are ignored. */
void estimate_line_add(struct estimate_line *line, double x, double y, double least);

/** A step is over. */
void estimate_line_end(struct estimate_line *line);

/** Whether anything was ever observed. */
bool estimate_line_known(const struct estimate_line *line);

/** Whether sums from another node can be sums of observations. */
bool estimate_line_sane(const struct estimate_line *line);

/** The line that takes longer for the average of both lines' observations. */
const struct estimate_line *estimate_line_slower(
    const struct estimate_line *a, const struct estimate_line *b);

/** The line; `expected` where nothing was observed (its parameters must be finite, and not below
 * 0). */
struct line estimate_line_fit(const struct estimate_line *line, struct line expected);

/** The same for expectations that nobody has measured: a guess gives way if it pulls the line far
 * from the observations. Times a thousand times longer weigh next to nothing beside it. */
struct line estimate_line_fit_guess(const struct estimate_line *line, struct line guess);

#endif
