/*
 * A plot as SVG: panels below each other, over the same time. The picture needs no font, script or
 * file beside it, and follows the viewer's light or dark colours. Texts are UTF-8.
 */
#ifndef ADTOPK_CTL_PLOT_H
#define ADTOPK_CTL_PLOT_H

#include <stddef.h>
#include <stdio.h>

#define PLOT_LINES 3

/* What the numbers of a panel are; its axis gets a unit that fits their size. */
enum plot_unit {
    PLOT_NUMBER,
    PLOT_SHARE,   /* 0.01 is 1% */
    PLOT_RATE,    /* bytes per second */
    PLOT_DURATION /* seconds */
};

struct plot_line {
    const char *name; /* NULL: there is none */
    const double *y;  /* one per time; NAN: not known, and the line has a gap of no width */
};

struct plot_panel {
    const char *title;
    enum plot_unit unit;
    struct plot_line line[PLOT_LINES];
    const char *empty; /* why no line has a point, if none has */
};

struct plot {
    const char *title, *subtitle;
    const double *x; /* seconds, at least 0, in order */
    size_t count;
    const struct plot_panel *panel;
    size_t panels;
};

void plot_print(FILE *out, const struct plot *plot);

#endif
