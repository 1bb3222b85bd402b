/*
 * Threads that work on the parts of one task side by side, as the daemon's workers do on the ranges
 * of a pass. They spin between two tasks and give their core up when that takes long: a task of a
 * few microseconds must not wait for a system call.
 */
#ifndef PERF_TEAM_H
#define PERF_TEAM_H

#include <stdbool.h>

#define TEAM_MAX 64

struct team;

/** `threads` threads, 1 to TEAM_MAX, the caller's included. NULL: they cannot be started. */
struct team *team_new(unsigned threads);

unsigned team_threads(const struct team *team);

/** Runs part(context, 0), part(context, 1), ... on one thread each, part 0 on the caller's, and
 * returns when all are through. */
void team_run(struct team *team, void (*part)(void *context, unsigned index), void *context);

/** NULL is allowed. */
void team_free(struct team *team);

#endif
