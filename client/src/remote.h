/*
 * A context's connection to a daemon on another machine.
 *
 * The library keeps what shared memory would hold: the page of counters, filled from messages, so
 * that waiting looks the same; gradients, sent piece by piece when they are pushed; and updates,
 * put together from pieces. There is no thread of the library's own: messages are taken while a
 * call waits or sends. libzmq's thread answers heartbeats meanwhile, so a trainer that computes for
 * long counts as alive, and a daemon that is gone is noticed.
 */
#ifndef ADTOPK_CLIENT_REMOTE_H
#define ADTOPK_CLIENT_REMOTE_H

#include <stdbool.h>

#include "client/src/context.h"
#include "client/src/libzmq.h"
#include "client/src/patience.h"
#include "proto/remote.pb-c.h"

/* An update, as far as it has come. Buffers are made when the first one needs them. */
struct client_arrival {
    float *dense;
    uint16_t *half;
    uint32_t *index;
    float *value;
    uint64_t capacity; /* of the list */
    uint64_t count;    /* entries of it */
    uint64_t first;    /* the next piece begins here */
    unsigned forms;    /* enum local_form: what it has */
    bool unpushed;     /* no rank pushed the tensor */
    bool final;        /* it stays until the tensor's next push */
};

struct client_remote {
    const struct libzmq *zmq; /* its functions */
    void *sockets;            /* the context of the two below */
    void *dealer, *monitor;
    int descriptor[2];           /* theirs */
    bool broken;                 /* the connection is; what came before it broke still counts */
    uint64_t sent, acknowledged; /* messages to the daemon, and those that it has taken */
    uint64_t received, answered; /* messages from the daemon, and those that it knows were taken */
    struct local_page *page;     /* context->ring.page */
    struct client_arrival *arrival; /* one a tensor */
    uint32_t arrivals;              /* so many */
    uint8_t *op_out;                /* context->op_out */
    uint32_t op_bytes;              /* that the operation under way brings */
    Adtopk__RemoteReply *reply;     /* an answer that nobody has taken yet */
};

/* ---- remote_gate.c: the sockets ---- */

/** Connects and waits for the handshake. Errors: UNREACHABLE, DENIED (keys), PROTOCOL, ARGUMENT,
 * SYSTEM, MEMORY. */
enum adtopk_status client_gate_connect(
    struct client_remote *remote, const struct client_options *options, struct error *err);

/** Sleeps as client_sleep(), until something has come from the daemon. Call it when nothing was
 * left to take: only then does libzmq say that something has come. */
enum adtopk_status client_gate_wait(
    adtopk_context *context, const struct client_patience *patience);

/** Reads the monitor: sets remote->broken if the connection broke. */
void client_gate_look(struct client_remote *remote);

void client_gate_close(struct client_remote *remote);

/* ---- remote_intake.c: what the daemon sends ---- */

/** Takes one message, if there is one: *took. What is wrong with it ends the context. */
enum adtopk_status client_intake(adtopk_context *context, bool *took);

/** Takes the message that consists of these bytes, of which nothing is trusted. */
enum adtopk_status client_intake_message(adtopk_context *context, const uint8_t *header,
    size_t header_size, const uint8_t *part, size_t part_size);

#endif
