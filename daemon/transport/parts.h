/*
 * The parts of a ZeroMQ message that carries a packet.
 *
 * A packet with a short body is one part. To copy it costs less than to keep it where it lies. A
 * long body is a second part, behind the header. The sender gives libzmq a reference to the body's
 * buffer instead of a copy. On its own thread libzmq drops it once the kernel has the bytes, or
 * once the connection has ended. The receiver keeps the part as libzmq has read it. libzmq hands
 * over all parts of a message or none.
 */
#ifndef ADTOPK_TRANSPORT_PARTS_H
#define ADTOPK_TRANSPORT_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "daemon/link/link.h"

/** Sends a packet as one part, which is a copy, or as two. Returns false if it cannot be sent now;
 * then libzmq keeps nothing. */
bool parts_send_one(
    void *socket, const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size);
bool parts_send_two(void *socket, const uint8_t *header, size_t header_size, const uint8_t *body,
    size_t body_size, struct buffer *owner);

/* What a message is. PARTS_BAD: its second part could be no body, or there is no memory for it; all
 * of it was dropped. PARTS_MANY: it has more than two, and socket_drop_parts() has to drop the
 * rest. */
enum parts { PARTS_PACKET, PARTS_BAD, PARTS_MANY };

/** Takes what belongs to the part that was just received. *body gets the body if it is a part of
 * its own, and NULL otherwise. */
enum parts parts_take_rest(void *socket, zmq_msg_t *first, struct buffer **body);

#endif
