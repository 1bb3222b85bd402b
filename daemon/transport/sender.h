/*
 * The way to one peer: one PUSH socket per lane, so that control packets have a TCP connection of
 * their own and never wait behind bulk.
 *
 * If bulk is to go in the clear, the sender first asks the peer for a token over the control lane.
 * The answer also names the port. Then the bulk lane has a socket that connects there once; when
 * that connection ends, a new token is needed. A peer may answer that it wants bulk encrypted, and
 * then bulk is encrypted. Not thread-safe.
 */
#ifndef ADTOPK_TRANSPORT_SENDER_H
#define ADTOPK_TRANSPORT_SENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/link/link.h"
#include "daemon/transport/monitor.h"
#include "daemon/transport/refusals.h"
#include "daemon/transport/socket.h"
#include "daemon/transport/token.h"
#include "daemon/transport/transport.h"

/* The data that all senders of a node share. */
struct sender_home {
    void *zmq;
    uint16_t self;
    const struct keyfile_pair *pair; /* NULL: no keys */
    bool clear_bulk;
    int retry_ms;              /* between two tries of a connection, at most */
    struct refusals *refusals; /* gets a line where something else answers than the peer */
};

struct sender {
    uint16_t id;                         /* the peer's */
    char endpoint[SOCKET_ENDPOINT_SIZE]; /* "": not known yet */
    char keys[TRANSPORT_PEER_KEYS][KEYFILE_KEY_SIZE];
    size_t key_count;
    void *push[LINK_LANES]; /* NULL: not open */
    struct monitor watch;   /* of the control lane's socket, unless the peer has several keys */
    bool greeted;           /* its connection has got through the handshake */
    bool cut;               /* its connection was closed before that */
    unsigned strange;       /* connections in a row that did not get through it */
    struct monitor monitor; /* of a bulk socket that presented a token */
    bool encrypted_bulk;    /* bulk was to go in the clear, but the peer wants it encrypted */
    uint64_t number;        /* of the request for a token that was not answered yet; 0: none */
    uint64_t asked_us, patience_us;
};

/** Opens the sockets that can be opened at once. `sender` has the fields up to key_count. On error
 * returns false with errno, and closes everything. */
bool sender_open(struct sender *sender, const struct sender_home *home);

void sender_close(struct sender *sender);

/** Gives the lane's connection up and opens another one. Without descriptors the lane stays closed
 * until the next call. */
void sender_reopen(struct sender *sender, const struct sender_home *home, enum link_lane lane);

/** The lane's socket, which takes a message now; NULL if there is none. */
void *sender_ready(struct sender *sender, const struct sender_home *home, enum link_lane lane);

/** Takes the peer's answer to a request; ignores an answer that was not requested. */
void sender_grant(
    struct sender *sender, const struct sender_home *home, const struct token_message *grant);

#endif
