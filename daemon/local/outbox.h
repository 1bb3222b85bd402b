/*
 * Sending on a session socket, never blocking: what does not fit now waits in a short queue, with
 * its descriptors. A client that lets the queue fill up does not read, and has lost its session.
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
    int descriptor[OUTBOX_DESCRIPTORS]; /* copies, closed with the message */
    unsigned descriptors;
};

struct outbox {
    struct outbox_message message[OUTBOX_MESSAGES];
    unsigned first, count;
};

enum outbox_result { OUTBOX_SENT, OUTBOX_QUEUED, OUTBOX_FULL, OUTBOX_BROKEN };

/** Sends a message, or queues it behind others. `bytes` is malloc'ed and taken over; descriptors
 * stay the caller's. FULL, BROKEN: it will not arrive. */
enum outbox_result outbox_send(struct outbox *outbox, int socket, uint8_t *bytes, size_t size,
    const int *descriptor, unsigned descriptors);

/** The socket can take more: sends what is queued. SENT: all of it. */
enum outbox_result outbox_flush(struct outbox *outbox, int socket);

/** Drops what is queued. */
void outbox_clear(struct outbox *outbox);

/** Sends a wake-up; true if it left (if the socket is full the client is awake anyway). */
bool outbox_wake(int socket);

#endif
