/*
 * The daemon's end of a session's ring and page. It consumes the client's entries and writes the
 * progress for the client. No system calls.
 *
 * The daemon trusts nothing in the ring. It copies an entry, field by field, before it looks at it.
 */
#ifndef ADTOPK_LOCAL_RING_H
#define ADTOPK_LOCAL_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/local.h"

struct ring_reader {
    const struct local_ring *ring; /* the client writes it */
    struct local_page *page;       /* the daemon writes it */
    uint64_t head;                 /* entries consumed; the page has a copy of it for the client */
    uint32_t answered;             /* the last sleep of the client that the daemon answered */
    uint32_t sleep;                /* number of the daemon's last sleep */
};

/** Copies and consumes the oldest entry that is left. 1: done, 0: there is none, -1: the client's
 * index is impossible (err says why). */
int ring_reader_take(struct ring_reader *reader, struct local_entry *entry, struct error *err);

/** Tells the client how many entries were consumed. */
void ring_reader_publish(struct ring_reader *reader);

/** True if the client submitted entries that are not consumed yet, right or wrong ones. */
bool ring_reader_pending(const struct ring_reader *reader);

/** True if the client has let go of streams that waited for updates. */
bool ring_reader_is_let_go(const struct ring_reader *reader);

/** Call it after every write for which the client may wait. True if it needs a wake-up. */
bool ring_reader_must_wake(struct ring_reader *reader);

/** Call it before sleeping: asks the client for a wake-up. The caller then looks at
 * ring_reader_pending() again. */
void ring_reader_sleep(struct ring_reader *reader);

/** Withdraws the request of ring_reader_sleep(). */
void ring_reader_awake(struct ring_reader *reader);

#endif
