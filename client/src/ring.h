/*
 * The client's end of the ring: submitting, and the sleep words. No system calls.
 */
#ifndef ADTOPK_CLIENT_RING_H
#define ADTOPK_CLIENT_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/local.h"

struct ring_writer {
    struct local_ring *ring;       /* ours */
    const struct local_page *page; /* the daemon's */
    uint64_t tail;                 /* entries submitted; the copy in the ring is for the daemon */
    uint32_t sleep;                /* number of our last sleep */
    uint32_t answered;             /* the daemon's last sleep that was answered */
};

/** True if there is room for an entry. */
bool ring_writer_has_room(const struct ring_writer *writer);

/** Submits an entry; there must be room. */
void ring_writer_put(struct ring_writer *writer, const struct local_entry *entry);

/** After submitting: true if the daemon must be sent a wake-up. */
bool ring_writer_must_wake(struct ring_writer *writer);

/** Before sleeping: asks for a wake-up. The caller then looks once more at what it waits for. */
void ring_writer_sleep(struct ring_writer *writer);

/** Takes ring_writer_sleep() back. */
void ring_writer_awake(struct ring_writer *writer);

#endif
