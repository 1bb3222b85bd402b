/*
 * Transports carry packets between nodes. One table of operations a transport.
 *
 * The contract is weak on purpose: a packet may be lost, duplicated or reordered, never altered
 * unnoticed in its header; the links above repair it.
 */
#ifndef ADTOPK_TRANSPORT_H
#define ADTOPK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/link/link.h"
#include "proto/error.h"
#include "proto/keyfile.h"

/* The longest body of a packet. Transports refuse more from the wire; links must be configured
 * with part_size and max_control_message up to this. */
#define TRANSPORT_BODY_MAX (1024U * 1024U)

/* A peer may have two keys while it changes from one to the other. */
#define TRANSPORT_PEER_KEYS 2

/* Takes one line on a connection or packet that was refused; of each sort at most 10 at once, then
 * 2 per second. */
typedef void (*transport_warn_fn)(void *context, const char *line);

struct transport_config {
    uint16_t self;
    const char *listen; /* endpoint, e.g. "tcp://127.0.0.1:7400" */
    /* This node's keys; the transport makes a copy. NULL: nothing is encrypted, and any host that
     * reaches the port may pretend to be any node. */
    const struct keyfile_pair *pair;
    /* Where bulk is received in the clear, from connections that present a token. NULL: bulk is
     * encrypted like everything else. Only with a pair. */
    const char *bulk_listen;
    unsigned threads; /* that send and receive; 0 is 1. A connection stays with one of them */
    size_t peers;     /* that are known; others may come. Many are tried less often while down */
    transport_warn_fn warn; /* may be NULL */
};

struct transport_peer {
    uint16_t id;
    const char *endpoint; /* "": not known yet; packets of the peer are taken, and none is sent */
    const char *keys[TRANSPORT_PEER_KEYS]; /* public keys; NULL behind the last one */
};

/* Refusals since the start. */
struct transport_refused {
    uint64_t keys;       /* connections under a key that is not allowed */
    uint64_t handshakes; /* connections that do not speak our protocol, or not under our key */
    uint64_t tokens;     /* bulk connections without a valid token */
    uint64_t packets;    /* packets that name another node than their key does, or whose key was
                          * removed after they were sent */
};

/* Gets every packet; the bytes are valid during the call only. body: what follows the header where
 * it lies elsewhere, otherwise NULL; the callee may keep references. May send, must not destroy.
 * `peer` is the sender as the transport itself knows it; UINT16_MAX if it cannot tell. */
typedef void (*transport_receive_fn)(void *context, uint16_t peer, enum link_lane lane,
    const uint8_t *packet, size_t size, struct buffer *body);

struct transport_ops {
    const char *name;
    /* Binds and starts to receive. On failure returns NULL and says why in err. `context` goes to
     * `receive` and to config->warn. */
    void *(*create)(const struct transport_config *config, transport_receive_fn receive,
        void *context, struct error *err);
    /* With a key pair, a peer needs a key, which no other peer may have. Everything is copied. */
    enum adtopk_status (*add_peer)(
        void *transport, const struct transport_peer *peer, struct error *err);
    /* Undoes add_peer(), for a peer to which nothing was sent yet. */
    void (*drop_peer)(void *transport, uint16_t peer);
    /* Gives a peer its endpoint, or another one. Packets on their way may be lost. Where the
     * connection cannot be opened now, reopen() tries again. ADTOPK_ERR_ARGUMENT: there is no such
     * peer, or the endpoint has another form. */
    enum adtopk_status (*move_peer)(
        void *transport, uint16_t peer, const char *endpoint, struct error *err);
    /*
     * Changes keys while packets flow: this node's own, and those of all peers. It ignores
     * endpoints; a peer that is not named keeps no key. Peers whose keys stayed the same notice
     * nothing, unless this node's own key changed or a key was removed. Then all connections to
     * this node are cut, and the allowed ones are back a moment later; the links resend lost
     * packets. On ADTOPK_ERR_ARGUMENT nothing has changed. On another error a connection could not
     * be opened: calling again tries again.
     */
    enum adtopk_status (*reload)(void *transport, const struct keyfile_pair *pair,
        const struct transport_peer *peers, size_t count, struct error *err);
    /* This node's keys; NULL without keys. Valid until reload(). */
    const struct keyfile_pair *(*pair)(const void *transport);
    /* The endpoint that listens, with the port that was chosen if the configured one was "*". */
    const char *(*endpoint)(const void *transport);
    /* The protection of this node: "curve", "control only" or "none". */
    const char *(*protection)(const void *transport);
    struct transport_refused (*refused)(const void *transport);
    /* One packet; false when it cannot be taken now. Bodies are at most TRANSPORT_BODY_MAX. owner:
     * see links_ops.transmit; the transport drops its references when it is destroyed, at the
     * latest. */
    bool (*send)(void *transport, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);
    /* The descriptor to watch for readability; it stays the same. */
    int (*descriptor)(void *transport);
    /* Gives a lane's connection to a peer up and opens another one. Packets on their way may be
     * lost. */
    void (*reopen)(void *transport, uint16_t peer, enum link_lane lane);
    /* Receives until nothing is left or `budget` packets were handed on; true if more may wait.
     * To be called when the descriptor is readable and after every batch of sends. */
    bool (*pump)(void *transport, unsigned budget);
    void (*destroy)(void *transport);
};

extern const struct transport_ops transport_zmq;

#endif
