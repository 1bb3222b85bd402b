#include "tests/bench/perf/format.h"

#include <math.h>
#include <stdio.h>

void format_measure(char text[FORMAT_SIZE], double number)
{
    const double size = fabs(number);
    const int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.0995 ? 2 : 4;

    if (isnan(number)) {
        (void)snprintf(text, FORMAT_SIZE, "-");
    } else {
        (void)snprintf(text, FORMAT_SIZE, "%.*f", digits, number);
    }
}

void format_count(char text[FORMAT_SIZE], double number)
{
    if (isnan(number)) {
        (void)snprintf(text, FORMAT_SIZE, "-");
    } else {
        (void)snprintf(text, FORMAT_SIZE, "%.0f", number);
    }
}

void format_density(char text[FORMAT_SIZE], double density)
{
    if (isnan(density)) {
        (void)snprintf(text, FORMAT_SIZE, "-");
    } else {
        (void)snprintf(text, FORMAT_SIZE, "%.4g", density);
    }
}

void format_percent(char text[FORMAT_SIZE], double fraction)
{
    if (isnan(fraction)) {
        (void)snprintf(text, FORMAT_SIZE, "-");
    } else {
        (void)snprintf(text, FORMAT_SIZE, "%.*f%%", fraction < 0.0995 ? 1 : 0, 100 * fraction);
    }
}
