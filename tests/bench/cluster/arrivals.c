#include "tests/bench/cluster/arrivals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Reads a number and the character behind it. */
static bool take(const char **text, char end, uint64_t *number)
{
    char *rest;

    errno = 0;
    *number = strtoull(*text, &rest, 10);
    if (rest == *text || errno != 0 || *rest != end) {
        return false;
    }
    *text = rest + (end != '\0');
    return true;
}

bool arrivals_order(const char *text, struct shapes *shapes, uint64_t at_ns[SHAPES_MAX])
{
    const struct shapes given = *shapes;
    bool seen[SHAPES_MAX] = {false};
    uint64_t number = 0;

    memset(at_ns, 0, SHAPES_MAX * sizeof(at_ns[0]));
    for (unsigned i = 0; text != NULL && i < shapes->count; i++) {
        const char end = i + 1 < shapes->count ? ',' : '\0';

        if (!take(&text, ':', &number) || number >= shapes->count || seen[number] ||
            !take(&text, end, &at_ns[i]) || (i > 0 && at_ns[i] < at_ns[i - 1])) {
            return false;
        }
        seen[number] = true;
        shapes->tensor[i] = given.tensor[number];
    }
    return true;
}

void arrivals_await(uint64_t begin_ns, uint64_t at_ns)
{
    const uint64_t until = begin_ns + at_ns;
    const struct timespec time = {(time_t)(until / 1000000000), (long)(until % 1000000000)};

    while (at_ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {
    }
}
