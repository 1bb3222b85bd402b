/*
 * Two ranks of one job that go through every call of the client library: this process at the first
 * node, and a child of it at the second one. Each walk is a run of its own.
 */
#ifndef ADTOPK_TESTS_OUTAGE_RANK_H
#define ADTOPK_TESTS_OUTAGE_RANK_H

#include <adtopk/adtopk.h>

#include "outage_node.h"

enum walk_kind {
    WALK_LOCAL,  /* all calls but loading, at a daemon on this node */
    WALK_LOAD,   /* loads the last checkpoint that was saved, then trains */
    WALK_REMOTE, /* the first rank's daemon is on another machine */
    WALK_ASK,    /* an operator asks the first node meanwhile */
    WALK_GROW,   /* the second rank dies, and joins again while the first one trains */
    WALK_KINDS
};

/* How a rank's walk ended. */
struct walk_end {
    enum adtopk_status status;
    char call[32]; /* the call that returned the status */
    char text[512];
};

/** Starts the second rank. The nodes serve already. */
void walkers_start(const struct outage_node nodes[OUTAGE_NODES]);
void walkers_stop(void);

/** Both ranks walk. The second one gives up where the first one has failed. Returns after both
 * have closed their contexts. */
void walk(enum walk_kind kind, struct walk_end end[2]);

#endif
