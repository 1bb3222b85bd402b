/*
 * Links: every message once and in order between two nodes, over a transport that may lose,
 * duplicate and reorder packets.
 *
 * A *connection* is a pair of incarnations (each daemon start draws a new one). A connection has
 * two lanes, each of which numbers its packets, so control messages are never queued behind bulk. A
 * sender keeps a packet until it is acknowledged. After a timeout it finds out by a probe whether
 * the packet is missing or late (lane.h), and resends what is missing. A receiver drops duplicates
 * and packets of other connections.
 *
 * Bulk messages are cut into parts of at most `part_size`, and of at most 10 ms at the measured
 * speed of the link. The receiver grants the number of bytes that may be in flight. Before every
 * part the message to send is chosen anew, by the messages' classes: between jobs by weight,
 * within a job by place (share.h).
 *
 * Any packet of the current connection is a sign of life. Silence for `timeout_us` is reported as
 * down, a new incarnation as up. No I/O and no clock: the caller passes packets in and takes them
 * out.
 */
#ifndef ADTOPK_LINK_H
#define ADTOPK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/link/buffer.h"
#include "daemon/link/share.h"
#include "proto/error.h"

enum link_lane { LINK_CONTROL = 0, LINK_BULK = 1, LINK_LANES };

#define LINK_HEADER_MAX 128

/* A body of so many bytes or more is not copied to be sent: to keep it costs less than a copy. */
#define LINK_KEEP_MIN (32u << 10)

struct links_config {
    uint16_t self;
    uint64_t incarnation;       /* non-zero, new for every start of the daemon */
    size_t part_size;           /* most bytes of message in one bulk packet */
    size_t window;              /* bytes that each peer may have in flight towards us */
    size_t max_control_message; /* a longer control message is refused */
    uint64_t max_bulk_message;
    uint64_t heartbeat_us;
    uint64_t timeout_us;
    uint64_t resend_us; /* first and shortest timeout of probes; doubles up to timeout_us */
    /* How long a lane may go without an acknowledgement, or a peer without a sign of life, before
     * ops.reopen is called; more than heartbeat_us. 0: it is never called. */
    uint64_t reopen_us;
};

/* The functions that the links need. They are called from links_* functions and must not call
 * these, except links_send(); transmit must not call that either. */
struct links_ops {
    /* Sends one packet: header then body (body may be NULL). It may be lost. Returns false when
     * the transport cannot take it now; it is offered again on the next tick. owner: the buffer
     * of which the body is a part, whose reference the transport keeps until the bytes have left.
     * NULL: it copies the body. */
    bool (*transmit)(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);
    /* Packets of this lane do not arrive although the transport took them: gives its connection up
     * and opens another one. May be NULL. */
    void (*reopen)(void *context, uint16_t peer, enum link_lane lane);
    /* A whole message; the callee takes the reference. */
    void (*deliver)(void *context, uint16_t peer, enum link_lane lane, struct buffer *message);
    /* The peer answers with this incarnation. It is the first contact, a restart (a new
     * incarnation; messages queued for the old one are dropped), or the end of a silence (the same
     * one). */
    void (*peer_up)(void *context, uint16_t peer, uint64_t incarnation);
    void (*peer_down)(void *context, uint16_t peer);
};

struct link_stats {
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    uint64_t resent, duplicates, stale, malformed;
    uint64_t resent_bytes; /* of bytes_sent, in the packets that `resent` counts, probes included */
    uint64_t copied_bytes; /* of bodies, into packets and out of them */
    uint64_t checked_bytes; /* of bodies, of which a CRC was computed */
    uint64_t dropped;       /* out of order, or no memory for their message: sent again later */
    uint64_t reopened;      /* connections, of both lanes */
    uint64_t queued_bytes;  /* not acknowledged yet */
    uint64_t round_trip_us; /* smoothed; 0 before the first acknowledgement */
    uint64_t bulk_rate;     /* bytes per second, while there was more to send; 0: not known */
};

/* Packets that were dropped because no peer could be blamed. */
struct link_refused {
    uint64_t packets;
    uint64_t strangers; /* the intact ones among them that are for another node or from an unknown
                         * peer: node ids are configured wrongly somewhere */
    uint16_t source, destination; /* of the last stranger */
};

struct links;

/** NULL without memory. The configuration must have been checked: no time or part of 0, heartbeats
 * more often than the timeout. A window below 2 counts as 2. */
struct links *links_create(
    const struct links_config *config, const struct links_ops *ops, void *context);
void links_destroy(struct links *links);

/** Makes a peer known and starts greeting it. Peers that were not added are refused.
 * ADTOPK_ERR_ARGUMENT: our own id, UINT16_MAX or one that is known already. */
enum adtopk_status links_add_peer(struct links *links, uint16_t peer, uint64_t now_us);

/**
 * Queues a message (takes its own reference). The next links_tick() sends it, and links_deadline()
 * says that this is due. Returns false, and drops the message, if the peer's incarnation is not
 * known yet, the message is longer than allowed or memory is short. If it returns true, the message
 * is delivered exactly once, unless one of the two ends restarts or links_drop_job() drops it. On
 * the control lane messages stay in order, on the bulk lane those of one job and place. class: NULL
 * for control.
 */
bool links_send(struct links *links, uint16_t peer, enum link_lane lane,
    const struct share_class *class, struct buffer *message);

/**
 * Drops the bulk messages of a job (share_class.job), towards all peers. A message that has not
 * begun is gone at once; one that is partly sent is cancelled, so the peer drops its part of it. A
 * message that was sent whole may still be delivered, even if a part of it must be sent again.
 * Messages of other jobs are as before, and the job may send again right after the call.
 */
void links_drop_job(struct links *links, uint64_t job);

/** Takes a packet that arrived on `lane`. `peer` is the sender as the transport knows it
 * (UINT16_MAX: it cannot tell). body: the packet's body where that lies apart from its header,
 * otherwise NULL. Links keep a reference to it instead of a copy, if it is a whole message.
 * Malformed packets are counted and dropped. */
void links_receive(struct links *links, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body, uint64_t now_us);

/** Handles resends, heartbeats and timeouts, and offers packets again that the transport refused.
 */
void links_tick(struct links *links, uint64_t now_us);

/** Bytes of a job's bulk messages (share_class.job) that the peer has not acknowledged. */
uint64_t links_queued(const struct links *links, uint16_t peer, uint64_t job);

/** Bytes of control messages that the peer has not acknowledged. */
uint64_t links_queued_control(const struct links *links, uint16_t peer);

/** Bytes received of the peer's unfinished bulk messages, summed over those for which `counts` is
 * true. `counts` gets the received part of each message. */
uint64_t links_begun(const struct links *links, uint16_t peer,
    bool (*counts)(const void *context, const uint8_t *bytes, size_t size), const void *context);

/** When links_tick() wants to be called next. It looks at the peers again only if something has
 * changed. */
uint64_t links_deadline(struct links *links);

/** The peer's current incarnation; 0 if unknown. */
uint64_t links_incarnation(const struct links *links, uint16_t peer);
bool links_is_up(const struct links *links, uint16_t peer);
/** False if the peer was never added. */
bool links_stats(const struct links *links, uint16_t peer, struct link_stats *stats);

struct link_refused links_refused(const struct links *links);

#endif
