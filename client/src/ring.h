/*
 * The client's end of the ring: submits entries and handles the sleep words. No system calls.
 */
#ifndef ADTOPK_CLIENT_RING_H
#define ADTOPK_CLIENT_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/local.h"

struct ring_writer {
    struct local_ring *ring;       /* the library writes it */
    const struct local_page *page; /* the daemon writes it */
    uint64_t tail;                 /* entries submitted; the ring has a copy of it for the daemon */
    uint32_t sleep;                /* number of the library's last sleep */
    uint32_t answered;             /* the last sleep of the daemon that the library answered */
};

/** True if there is room for an entry. */
bool ring_writer_has_room(const struct ring_writer *writer);

/** Submits an entry; there must be room. */
void ring_writer_put(struct ring_writer *writer, const struct local_entry *entry);

/** After submitting: true if the daemon must be sent a wake-up. */
bool ring_writer_must_wake(struct ring_writer *writer);

/** Call it before sleeping: asks the daemon for a wake-up. The caller then looks once more at the
 * condition for which it waits. */
void ring_writer_sleep(struct ring_writer *writer);

/** Withdraws the request of ring_writer_sleep(). */
void ring_writer_awake(struct ring_writer *writer);

#endif
