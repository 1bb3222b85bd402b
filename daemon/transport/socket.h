/*
 * The ZeroMQ sockets of the transport: their limits, times and protection, in one place.
 *
 * All functions return NULL or false with errno set by libzmq.
 */
#ifndef ADTOPK_TRANSPORT_SOCKET_H
#define ADTOPK_TRANSPORT_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "daemon/link/link.h"
#include "daemon/transport/monitor.h"
#include "proto/keyfile.h"

#define SOCKET_ENDPOINT_SIZE 272

#define SOCKET_PUSH_REPORTS                                                                        \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_DISCONNECTED)

/* ZAP domains: which listening socket a connection came to. */
#define SOCKET_DOMAIN_CONTROL "adtopk"
#define SOCKET_DOMAIN_BULK "adtopk.bulk"

/** A PULL socket, not bound yet. With a key pair it accepts only CURVE connections to that pair. */
void *socket_new_pull(void *zmq, const char *endpoint, const struct keyfile_pair *pair);

/** A PULL socket for bulk in the clear: accepts only connections that present a token. */
void *socket_new_bulk_pull(void *zmq, const char *endpoint);

/** Binds, and writes to `bound` where. Tries for a while if the address is still in use by a
 * socket that this process has just closed and `again` says so. */
bool socket_bind(void *socket, const char *endpoint, bool again, char bound[SOCKET_ENDPOINT_SIZE]);

/** Connects; a signal changes nothing. False with `errno`. */
bool socket_reach(void *socket, const char *endpoint);

/* Whom a socket reaches. */
struct socket_target {
    const char *endpoint;
    const struct keyfile_pair *pair; /* this node's; NULL: in the clear */
    char (*keys)[KEYFILE_KEY_SIZE];  /* of the server, which has one of these */
    size_t key_count;
    int retry_ms; /* at most, from one try to the next */
};

/** A PUSH socket, which reconnects by itself. With a pair it speaks CURVE; of several keys it tries
 * all at once and one succeeds. monitor: is opened for SOCKET_PUSH_REPORTS, and must be closed
 * before the socket; NULL: none. */
void *socket_open_push(
    void *zmq, enum link_lane lane, const struct socket_target *target, struct monitor *monitor);

/** How long to wait between two tries, at most, with so many peers, of which all may be down. */
int socket_retry_ms(size_t peers);

/** A PUSH socket for bulk in the clear that names itself `user` and presents `token` when it
 * connects. It does not reconnect, because a token is good for one connection only. */
void *socket_new_bulk_push(void *zmq, const char *endpoint, const char *user, const char *token);

/** Which of ZMQ_POLLIN and ZMQ_POLLOUT would succeed. The call makes libzmq process the reports of
 * its I/O thread: connections that came up or went away, messages, room in a queue. */
int socket_events(void *socket);

/** Receives the next part, which is there as soon as the first one is: a signal in between changes
 * nothing. Returns whether there was one. */
bool socket_receive_part(void *socket, zmq_msg_t *part);

/** Drops the next parts of a message, `most` or fewer. Returns whether the last one is dropped. */
bool socket_drop_parts(void *socket, unsigned most);

#endif
