/*
 * Threads that work on the parts of one task side by side, as the daemon's workers do on the ranges
 * of a pass. They spin between two tasks and give their core up when that takes long: a task of a
 * few microseconds must not wait for a system call.
 */
#ifndef PERF_TEAM_H
#define PERF_TEAM_H

#include "kernels/cpu/parallel.h"

#define TEAM_MAX 64

struct team;

/** `threads` threads, 1 to TEAM_MAX, the caller's included. NULL: they cannot be started. */
struct team *team_new(unsigned threads);

unsigned team_threads(const struct team *team);

/** The team as what kernels take for loops: parts go to whoever is free. A loop inside a part runs
 * where it is called. For the team's owner; valid as long as the team is. */
struct parallel team_parallel(struct team *team);

/** NULL is allowed. */
void team_free(struct team *team);

#endif
