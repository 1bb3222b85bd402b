/*
 * Sends on a session socket and never blocks. A message that does not fit now waits in a short
 * queue, with its descriptors. A client that lets the queue fill up does not read: it has lost its
 * session.
 */
#ifndef ADTOPK_LOCAL_OUTBOX_H
#define ADTOPK_LOCAL_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTBOX_MESSAGES 8
#define OUTBOX_DESCRIPTORS 2

struct outbox_message {
    uint8_t *bytes;
    size_t size;
    int descriptor[OUTBOX_DESCRIPTORS]; /* copies, which are closed with the message */
    unsigned descriptors;
};

struct outbox {
    struct outbox_message message[OUTBOX_MESSAGES];
    unsigned first, count;
    /* The system had no room, although the socket had. Nothing says when it has again. */
    bool starved;
};

enum outbox_result {
    OUTBOX_SENT,
    OUTBOX_QUEUED,
    OUTBOX_FULL,    /* the client does not read */
    OUTBOX_STARVED, /* there is no memory or descriptor for the copy */
    OUTBOX_BROKEN   /* the connection has ended */
};

/** Sends a message, or queues a copy behind others. The caller keeps `bytes` and descriptors. Any
 * result but SENT and QUEUED: the message will not arrive. */
enum outbox_result outbox_send(struct outbox *outbox, int socket, const uint8_t *bytes, size_t size,
    const int *descriptor, unsigned descriptors);

/** Sends queued messages, when the socket has room again. SENT: all of them. QUEUED: the system has
 * no room, and outbox->starved is set. The caller clears it when it is time to try again. */
enum outbox_result outbox_flush(struct outbox *outbox, int socket);

/** Drops the queued messages. */
void outbox_clear(struct outbox *outbox);

/** Sends a wake-up. True if it left; if the socket is full the client is awake anyway. */
bool outbox_wake(int socket);

#endif
