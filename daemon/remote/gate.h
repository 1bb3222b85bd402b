/*
 * The ROUTER socket to which remote trainers connect, and its monitor.
 *
 * With keys the socket speaks CURVE, and a doorkeeper (transport/zap.h) lets in whose key has an
 * owner. A routing id only says over which connection a message came; who sent it is the user id
 * that authentication attached to the connection. ROUTER with ZMQ_ROUTER_MANDATORY, so that sending
 * to a connection that is gone is an error instead of a loss.
 */
#ifndef ADTOPK_REMOTE_GATE_H
#define ADTOPK_REMOTE_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zmq.h>

#include "daemon/remote/remote.h"
#include "daemon/transport/allow.h"
#include "daemon/transport/refusals.h"
#include "daemon/transport/visitors.h"
#include "daemon/transport/zap.h"

#define GATE_ROUTE_SIZE 255
#define GATE_ENDPOINT_SIZE 272
#define GATE_DESCRIPTORS 4
#define GATE_NOBODY UINT16_MAX

struct gate {
    void *zmq;
    void *router;
    struct visitors visitors;
    struct zap zap;
    struct allow allow; /* a key's "node" is its owner's place in `uid` */
    uint32_t *uid;
    struct token_table tokens; /* nobody here presents one */
    struct refusals refusals;
    /* Router, monitor, inflow, doorkeeper (-1: none). Those of libzmq are edge-triggered. */
    int descriptor[GATE_DESCRIPTORS];
    bool skipping; /* a message with too many parts is not wholly dropped yet */
    char endpoint[GATE_ENDPOINT_SIZE];
};

struct gate_message {
    zmq_msg_t route, header, part;
    bool has_part;
    bool whole; /* it has a header, at most one part, and nothing behind */
};

enum gate_sent {
    GATE_SENT,
    GATE_FULL, /* its queue is; later */
    GATE_GONE  /* no such connection */
};

/** Listens; on failure `gate` is closed. `context` goes to config->warn. `gate` must not move. */
enum adtopk_status gate_open(
    struct gate *gate, const struct remote_config *config, void *context, struct error *err);

/** See remote_reload(). */
enum adtopk_status gate_reload(struct gate *gate, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err);

/** Before gate_close(), when last words have been sent: takes what still comes, for a moment. A
 * connection that is closed with something unread is reset, and loses them. */
void gate_settle(struct gate *gate);

void gate_close(struct gate *gate);

/** Takes the next message; false if there is none. Free it with gate_drop(). */
bool gate_receive(struct gate *gate, struct gate_message *message);
void gate_drop(struct gate_message *message);

/** Sends a header and, if `part` is not NULL, a part, which is taken over in any case. */
enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part);

/** Who sent the message: the place of its key in `uid`. GATE_NOBODY if its key has no owner, or is
 * not needed. */
uint16_t gate_who(const struct gate *gate, struct gate_message *message);

/** The key at that place was allowed, to this user, and still is. */
bool gate_knows(const struct gate *gate, const char *key, uint32_t uid);

/** Answers the doorkeeper's questions and reads the monitor; true if a connection went away. */
bool gate_look(struct gate *gate);

/** True if there is something to receive or to answer. Makes libzmq look at what its threads
 * reported. */
bool gate_readable(struct gate *gate);

#endif
