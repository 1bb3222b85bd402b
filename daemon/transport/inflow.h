/*
 * Counts the bytes that arrive on the connections of a listening socket, and ends connections whose
 * message does not end.
 *
 * libzmq gathers all parts of a message before it hands over the first one. Its limits are for one
 * part and for the number of messages. So a peer that sends part after part fills this process's
 * memory. Hence this module counts each connection's bytes, by the kernel's own count for its
 * descriptor. It ends a connection that brought more than INFLOW_MOST bytes since its last message,
 * although the owner has taken every message from libzmq. Empty parts are two bytes on the wire and
 * 64 in libzmq, so such a message may have taken 40 MiB by then.
 *
 * A silent connection costs nothing. While connections send, one timer wakes the loop every
 * INFLOW_REST_US, or less often if there are many, and all are checked at once. A connection can
 * exceed the limit by the bytes that it sends in that time.
 */
#ifndef ADTOPK_TRANSPORT_INFLOW_H
#define ADTOPK_TRANSPORT_INFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

/* More than the longest message that this node accepts (TRANSPORT_BODY_MAX, REMOTE_OP_SIZE). */
#define INFLOW_MOST (1280U * 1024U)
#define INFLOW_REST_US 5000U

#define INFLOW_WHO_SIZE 64

struct inflow_connection {
    bool open;
    bool resting; /* checked when the timer has run out, not when it has something to read */
    bool took;    /* a message of it was handed over since the last check */
    bool suspect;
    uint64_t base;  /* the bytes that it had brought when a message of it was handed over last */
    uint64_t bytes; /* at the last look */
    uint64_t looked_us;
    uint64_t handed; /* inflow.handed when it became a suspect */
};

/* Zero is a closed one. */
struct inflow {
    bool opened;
    int epoll; /* readable when inflow_look() has something to do */
    int timer;
    bool timing;   /* the timer runs */
    unsigned port; /* of the listening socket */
    unsigned allowance;
    uint64_t handed; /* messages, of all connections */
    unsigned open, suspects;
    struct inflow_connection *connection; /* by descriptor */
    size_t size;
};

/** allowance: bytes per second that a connection may bring without a message, for heartbeats of
 * ZMTP. On error returns false with errno, and closes everything. */
bool inflow_open(struct inflow *inflow, unsigned allowance);
void inflow_close(struct inflow *inflow);

/** Where the socket listens: connections on other ports are left alone. */
void inflow_bound(struct inflow *inflow, const char *endpoint);

/** libzmq has accepted a connection, or closed one. What cannot be watched is not. Counting begins
 * with the first look, since messages may have been taken before this call. */
void inflow_add(struct inflow *inflow, uint32_t descriptor);
void inflow_remove(struct inflow *inflow, uint32_t descriptor);

/** A message came from that descriptor (ZMQ_SRCFD); below 0: libzmq does not know it. */
void inflow_took(struct inflow *inflow, int descriptor);

/** Counts the bytes that have come. If it returns true, the owner has to take all messages from
 * libzmq and call inflow_judge(). */
bool inflow_look(struct inflow *inflow);

/** Ends one connection whose message does not end, and writes its peer to `who`; false if there is
 * none. drained: the owner has received until nothing was left. */
bool inflow_judge(struct inflow *inflow, bool drained, char who[INFLOW_WHO_SIZE]);

/** Ends the connection over which a message came, and writes its peer to `who`. False if it has
 * ended: then a connection from another address may have its descriptor. */
bool inflow_end(struct inflow *inflow, zmq_msg_t *message, char who[INFLOW_WHO_SIZE]);

#endif
