/*
 * What every process that is measured has in common: it connects to the conductor, says that it is
 * ready, and makes a step whenever it is told to. The conductor tells all ranks of one contender at
 * a time, so that contenders take turns; who is not told sleeps in read() and costs nothing.
 *
 * The conversation, lines over a Unix socket; times are of CLOCK_MONOTONIC, in nanoseconds:
 *
 *     rank: TEAM RANK PID             ready
 *     conductor: prepare WHAT         rank: ready
 *     conductor: step WHAT            rank: BEGIN END
 *
 * Failures: whatever goes wrong is one sentence on standard error and exit status 1, which the
 * conductor notices. When the conductor hangs up, the rank ends with status 0.
 */
#ifndef CLUSTER_TURNS_H
#define CLUSTER_TURNS_H

#include <stdbool.h>

/* What a team does in a turn; `what` is the contender's name. False: it failed and said why. */
struct turns {
    bool (*prepare)(void *context, const char *what); /* not measured */
    bool (*step)(void *context, const char *what);    /* measured */
};

/** Serves the conductor at this path until it hangs up; then, and only then, true. */
bool turns_serve(
    const char *path, const char *team, unsigned rank, const struct turns *turns, void *context);

/** Prints "TEAM rank N: " and the sentence to standard error; returns false. */
bool turns_fail(const char *team, unsigned rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
