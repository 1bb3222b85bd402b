/*
 * A network of many nodes, as a model. Every node has one link each way, and nodes stand in racks.
 * A rack's links to the rest may be narrower than those of its nodes together; if they are not, the
 * network is a full fat tree. A link carries one message after the other, in the order in which
 * they reach it. A message passes on while it still arrives (cut-through), and each way takes a
 * latency. Messages wait in front of a busy link in any number: nothing is lost or held up.
 */
#ifndef ADTOPK_SCALE_FABRIC_H
#define ADTOPK_SCALE_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The properties of a network. */
struct fabric_links {
    double latency;    /* seconds from node to node */
    double bandwidth;  /* bytes a second of a node's link */
    unsigned rack;     /* nodes in one; 0: all */
    double narrowing;  /* the links of a rack's nodes together, divided by the rack's link; 1:
                        * equal */
    unsigned overhead; /* bytes of overhead of each message */
};

/* A message on its way. */
struct fabric_message {
    unsigned from, to;
    uint64_t bytes;
    void *cargo;
};

struct fabric;

/** Among so many nodes; NULL without memory. */
struct fabric *fabric_open(const struct fabric_links *links, unsigned nodes);
void fabric_close(struct fabric *fabric);

/** From now on links carry so many bytes per second. Messages on their way are not slowed down. */
void fabric_set_bandwidth(struct fabric *fabric, double bandwidth);

/** Sends at the time `now`, which is not before that of the message taken last, nor before that
 * at which the same node sent last. False without memory. */
bool fabric_send(struct fabric *fabric, double now, const struct fabric_message *message);

/** Takes the next message that has arrived, and its time. False if none is on its way. */
bool fabric_next(struct fabric *fabric, struct fabric_message *message, double *now);

/** The same, but none that is not all there by then: one may be sent at that time afterwards. */
bool fabric_next_until(
    struct fabric *fabric, double until, struct fabric_message *message, double *now);

#endif
