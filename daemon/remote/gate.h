/*
 * The ROUTER socket to which remote trainers connect, and its monitor.
 *
 * A routing id only says over which connection a message came; who sent it is the user id that
 * authentication attached to the connection. ROUTER with ZMQ_ROUTER_MANDATORY, so that sending to
 * a connection that is gone is an error instead of a loss.
 */
#ifndef ADTOPK_REMOTE_GATE_H
#define ADTOPK_REMOTE_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zmq.h>

#include "daemon/remote/remote.h"

#define GATE_ROUTE_SIZE 255
#define GATE_ENDPOINT_SIZE 272

struct gate {
    void *zmq;
    void *router;
    void *monitor;
    int descriptor, monitor_descriptor; /* edge-triggered */
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

/** Listens; on failure `gate` is closed. */
enum adtopk_status gate_open(
    struct gate *gate, const struct remote_config *config, struct error *err);

void gate_close(struct gate *gate);

/** Takes the next message; false if there is none. Free it with gate_drop(). */
bool gate_receive(struct gate *gate, struct gate_message *message);
void gate_drop(struct gate_message *message);

/** Sends a header and, if `part` is not NULL, a part, which is taken over in any case. */
enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part);

/** Reads the monitor; true if a connection went away. */
bool gate_look(struct gate *gate);

/** True if there is something to receive. Makes libzmq look at what its threads reported. */
bool gate_readable(struct gate *gate);

#endif
