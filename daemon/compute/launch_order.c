#include "daemon/compute/launch_order.h"

#include <assert.h>

/* What is known of the number: it will not be less. */
static uint64_t launch_least(const struct round *round)
{
    return round->launch.number != 0 ? round->launch.number : round->exchange.carried.proposed;
}

bool launch_before(const struct round *a, const struct round *b)
{
    if (launch_least(a) != launch_least(b)) {
        return launch_least(a) < launch_least(b);
    }
    if (a->job->run.id != b->job->run.id) {
        return a->job->run.id < b->job->run.id;
    }
    return a->bucket < b->bucket;
}

void launch_add(struct round *round)
{
    struct core *core = round->job->core;

    assert(!round->launch.waits);
    round->launch.waits = true;
    round->launch.next = core->launches.waiting;
    core->launches.waiting = round;
}

void launch_remove(struct round *round)
{
    struct round **at = &round->job->core->launches.waiting;

    assert(round->launch.waits);
    while (*at != round) {
        at = &(*at)->launch.next;
    }
    *at = round->launch.next;
    round->launch.waits = false;
}

struct round *launch_first(const struct core *core)
{
    struct round *first = core->launches.waiting;

    for (struct round *round = first; round != NULL; round = round->launch.next) {
        first = launch_before(round, first) ? round : first;
    }
    return first;
}
