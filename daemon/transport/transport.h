/*
 * Transports carry packets between nodes. One file a transport, one table of operations.
 *
 * The contract is weak on purpose: a packet may be lost, duplicated or reordered, never altered
 * unnoticed in its header; the links above repair it.
 */
#ifndef ADTOPK_TRANSPORT_H
#define ADTOPK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/link.h"
#include "proto/error.h"

/* The longest body of a packet. Transports refuse more from the wire; links must be configured
 * with chunk_size and max_control_message up to this. */
#define TRANSPORT_BODY_MAX (1024U * 1024U)

struct transport_config {
    uint16_t self;
    const char *listen; /* endpoint, e.g. "tcp://127.0.0.1:7400" */
};

/* Gets every packet; the bytes are valid during the call only. May send, must not destroy.
 * `peer` is what the transport itself knows of the sender; UINT16_MAX if it cannot tell. */
typedef void (*transport_receive_fn)(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size);

struct transport_ops {
    const char *name;
    /* Binds and starts to receive. On failure returns NULL and says why in err. */
    void *(*create)(const struct transport_config *config, transport_receive_fn receive,
        void *context, struct error *err);
    enum adtopk_status (*add_peer)(
        void *transport, uint16_t peer, const char *endpoint, struct error *err);
    /* The endpoint that listens, with the port that was chosen if the configured one was "*". */
    const char *(*endpoint)(const void *transport);
    /* One packet; false when it cannot be taken now. Bodies are at most TRANSPORT_BODY_MAX. */
    bool (*send)(void *transport, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size);
    /* The descriptor to watch for readability (edge-triggered where the library is). */
    int (*descriptor)(void *transport);
    /* Receives until nothing is left or `budget` packets were handed on; true if more may wait.
     * To be called when the descriptor is readable and after every batch of sends. */
    bool (*pump)(void *transport, unsigned budget);
    void (*destroy)(void *transport);
};

extern const struct transport_ops transport_zmq;

#endif
