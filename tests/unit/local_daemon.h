/*
 * A daemon for tests of local sessions: daemon/local in a child process. A small core drives it,
 * with jobs of one rank whose update is the gradient itself.
 *
 * The name of a job asks for special behaviour. "refused" may not open, "silent" never ends a step
 * or an operation, and "failing" ends with an error when its first step ends.
 */
#ifndef ADTOPK_TESTS_LOCAL_DAEMON_H
#define ADTOPK_TESTS_LOCAL_DAEMON_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/local/local.h"

#define PATIENCE_MS 60000 /* how long a test waits for what must happen */

/* The state of a daemon that its parent can see. */
struct daemon_view {
    _Atomic uint64_t iterations;  /* of its loop */
    _Atomic uint32_t lost;        /* sessions lost so far */
    char reason[ERROR_TEXT_SIZE]; /* reason of the last loss, complete before `lost` grows */
    struct local_stats stats;     /* as of the last iteration */
};

struct daemon {
    pid_t pid;
    char folder[32];
    char path[64];
    char address[80];
    struct daemon_view *view;
};

/** Starts a daemon with at most max_sessions sessions, on a socket of its own. Returns 0 on
 * success. */
int daemon_start(struct daemon *daemon, uint32_t max_sessions);

/** Ends the daemon cleanly. Returns its exit status: 0 if it had freed everything. */
int daemon_stop(struct daemon *daemon);

/** Kills the daemon if it lives, and removes its folder. */
void daemon_remove(struct daemon *daemon);

/** The daemon's open descriptors, and its mappings of shared memory. */
int daemon_descriptors(const struct daemon *daemon);
int daemon_mappings(const struct daemon *daemon);

/** Waits at most timeout_ms until the daemon has no more than these. Returns 0 on success. */
int daemon_settle(const struct daemon *daemon, int descriptors, int mappings, int timeout_ms);

/** Sleeps. */
void sleep_ms(int ms);

#endif
