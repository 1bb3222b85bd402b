/*
 * The ranks of one job that go through every call of the client library: this process at the first
 * node, and a child of it at each other one. One more process is an operator of the first node.
 * Each walk is a run of its own.
 */
#ifndef ADTOPK_TESTS_OUTAGE_RANK_H
#define ADTOPK_TESTS_OUTAGE_RANK_H

#include <adtopk/adtopk.h>

#include "outage_node.h"

enum walk_kind {
    WALK_LOCAL,         /* all calls but loading, at a daemon on this node */
    WALK_LOAD,          /* loads the last checkpoint that was saved, then trains */
    WALK_REMOTE,        /* the first rank's daemon is on another machine */
    WALK_ASK,           /* the first rank's process asks its node for every document */
    WALK_GROW,          /* the second rank dies, and joins again while the first one trains */
    WALK_OPERATE,       /* the operator changes what there is to change */
    WALK_SUCCESSOR,     /* the second rank dies in mid-step, and another process takes its place */
    WALK_KILLED,        /* the first daemon is killed in mid-step, and started again */
    WALK_STOPPED,       /* it is stopped during an operation, and started again */
    WALK_FAR_KILLED,    /* as WALK_KILLED, with the first rank on another machine */
    WALK_LOST,          /* of three nodes one is killed, and the others go on */
    WALK_DEVICE,        /* residuals, gradients and updates are on GPUs */
    WALK_DEVICE_KILLED, /* as WALK_KILLED */
    WALK_KINDS
};

/* Who walks. */
enum { WALKER_FIRST, WALKER_SECOND, WALKER_THIRD, WALKER_OPERATOR, WALKERS };

/* How a walk ended for one of them. */
struct walk_end {
    enum adtopk_status status;
    char call[32]; /* the call that returned the status */
    char text[512];
};

/** Starts the others. The nodes serve already. */
void walkers_start(struct outage_node nodes[OUTAGE_NODES]);
void walkers_stop(void);

/** The process of one of them; 0: nobody is there. */
pid_t walkers_process(unsigned place);

/** All walk. A rank gives up where another one has failed. Returns after all have closed their
 * contexts. In a walk that ends a daemon, another one stands by (node_stand_by()). */
void walk(enum walk_kind kind, struct walk_end end[WALKERS]);

/** The node of which a walk ends the daemon; NULL: of none. */
struct outage_node *walk_ends(enum walk_kind kind, struct outage_node nodes[OUTAGE_NODES]);

/** Undoes what an operator who was interrupted may have left. */
void walk_mend(enum walk_kind kind);

#endif
