/*
 * What comes in on the connections of a listening socket, and the end of those whose message has no
 * end.
 *
 * libzmq gathers all parts of a message before it hands over the first one. Its limits are for one
 * part and for the number of messages, so whoever sends part after part fills this process's
 * memory. Hence each connection's bytes are counted here, by the kernel's own count for its
 * descriptor. A connection that brought more than INFLOW_MOST bytes since its last message,
 * although everything that libzmq had to hand over was taken, is ended.
 *
 * A connection that is silent costs nothing. One that sends is looked at every INFLOW_REST_US, and
 * more seldom where there are many. That much it can send beyond the limit.
 */
#ifndef ADTOPK_TRANSPORT_INFLOW_H
#define ADTOPK_TRANSPORT_INFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* More than the longest message that this node accepts (TRANSPORT_BODY_MAX, REMOTE_OP_SIZE). */
#define INFLOW_MOST (1280U * 1024U)
#define INFLOW_REST_US 5000U

#define INFLOW_WHO_SIZE 64

struct inflow_connection {
    bool open;
    bool resting; /* not looked at until the timer has run out */
    bool took;    /* a message of it was handed over since it was looked at */
    bool suspect;
    uint64_t base; /* the bytes that it had brought when a message of it was handed over last */
    uint64_t looked_us;
    uint64_t handed; /* inflow.handed when it became a suspect */
};

/* Zero is a closed one. */
struct inflow {
    bool opened;
    int epoll; /* readable when inflow_look() has something to do */
    int timer;
    unsigned port; /* of the listening socket */
    unsigned allowance;
    uint64_t handed; /* messages, of all connections */
    unsigned open, suspects;
    struct inflow_connection *connection; /* by descriptor */
    size_t size;
};

/** allowance: bytes a second that a connection may bring without a message, for heartbeats of ZMTP.
 * False with errno, and closed. */
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

/** Counts what has come. Then the owner has to take what libzmq hands over, and inflow_judge(). */
void inflow_look(struct inflow *inflow);

/** Ends one connection whose message does not end, and says whose it was; false if there is none.
 * drained: the owner has received until nothing was left. */
bool inflow_judge(struct inflow *inflow, bool drained, char who[INFLOW_WHO_SIZE]);

#endif
