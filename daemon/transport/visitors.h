/*
 * The connections that a listening socket has accepted, as its monitor reports them.
 *
 * The monitor does not ask for ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL. libzmq reports that event
 * between a failure and its check of errno, and reporting changes errno. A CURVE connection on
 * which one bit was flipped is then neither read nor closed any more. So a refusal shows as a
 * connection that ends and was never authenticated.
 */
#ifndef ADTOPK_TRANSPORT_VISITORS_H
#define ADTOPK_TRANSPORT_VISITORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/transport/inflow.h"
#include "daemon/transport/monitor.h"

struct visitors {
    struct monitor monitor;
    struct inflow inflow;
    uint64_t handshakes; /* that succeeded */
    uint64_t *accepted;  /* by descriptor: 1 + handshakes when it was accepted; 0: it is closed */
    size_t size;
    unsigned reported; /* failed handshakes whose connections have not ended yet */
};

enum visitors_report {
    VISITORS_NOTHING, /* nothing that an owner need know */
    VISITORS_LEFT,    /* a connection ended */
    VISITORS_REFUSED, /* a connection ended whose handshake this node did not accept */
    VISITORS_SILENT   /* a connection ended, or was ended, in the middle of its handshake */
};

/** To be called before the socket is bound. allowance: see inflow.h. False with errno, and closed.
 */
bool visitors_open(struct visitors *visitors, void *zmq, void *socket, unsigned allowance);

/** To be called before the socket is closed. */
void visitors_close(struct visitors *visitors);

/**
 * The next report; false if there is none. Refusals by the ZAP handler (zap.h) are reported as
 * LEFT. A refusal is noticed only if no other connection's handshake succeeded since it was
 * accepted: libzmq does not say which connection's handshake did.
 */
bool visitors_next(struct visitors *visitors, enum visitors_report *report);

#endif
