/*
 * Ctrl-C: a benchmark checks stop_requested() between two samples, prints its results so far and
 * ends.
 */
#ifndef PERF_STOP_H
#define PERF_STOP_H

#include <stdbool.h>

/** From now on SIGINT, SIGTERM and SIGHUP only set the flag (a second one ends the program at
 * once), and interrupt system calls. False on failure, see errno. */
bool stop_install(void);

bool stop_requested(void);

#endif
