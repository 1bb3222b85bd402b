#include "tests/bench/perf/cluster_judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BUSY 0.8 /* of a thread: it has no time for more */
#define IDLE 0.1 /* of all cores: programs wait for each other */

static int judge_compare(const void *one, const void *other)
{
    const double a = *(const double *)one, b = *(const double *)other;

    return a < b ? -1 : a > b;
}

double judge_median(double *values, size_t count)
{
    size_t known = 0;

    for (size_t i = 0; i < count; i++) {
        if (!isnan(values[i])) {
            values[known++] = values[i];
        }
    }
    qsort(values, known, sizeof(*values), judge_compare);
    return known == 0 ? NAN : (values[(known - 1) / 2] + values[known / 2]) / 2;
}

bool judge_is_slow(double time, double median)
{
    return time > JUDGE_SLOW * median;
}

static void judge_cause(const struct judge_link *link, char *text, size_t size)
{
    if (isnan(link->network) || isnan(link->loop) || isnan(link->idle)) {
        (void)snprintf(
            text, size, "What bounds it is not known: a daemon did not tell of its threads.");
    } else if (link->network >= BUSY) {
        (void)snprintf(text, size,
            "%s bounds it: the network thread of one end was busy for %.0f%% of "
            "the time.",
            link->encrypts > 0 ? "CURVE" : "The processor", 100 * link->network);
    } else if (link->loop >= BUSY) {
        (void)snprintf(text, size,
            "The processor bounds it: the daemon's loop at one end was busy for %.0f%% of the "
            "time.",
            100 * link->loop);
    } else if (link->idle < IDLE) {
        (void)snprintf(text, size,
            "The processors of one end bound it: they were idle for %.0f%% of the time.",
            100 * link->idle);
    } else {
        (void)snprintf(text, size,
            "The network bounds it: its thread at one end was busy for only %.0f%% of the "
            "time, and the loop for %.0f%%.",
            100 * link->network, 100 * link->loop);
    }
}

void judge_bound(const struct judge_link *link, char *text, size_t size)
{
    const int used = snprintf(text, size, "The slowest link, %u-%u, carried %.3g MB/s. ", link->low,
        link->high, link->bytes_s * 1e-6);

    if (used > 0 && (size_t)used < size) {
        judge_cause(link, text + used, size - (size_t)used);
    }
}
