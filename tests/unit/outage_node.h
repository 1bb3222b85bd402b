/*
 * The real daemon in a child of the test, for outages: the child is a copy of the test's program,
 * in which the linker has wrapped the calls that fail (tests/host/outage.h).
 */
#ifndef ADTOPK_TESTS_OUTAGE_NODE_H
#define ADTOPK_TESTS_OUTAGE_NODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/keyfile.h"
#include "tests/host/outage.h"

#define OUTAGE_NODES 3 /* at most, see nodes_count() */
#define LOST_NODE 2u   /* of three: a job goes on without it */

struct outage_node {
    pid_t pid;
    bool managed; /* a service manager keeps its stores */
    bool keeps;   /* it has a folder for them */
    char config[64];
    char control[64]; /* path of the control socket */
    char local[80];   /* address for trainers on this node */
    char remote[80];  /* address for trainers elsewhere */
    char log[64];
    char key[KEYFILE_KEY_SIZE]; /* public; "" without keys */
    int descriptors, mappings;  /* of a daemon at rest, see node_settle() */
    int64_t held;
};

enum nodes_kind {
    NODES_INSECURE,
    NODES_KEYS,    /* nodes and trainers have keys, and bulk goes in the clear */
    NODES_SEEDS,   /* the same, and node 1 is the seed of two others */
    NODES_KEPT,    /* without keys, and a service manager keeps the stores of node 0 */
    NODES_DEVICES, /* the same, with residuals on GPUs */
    NODES_LEARN,   /* as NODES_SEEDS, without keys */
    NODES_THREE    /* three nodes without keys, and LOST_NODE keeps no stores */
};

/** Makes a folder on a tmpfs, and a configuration in it for each node. */
void nodes_prepare(struct outage_node nodes[OUTAGE_NODES], enum nodes_kind kind);

/** How many nodes there are. */
unsigned nodes_count(void);

/** Writes a node's configuration anew. `changed`: with one more node, another policy and level of
 * the log, and, where there are keys, with one more trainer and another key of this node. */
void nodes_configure(struct outage_node nodes[OUTAGE_NODES], unsigned node, bool changed);

/** Removes the folder. */
void nodes_remove(void);

/** The folder. */
const char *nodes_folder(void);

/** The trainers' file of keys, in a folder with keys. */
const char *nodes_trainer_key(void);

/** Starts a node and waits until it serves. An error fails the test. */
void node_start(struct outage_node *node);

/** Starts a node whose calls fail as planned while it starts, and ends it if it serves. Returns
 * how many calls failed. The node must serve, or say why not and end with status 1. `must`: it must
 * serve. */
uint64_t node_try_start(
    struct outage_node *node, enum outage kind, uint64_t from, uint64_t count, bool must);

/** Lets a node read its configuration again (SIGHUP). It must say in its log that it has taken it,
 * or why not: then returns false. */
bool node_read_again(const struct outage_node *node);

/** Ends a node, which must have freed everything. */
void node_stop(struct outage_node *node);

/** Makes a process that becomes the node's daemon after this one, and one for the case that the
 * first cannot start. No context may be open. Returns the first one's number. */
pid_t node_stand_by(struct outage_node *node);

/** Ends the daemon with the signal `how`, and lets the next one begin. Calls nothing that may fail.
 */
void node_exchange(struct outage_node *node, int how);

/** After node_stand_by(), and a walk in which the daemon was ended or not: the one that serves is
 * the node's. If the first could not start, it must have said why. */
void node_relieve(struct outage_node *node);

/** Fails the test unless the node lives. */
void node_must_live(const struct outage_node *node);

/** Remembers what a node at rest holds. */
void node_rest(struct outage_node *node);

/** Waits until the node holds no more than at rest. False after so many milliseconds. */
bool node_settle(const struct outage_node *node, unsigned limit_ms);

#endif
