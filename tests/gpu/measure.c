/* usage: gpu-measure MEASUREMENT DEVICE [--brief]. Exit status: 0, 1 (failed), 2 (usage). */
#include "tests/gpu/measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    bool (*run)(const struct measure *measure, struct error *err);
} measurements[] = {
    {"occupancy", occupancy_measure},
    {"payload", payload_measure},
    {"overlap", overlap_measure},
    {"post", post_measure},
    {"context", context_measure},
    {"restart", restart_measure},
};

#define MEASUREMENTS (sizeof(measurements) / sizeof(measurements[0]))

void figure_print(const struct figure *figure)
{
    (void)printf("%-44s %10.1f %s", figure->what, figure->value, figure->unit);
    if (!isnan(figure->floor)) {
        (void)printf(", floor %10.1f %s, ratio %.3f", figure->floor, figure->unit,
            figure->value / figure->floor);
    }
    if (!isnan(figure->target)) {
        (void)printf(", target %10.1f %s, ratio %.3f", figure->target, figure->unit,
            figure->value / figure->target);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

bool figure_print_series(
    const char *what, const struct series *times, const struct series *floors, double target_us)
{
    struct summary time, floor = {.median = NAN};

    if (!series_summarise(times, &time) || (floors != NULL && !series_summarise(floors, &floor))) {
        return false;
    }
    figure_print(&(struct figure){.what = what,
        .unit = "us",
        .value = time.median,
        .floor = floor.median,
        .target = target_us});
    (void)printf("  p90 %.1f, p99 %.1f, %zu samples\n", time.p90, time.p99, times->count);
    return true;
}

bool measure_add(struct series *series, double sample, struct error *err)
{
    if (series_add(series, sample)) {
        return true;
    }
    (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for samples");
    return false;
}

static int measure_fails(const struct error *err)
{
    (void)fprintf(stderr, "gpu-measure: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    const bool brief = argc == 4 && strcmp(argv[3], "--brief") == 0;
    struct error err;

    for (unsigned m = 0; m < MEASUREMENTS && (argc == 3 || brief); m++) {
        if (strcmp(argv[1], measurements[m].name) == 0) {
            const struct measure measure = {.device = argv[2], .brief = brief};

            return measurements[m].run(&measure, &err) ? 0 : measure_fails(&err);
        }
    }
    (void)fprintf(stderr, "usage: gpu-measure MEASUREMENT DEVICE [--brief]\n");
    return 2;
}
