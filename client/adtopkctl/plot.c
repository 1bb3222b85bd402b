#include "client/adtopkctl/plot.h"

#include <math.h>
#include <stdbool.h>

#define WIDTH 800.0
#define LEFT 92.0    /* of the panels */
#define RIGHT 784.0  /* their right end */
#define LEGEND 124.0 /* of one line: its stroke and "not measured" */
#define HEAD 92.0    /* above the first panel's frame */
#define HEIGHT 120.0
#define PITCH 196.0 /* from panel to panel */
#define FOOT 60.0
#define TICKS 4 /* of an axis, about */

static const char plot_style[] =
    "<style>\n"
    ".page{fill:#ffffff} .frame{fill:none;stroke:#8a8f98} .grid{stroke:#e4e6ea}\n"
    "text{font-family:system-ui,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;"
    "font-size:12.5px;fill:#454b54}\n"
    ".title{font-size:16px;font-weight:600;fill:#14171c} .name{font-weight:600;fill:#14171c}\n"
    ".middle{text-anchor:middle} .right{text-anchor:end}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\n"
    ".c0{stroke:#2166ac} .c1{stroke:#b35806} .c2{stroke:#b35806;stroke-dasharray:5 4}\n"
    ".d0{fill:#2166ac} .d1,.d2{fill:#b35806}\n"
    "@media (prefers-color-scheme: dark){\n"
    ".page{fill:#14171c} .frame{stroke:#7d838d} .grid{stroke:#2b3038} text{fill:#b9bfc8}\n"
    ".title,.name{fill:#f2f4f7} .c0{stroke:#6db3f2} .c1,.c2{stroke:#ff9d4d} .d0{fill:#6db3f2} "
    ".d1,.d2{fill:#ff9d4d}}\n"
    "</style>\n";

/* A character that XML does not allow becomes '?'. */
static void plot_text(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        switch (*at) {
        case '&': (void)fputs("&amp;", out); break;
        case '<': (void)fputs("&lt;", out); break;
        case '>': (void)fputs("&gt;", out); break;
        case '"': (void)fputs("&quot;", out); break;
        default: (void)fputc(*at < ' ' || *at == 0x7f ? '?' : *at, out);
        }
    }
}

static void plot_write(FILE *out, double x, double y, const char *kind, const char *text)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, kind);
    plot_text(out, text);
    (void)fputs("</text>\n", out);
}

/* The largest known value of all lines; NAN: there is none. */
static double plot_most(const struct plot *plot, const struct plot_panel *panel)
{
    double most = NAN;

    for (size_t l = 0; l < PLOT_LINES && panel->line[l].name != NULL; l++) {
        for (size_t i = 0; i < plot->count; i++) {
            most = fmax(most, panel->line[l].y[i]);
        }
    }
    return most;
}

/* 1, 2 or 5 times a power of ten, so that about TICKS of them make `most`. */
static double plot_step(double most)
{
    const double rough = most / TICKS;
    const double power = pow(10, floor(log10(rough)));
    const double digit = rough / power;

    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* The unit of an axis whose largest number is `most`: its name, and how many of it make one. */
static double plot_unit(enum plot_unit unit, double most, const char **name)
{
    static const char *const rates[] = {"B/s", "kB/s", "MB/s", "GB/s"};
    double scale = 1;
    unsigned i = 0;

    switch (unit) {
    case PLOT_SHARE: *name = "%"; return 100;
    case PLOT_DURATION:
        *name = most >= 1 ? "s" : most >= 1e-3 ? "ms" : "µs";
        return most >= 1 ? 1 : most >= 1e-3 ? 1e3 : 1e6;
    case PLOT_RATE:
        for (; i < 3 && most * scale >= 1000; i++) {
            scale *= 1e-3;
        }
        *name = rates[i];
        return scale;
    case PLOT_NUMBER: break;
    }
    *name = "";
    return 1;
}

/* A frame in which numbers are drawn. */
struct plot_frame {
    double top;            /* of the frame, which is HEIGHT high */
    double most_x, most_y; /* at its right and upper end, in units of the axes */
    double step_x, step_y; /* of the ticks */
    double scale;          /* from the numbers to the units of the y axis */
    const char *unit;
};

static double plot_x(const struct plot_frame *frame, double seconds)
{
    return LEFT + (RIGHT - LEFT) * seconds / frame->most_x;
}

static double plot_y(const struct plot_frame *frame, double number)
{
    return frame->top + HEIGHT * (1 - number / frame->most_y);
}

static void plot_axes(FILE *out, const struct plot_frame *frame)
{
    const double bottom = frame->top + HEIGHT;
    char text[32];

    for (unsigned i = 0; frame->step_y * i <= frame->most_y * 1.0001; i++) {
        const double y = plot_y(frame, frame->step_y * i);

        (void)snprintf(text, sizeof(text), "%.4g", frame->step_y * i);
        (void)fprintf(out,
            "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, RIGHT,
            y, y);
        plot_write(out, LEFT - 6, y + 4, "right", text);
    }
    for (unsigned i = 0; frame->step_x * i <= frame->most_x * 1.0001; i++) {
        (void)snprintf(text, sizeof(text), "%.4g", frame->step_x * i);
        plot_write(out, plot_x(frame, frame->step_x * i), bottom + 17, "middle", text);
    }
    (void)fprintf(out,
        "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", LEFT,
        frame->top, RIGHT - LEFT, HEIGHT);
    (void)fprintf(out, "<text class=\"middle\" transform=\"translate(20 %.1f) rotate(-90)\">",
        frame->top + HEIGHT / 2);
    plot_text(out, frame->unit);
    (void)fputs("</text>\n", out);
    plot_write(out, (LEFT + RIGHT) / 2, bottom + 34, "middle", "time (s)");
}

/* One point stands as a dot, more as a line. */
static void plot_curve(FILE *out, const struct plot *plot, const struct plot_frame *frame,
    const double *y, size_t line)
{
    const char *separator = "M";
    size_t points = 0, last = 0;

    (void)fprintf(out, "<path class=\"line c%zu\" d=\"", line);
    for (size_t i = 0; i < plot->count; i++) {
        if (!isnan(y[i])) {
            (void)fprintf(out, "%s%.1f %.1f", separator, plot_x(frame, plot->x[i]),
                plot_y(frame, y[i] * frame->scale));
            separator = "L";
            last = i;
            points++;
        }
    }
    (void)fputs("\"/>\n", out);
    if (points == 1) {
        (void)fprintf(out, "<circle class=\"d%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", line,
            plot_x(frame, plot->x[last]), plot_y(frame, y[last] * frame->scale));
    }
}

/* The names of several lines, above the frame at its right end. */
static void plot_legend(FILE *out, const struct plot_panel *panel, double top)
{
    double x = RIGHT - LEGEND * PLOT_LINES;

    if (panel->line[1].name == NULL) {
        return;
    }
    for (size_t l = 0; l < PLOT_LINES && panel->line[l].name != NULL; l++, x += LEGEND) {
        (void)fprintf(out,
            "<line class=\"line c%zu\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", l, x,
            x + 22, top - 13, top - 13);
        plot_write(out, x + 27, top - 9, "", panel->line[l].name);
    }
}

static void plot_panel(FILE *out, const struct plot *plot, size_t number)
{
    const struct plot_panel *panel = &plot->panel[number];
    const double top = HEAD + PITCH * (double)number, most = plot_most(plot, panel);
    struct plot_frame frame = {.top = top, .most_x = fmax(1e-3, plot->x[plot->count - 1])};

    plot_write(out, LEFT, top - 9, "name", panel->title);
    frame.scale = plot_unit(panel->unit, most, &frame.unit);
    frame.most_y = most > 0 ? most * frame.scale : 1;
    frame.step_x = plot_step(frame.most_x);
    frame.step_y = plot_step(frame.most_y);
    frame.most_y = frame.step_y * ceil(frame.most_y / frame.step_y - 1e-9);
    plot_axes(out, &frame);
    if (isnan(most)) {
        plot_write(out, (LEFT + RIGHT) / 2, top + HEIGHT / 2, "middle", panel->empty);
        return;
    }
    plot_legend(out, panel, top);
    for (size_t l = 0; l < PLOT_LINES && panel->line[l].name != NULL; l++) {
        plot_curve(out, plot, &frame, panel->line[l].y, l);
    }
}

void plot_print(FILE *out, const struct plot *plot)
{
    const double height = HEAD + PITCH * (double)(plot->panels - 1) + HEIGHT + FOOT;

    (void)fprintf(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" role=\"img\">\n<title>",
        WIDTH, height, WIDTH, height);
    plot_text(out, plot->title);
    (void)fprintf(out, "</title>\n%s<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n",
        plot_style, WIDTH, height);
    plot_write(out, 16, 28, "title", plot->title);
    plot_write(out, 16, 48, "", plot->subtitle);
    for (size_t i = 0; i < plot->panels; i++) {
        plot_panel(out, plot, i);
    }
    (void)fputs("</svg>\n", out);
}
