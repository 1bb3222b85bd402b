/*
 * The ZAP handler: answers libzmq's question whether to accept a connection (ZAP, ZeroMQ RFC 27).
 *
 * A CURVE client is accepted if its key is on the allow-list. A bulk connection is accepted if it
 * presents the token that was granted to its node. The key, or the key under which the token was
 * requested, becomes the connection's User-Id, which every message on it carries. While it waits
 * for the answer libzmq does not block, so the loop's thread answers and shares the list with it.
 * Open the handler before binding a socket that it guards: without a handler libzmq accepts every
 * connection.
 */
#ifndef ADTOPK_TRANSPORT_ZAP_H
#define ADTOPK_TRANSPORT_ZAP_H

#include <stdbool.h>

#include "daemon/transport/allow.h"
#include "daemon/transport/refusals.h"
#include "daemon/transport/token.h"

struct zap {
    void *socket; /* NULL: closed */
    const struct allow *allow;
    struct token_table *tokens;
    struct refusals *refusals;
    bool final; /* refuse for good, so that libzmq does not try again, instead of "later" */
};

/** Starts to answer for all sockets of this ZeroMQ context; the other fields are the caller's.
 * False with errno. */
bool zap_open(struct zap *zap, void *zmq);

/** Answers up to `budget` questions; true if more may wait. */
bool zap_serve(struct zap *zap, unsigned budget);

void zap_close(struct zap *zap);

#endif
