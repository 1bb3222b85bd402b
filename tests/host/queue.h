/* Packets on their way to one node, in the order in which they were sent. */
#ifndef ADTOPK_TESTS_HOST_QUEUE_H
#define ADTOPK_TESTS_HOST_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/link/link.h"

struct host_packet {
    struct host_packet *next;
    uint16_t from;
    enum link_lane lane;
    size_t size;
    uint8_t bytes[];
};

/* A queue of packets. All zeros is an empty queue. */
struct host_queue {
    struct host_packet *first, *last;
};

/** Adds a packet: links and cores hand over a header and a body, which the queue joins. */
void host_queue_put(struct host_queue *queue, uint16_t from, enum link_lane lane,
    const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size);

/** Takes out the first packet, which the caller frees, or returns NULL. */
struct host_packet *host_queue_take(struct host_queue *queue);

/** Drops all packets. */
void host_queue_drop(struct host_queue *queue);

#endif
