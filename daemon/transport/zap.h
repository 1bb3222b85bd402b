/*
 * The doorkeeper: answers libzmq's question whether a connection may come in (ZAP, ZeroMQ RFC 27).
 *
 * A CURVE client comes in if its key is on the allow-list, a bulk connection if it presents the
 * token that was granted to its node. The key, or the key under which the token was asked for,
 * becomes the connection's User-Id, by which every message that arrives on it can be told. libzmq
 * asks in its own time and goes on when it is answered, so the questions are served from the
 * loop's thread and share the list with it. Must be open before a socket that it guards is bound:
 * without a doorkeeper libzmq lets everybody in.
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
    bool final; /* tell who is refused, whose libzmq then does not try again, instead of "later" */
};

/** Starts to answer for all sockets of this ZeroMQ context; the other fields are the caller's.
 * False with errno. */
bool zap_open(struct zap *zap, void *zmq);

/** Answers up to `budget` questions; true if more may wait. */
bool zap_serve(struct zap *zap, unsigned budget);

void zap_close(struct zap *zap);

#endif
