/*
 * The ROUTER socket to which remote trainers connect, and its monitor.
 *
 * With keys the socket speaks CURVE, and a doorkeeper (transport/zap.h) lets in trainers whose key
 * has an owner. A routing id only says over which connection a message came. The sender is the user
 * id that authentication attached to the connection. The socket has ZMQ_ROUTER_MANDATORY: sending
 * to a connection that is gone is then an error, and not a silent loss.
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
    struct allow allow; /* the "node" of a key is its owner's place in `uid` */
    uint32_t *uid;
    struct token_table tokens; /* stays empty: trainers present no tokens */
    struct refusals refusals;
    /* Of router, monitor, inflow and doorkeeper (-1: none). libzmq's descriptors are
     * edge-triggered. */
    int descriptor[GATE_DESCRIPTORS];
    bool listening;
    bool skipping; /* the rest of a message with too many parts is still to be dropped */
    char endpoint[GATE_ENDPOINT_SIZE];
};

struct gate_message {
    zmq_msg_t route, header, part;
    bool has_header, has_part;
    bool whole; /* it has a header, at most one part, and nothing after it */
};

enum gate_sent {
    GATE_SENT,
    GATE_FULL, /* its queue is full: try later */
    GATE_GONE  /* there is no such connection */
};

/** Listens; on failure `gate` is closed. `context` is the first argument of config->warn. `gate`
 * must not move afterwards. */
enum adtopk_status gate_open(
    struct gate *gate, const struct remote_config *config, void *context, struct error *err);

/** See remote_reload(). */
enum adtopk_status gate_reload(struct gate *gate, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err);

/** Call it before gate_close(), after last words were sent. For a moment it takes messages that
 * still come. A connection that is closed with unread messages is reset, and loses the last words.
 */
void gate_settle(struct gate *gate);

void gate_close(struct gate *gate);

/** Takes the next message; false if there is none. Free it with gate_drop(). */
bool gate_receive(struct gate *gate, struct gate_message *message);
void gate_drop(struct gate_message *message);

/** Sends a header and, if `part` is not NULL, a part. The function takes over the part in any case.
 */
enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part);

/** The sender of the message, as the place of its key in `uid`. GATE_NOBODY if its key has no
 * owner, or if no keys are needed. */
uint16_t gate_who(const struct gate *gate, struct gate_message *message);

/** True if the key is still allowed, and still belongs to this user. */
bool gate_knows(const struct gate *gate, const char *key, uint32_t uid);

/** Answers the doorkeeper's questions and reads the monitor. True if a connection went away. */
bool gate_look(struct gate *gate);

/** True if there is something to receive or to answer. Makes libzmq look at its threads' reports.
 */
bool gate_readable(struct gate *gate);

#endif
