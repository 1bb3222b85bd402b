/*
 * Lines through observations: see estimate_line.h.
 */
#include "daemon/planner/estimate_line.h"

#include <math.h>

#define FORGET 0.9
/* How much the expected parameters count: as if each had been seen to be within 14 times of that.
 */
#define PULL 0.005
#define PULLED 1.5    /* by so many times a line may be pulled from what was observed */
#define SETTLED 8.0   /* from so many observations on an outlier is known as one */
#define TIME_MIN 0.01 /* us; clocks cannot measure shorter times */
#define SLOPE_MIN 1e-12
#define TIME_MAX 1e12

bool estimate_line_known(const struct estimate_line *line)
{
    return line->weight > 0;
}

/* Where the mean of the observations lies: y by x, without an offset. */
static struct line rough(const struct estimate_line *line)
{
    return (struct line){.offset = fmax(line->y / line->weight / 2, TIME_MIN),
        .slope = fmax(line->xy / fmax(line->xx, 1e-30) / 2, SLOPE_MIN)};
}

void estimate_line_add(struct estimate_line *line, double x, double y, double least)
{
    double expected = 0, weight;

    if (!isfinite(y) || y < 0 || y > TIME_MAX || !isfinite(x) || x < 0) {
        return;
    }
    y = fmax(y, fmax(least, TIME_MIN));
    if (line->count >= SETTLED) {
        struct line fit = estimate_line_fit(line, rough(line));
        expected = fmax(fit.offset + fit.slope * x, TIME_MIN);
        line->near |= y < ESTIMATE_CLIP * expected && expected < ESTIMATE_CLIP * y;
        y = fmin(y, ESTIMATE_CLIP * expected);
    } else {
        line->near = true;
    }
    /* Weighted by the expected value, so that a line learns slower times as fast as faster ones. */
    weight = expected > 0 ? 1 / (expected * expected) : 1 / (y * y);
    line->weight += weight;
    line->x += weight * x;
    line->xx += weight * x * x;
    line->y += weight * y;
    line->xy += weight * x * y;
    line->count += 1;
    line->fresh = true;
}

void estimate_line_end(struct estimate_line *line)
{
    bool far = line->fresh && !line->near;

    if (!line->fresh) {
        return;
    }
    if (far && line->far) { /* conditions have changed: older observations no longer tell
                             * anything */
        *line = (struct estimate_line){.weight = 0};
        return;
    }
    line->far = far;
    line->near = false;
    line->weight *= FORGET;
    line->x *= FORGET;
    line->xx *= FORGET;
    line->y *= FORGET;
    line->xy *= FORGET;
    line->count *= FORGET;
    line->fresh = false;
}

struct line estimate_line_fit(const struct estimate_line *line, struct line expected)
{
    /* A peer may have measured next to nothing, and squares of that would be 0. */
    double offset = fmax(expected.offset, TIME_MIN), slope = fmax(expected.slope, SLOPE_MIN);
    double aa = line->weight + PULL / (offset * offset), ab = line->x;
    double bb = line->xx + PULL / (slope * slope);
    double ya = line->y + PULL / offset, yb = line->xy + PULL / slope;
    double determinant = aa * bb - ab * ab;
    struct line fit;

    if (!estimate_line_known(line)) {
        return expected;
    }
    if (!(determinant > 1e-12 * aa * bb)) {
        return (struct line){.offset = 0, .slope = yb / bb};
    }
    fit.offset = (ya * bb - yb * ab) / determinant;
    fit.slope = (yb * aa - ya * ab) / determinant;
    if (fit.offset < 0) {
        fit = (struct line){.offset = 0, .slope = yb / bb};
    } else if (fit.slope < 0) {
        fit = (struct line){.offset = ya / aa, .slope = 0};
    }
    return fit;
}

/* Whether the line passes by the mean of the observations, as it does where nothing pulls it. */
static bool passes_by_mean(const struct estimate_line *line, struct line fit)
{
    const double mean = line->y / line->weight;
    const double there = fit.offset + fit.slope * line->x / line->weight;

    return there < PULLED * mean && mean < PULLED * there;
}

struct line estimate_line_fit_guess(const struct estimate_line *line, struct line guess)
{
    const struct line fit = estimate_line_fit(line, guess);

    return !estimate_line_known(line) || passes_by_mean(line, fit)
               ? fit
               : estimate_line_fit(line, rough(line));
}

bool estimate_line_sane(const struct estimate_line *line)
{
    const double sum[] = {line->weight, line->x, line->xx, line->y, line->xy, line->count};

    for (unsigned i = 0; i < sizeof(sum) / sizeof(sum[0]); i++) {
        if (!isfinite(sum[i]) || sum[i] < 0 || (line->weight <= 0 && sum[i] > 0)) {
            return false;
        }
    }
    /* Times have bounds, hence weights too, and no variance is negative. */
    return line->weight <= 0 ||
           (line->weight < 1e12 && line->count < 1e12 && line->xx < 1e40 &&
               line->y <= TIME_MAX * line->weight && line->xy <= TIME_MAX * line->x &&
               line->x * line->x <= line->weight * line->xx * (1 + 1e-6));
}

const struct estimate_line *estimate_line_slower(
    const struct estimate_line *a, const struct estimate_line *b)
{
    struct line one, other;
    double x;

    if (!estimate_line_known(a) || !estimate_line_known(b)) {
        return estimate_line_known(a) ? a : b;
    }
    x = (a->x + b->x) / (a->weight + b->weight);
    one = estimate_line_fit(a, rough(a));
    other = estimate_line_fit(b, rough(b));
    return one.offset + one.slope * x >= other.offset + other.slope * x ? a : b;
}
