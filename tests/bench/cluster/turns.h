/*
 * Shared by all processes that are measured. Such a process connects to the conductor, reports that
 * it is ready, and makes a step on every order. The conductor gives orders to all ranks of one
 * contender at a time, so that contenders take turns. The others sleep in read() and cost nothing.
 *
 * The conversation, lines over a Unix socket; times are of CLOCK_MONOTONIC, in nanoseconds:
 *
 *     rank: TEAM RANK PID             ready
 *     conductor: prepare WHAT         rank: ready
 *     conductor: step WHAT            rank: BEGIN END, or BEGIN and an END for each of its steps
 *
 * Failures: an error is one sentence on standard error and exit status 1, which the conductor
 * notices. When the conductor hangs up, the rank ends with status 0.
 */
#ifndef CLUSTER_TURNS_H
#define CLUSTER_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TURNS_LINE 128

/* A team's work in a turn; `what` is the contender's name. False: it failed and reported why. */
struct turns {
    bool (*prepare)(void *context, const char *what); /* not measured */
    bool (*step)(void *context, const char *what);    /* measured */
};

/** Serves the conductor at this path until it hangs up; then, and only then, true. */
bool turns_serve(
    const char *path, const char *team, unsigned rank, const struct turns *turns, void *context);

/* The same for a rank whose steps are not functions, because it runs a loop of other code. */
struct turns_talk {
    FILE *in, *out;
    const char *team;
    unsigned rank;
    char line[TURNS_LINE];
};

enum turns_order { TURNS_FAILED, TURNS_END, TURNS_PREPARE, TURNS_STEP };

/** Tells the conductor that the rank is ready. False: it cannot be reached, which was said. To be
 * closed in either case; `team` is borrowed. */
bool turns_open(struct turns_talk *talk, const char *path, const char *team, unsigned rank);
void turns_close(struct turns_talk *talk);

/** Waits for the next order. *what is the text behind the order's word, valid until the next call.
 */
enum turns_order turns_next(struct turns_talk *talk, const char **what);

/** Answers an order to prepare. */
bool turns_ready(struct turns_talk *talk);

/** Answers an order to make `count` steps: when the first began and when each ended. */
bool turns_made(struct turns_talk *talk, uint64_t begin_ns, const uint64_t *end_ns, unsigned count);

/** Prints "TEAM rank N: " and the sentence to standard error; returns false. */
bool turns_fail(const char *team, unsigned rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
