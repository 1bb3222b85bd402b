/*
 * A context's connection to a daemon on another machine.
 *
 * The library keeps what would lie in shared memory with a local daemon. Messages fill the page of
 * counters, so waiting works the same way. A push sends the gradient piece by piece, and received
 * pieces make up an update. A call that waits or sends takes the messages. The only thread of the
 * library is the one that brings the rank back (watch.h). libzmq's thread answers heartbeats
 * meanwhile. So a trainer that computes for long counts as alive, and the library notices when a
 * daemon is gone.
 *
 * If the rank can return to its run it connects again then, with new sockets, and numbers messages
 * anew. The daemon repeats what the rank has not got of the last step, and the rank drops what it
 * has.
 */
#ifndef ADTOPK_CLIENT_REMOTE_H
#define ADTOPK_CLIENT_REMOTE_H

#include <stdbool.h>

#include "client/src/context.h"
#include "client/src/libzmq.h"
#include "client/src/patience.h"
#include "proto/remote.pb-c.h"

/* The part of an update that has arrived. Buffers are made when the first update needs them. */
struct client_arrival {
    float *dense;
    uint16_t *half;
    uint32_t *index;
    float *value;
    uint64_t capacity; /* entries for which the list has room */
    uint64_t count;    /* entries of the list so far */
    uint64_t first;    /* index at which the next piece begins */
    unsigned forms;    /* enum local_form, combined: the forms that the update has */
    bool unpushed;     /* no rank pushed the tensor */
    bool final;        /* it stays valid until the tensor's next push */
};

/* The failures so far while connecting. */
struct client_attempt {
    unsigned refused; /* attempts at which no program listened */
    unsigned broken;  /* attempts at which a program hung up before it said what it is */
};

struct client_remote {
    const struct libzmq *zmq; /* the functions of the library */
    void *sockets;            /* the ZeroMQ context of the two sockets below */
    void *dealer, *monitor;
    int descriptor[2];             /* descriptors of the two sockets */
    int end;                       /* stands for the monitor's, whichever that is; -1: none */
    struct client_options options; /* with which the rank connected; the strings are its own */
    char *key_file, *server_key;
    struct client_attempt attempt;
    bool connects;               /* a handshake is under way, as the rank comes back */
    uint64_t life;               /* connections before this one */
    bool broken;                 /* the connection broke; messages that came before still count */
    uint64_t sent, acknowledged; /* messages to the daemon, and how many of them it has taken */
    /* Messages from the daemon, and how many of them it knows were taken. */
    uint64_t received, answered;
    struct local_page *page;        /* context->ring.page */
    struct client_arrival *arrival; /* one per tensor */
    uint32_t arrivals;              /* their number */
    uint8_t *op_out;                /* context->op_out */
    uint32_t op_bytes;              /* size of the result of the operation under way */
    Adtopk__RemoteReply *reply;     /* an answer that no call has taken yet */
};

/* ---- remote_gate.c: the sockets ---- */

/** Connects and waits for the handshake. Errors: UNREACHABLE, DENIED (keys), PROTOCOL, ARGUMENT,
 * SYSTEM, MEMORY. */
enum adtopk_status client_gate_connect(
    struct client_remote *remote, const struct client_options *options, struct error *err);

/** Begins to connect anew, after client_gate_close(). Errors as above. */
enum adtopk_status client_gate_begin(
    struct client_remote *remote, const struct client_options *options, struct error *err);

/** Looks how the handshake goes. OK: connected; PENDING: not yet. Errors as above. */
enum adtopk_status client_gate_try(
    struct client_remote *remote, const struct client_options *options, struct error *err);

/** Sleeps as client_sleep() does, until the daemon has sent something. Call it only when no message
 * is left to take, because libzmq reports new messages only then. */
enum adtopk_status client_gate_wait(
    adtopk_context *context, const struct client_patience *patience);

/** Reads the monitor: sets remote->broken if the connection broke. */
void client_gate_look(struct client_remote *remote);

void client_gate_close(struct client_remote *remote);

/* ---- remote_intake.c: what the daemon sends ---- */

/** Takes one message, if there is one; sets *took. A wrong message ends the context. */
enum adtopk_status client_intake(adtopk_context *context, bool *took);

/** Takes the message that consists of these bytes. It trusts none of them. */
enum adtopk_status client_intake_message(adtopk_context *context, const uint8_t *header,
    size_t header_size, const uint8_t *part, size_t part_size);

#endif
