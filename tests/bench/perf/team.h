/*
 * Threads that work on the parts of one task side by side, as the daemon's workers do on the ranges
 * of a pass. They spin between two tasks, and give their core up when that takes long, because a
 * task of a few microseconds must not wait for a system call.
 */
#ifndef PERF_TEAM_H
#define PERF_TEAM_H

#include "kernels/base/parallel.h"

#define TEAM_MAX 64

struct team;

/** `threads` threads, 1 to TEAM_MAX, the caller's included. NULL: they cannot be started. */
struct team *team_new(unsigned threads);

unsigned team_threads(const struct team *team);

/** The team in the form that kernels use for loops: idle threads take parts. A loop inside a part
 * runs on the calling thread. For the team's owner; valid as long as the team is. */
struct parallel team_parallel(struct team *team);

/** NULL is allowed. */
void team_free(struct team *team);

#endif
