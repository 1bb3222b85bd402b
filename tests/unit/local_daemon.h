/*
 * A daemon for tests of local sessions: daemon/local, driven in a child process by a small core
 * of one-rank jobs whose update is the gradient itself.
 *
 * Names of jobs ask for special behaviour: "refused" may not open, "silent" never ends a step or an
 * operation, "failing" ends with an error when its first step ends.
 */
#ifndef ADTOPK_TESTS_LOCAL_DAEMON_H
#define ADTOPK_TESTS_LOCAL_DAEMON_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/local/local.h"

/* What the parent can see of its daemon. */
struct daemon_view {
    _Atomic uint64_t turns;       /* of its loop */
    _Atomic uint32_t lost;        /* sessions lost */
    char reason[ERROR_TEXT_SIZE]; /* of the last loss; complete before `lost` grows */
    struct local_stats stats;     /* as of the last turn */
};

struct daemon {
    pid_t pid;
    char folder[32];
    char path[64];
    char address[80];
    struct daemon_view *view;
};

/** Starts a daemon with at most max_sessions sessions on a socket of its own. 0: success. */
int daemon_start(struct daemon *daemon, uint32_t max_sessions);

/** Ends it cleanly; its exit status, 0 if it found nothing left over. */
int daemon_stop(struct daemon *daemon);

/** Kills it if it lives, and removes its folder. */
void daemon_remove(struct daemon *daemon);

/** Descriptors that it has open, and mappings of shared memory. */
int daemon_descriptors(const struct daemon *daemon);
int daemon_mappings(const struct daemon *daemon);

/** Waits for at most timeout_ms until it has no more than these. 0: success. */
int daemon_settle(const struct daemon *daemon, int descriptors, int mappings, int timeout_ms);

/** Sleeps. */
void sleep_ms(int ms);

#endif
