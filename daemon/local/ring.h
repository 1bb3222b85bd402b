/*
 * The daemon's end of a session's ring and page: consuming what the client submits, and telling it
 * how far things are. No system calls.
 *
 * Nothing in the ring is trusted. Entries are copied field by field before anybody looks at them.
 */
#ifndef ADTOPK_LOCAL_RING_H
#define ADTOPK_LOCAL_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/local.h"

struct ring_reader {
    const struct local_ring *ring; /* the client's words */
    struct local_page *page;       /* ours */
    uint64_t head;                 /* entries consumed; the copy in the page is for the client */
    uint32_t answered;             /* the client's last sleep that was answered */
    uint32_t sleep;                /* number of our last sleep */
};

/** Copies the oldest entry that was not consumed and consumes it. 1: done, 0: there is none, -1:
 * the client's index cannot be right (err says why). */
int ring_reader_take(struct ring_reader *reader, struct local_entry *entry, struct error *err);

/** Tells the client how much was consumed. */
void ring_reader_publish(struct ring_reader *reader);

/** True if the client submitted something that was not taken yet, right or wrong. */
bool ring_reader_pending(const struct ring_reader *reader);

/** After any write that the client may wait for: true if it must be sent a wake-up. */
bool ring_reader_must_wake(struct ring_reader *reader);

/** Before sleeping: asks for a wake-up. The caller then looks at ring_reader_pending() again. */
void ring_reader_sleep(struct ring_reader *reader);

/** Takes ring_reader_sleep() back. */
void ring_reader_awake(struct ring_reader *reader);

#endif
