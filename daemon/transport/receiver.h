/*
 * A listening PULL socket of this node, which counts the connections that it refuses.
 */
#ifndef ADTOPK_TRANSPORT_RECEIVER_H
#define ADTOPK_TRANSPORT_RECEIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/transport/refusals.h"
#include "daemon/transport/socket.h"
#include "daemon/transport/visitors.h"

/* The credentials that a connection must bring. */
enum receiver_door { RECEIVER_OPEN, RECEIVER_KEY, RECEIVER_TOKEN };

struct receiver {
    void *pull; /* NULL: closed */
    char endpoint[SOCKET_ENDPOINT_SIZE];
    enum receiver_door door;
    struct visitors visitors;
    bool skipping; /* the rest of a message of too many parts is still to be dropped */
};

/** Listens. `pair` is for RECEIVER_KEY; `again`: the address was this process's own until now.
 * False with errno, and closed. */
bool receiver_open(struct receiver *receiver, void *zmq, const char *endpoint,
    enum receiver_door door, const struct keyfile_pair *pair, bool again);

/** Stops to listen and cuts all connections. */
void receiver_close(struct receiver *receiver);

/** Counts and logs connections that were refused without a question to the ZAP handler (zap.h),
 * which logs its own refusals. Reads up to `budget` reports; true if more may wait. */
bool receiver_watch(struct receiver *receiver, unsigned budget, struct refusals *refusals);

/** Call it after messages were taken from `pull`: cuts, counts and logs connections whose message
 * does not end (inflow.h). drained: nothing was left. */
void receiver_judge(struct receiver *receiver, bool drained, struct refusals *refusals);

/** A message of too many parts has begun: cuts and logs its connection. The rest of the message is
 * to be dropped before the next one. */
void receiver_skip(struct receiver *receiver, zmq_msg_t *first, struct refusals *refusals);

#endif
