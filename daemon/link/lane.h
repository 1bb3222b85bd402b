/*
 * A lane: one direction of messages between two incarnations, as a stream of positions.
 *
 * Every byte of a message takes one position and so does its end, so an empty message takes one. A
 * packet carries a range of positions of one message. The receiver takes a packet only if it
 * continues the stream. It acknowledges the position up to which it has everything. If packets were
 * lost, the sender goes back to that position (go-back-N: transports keep order and lose packets
 * only when they reconnect).
 *
 * Lost or late? If no acknowledgement comes for a while and much is in flight, the sender goes on,
 * and sends the oldest byte alone once more, as a *probe*. The probe overtakes nothing, so every
 * packet that was not lost arrives before it. If the acknowledgement names the end of a part, the
 * data was only late, as on a slow link with a long queue. If it names the end of the probe, which
 * lies within a part, everything from there on was lost and is sent again. A late packet may be
 * taken for a lost one in two cases: the probe is a whole part, of one byte, or the transport does
 * reorder. That only costs bytes.
 *
 * The sender assigns positions when it cuts a part, not when a message is queued. For each part it
 * decides anew which message is next (share.h), so a message may be overtaken between two of its
 * parts. A message that is partly sent has a *slot*, which its packets name, so that the receiver
 * can assemble several at a time. Messages of one class stay in order. A part that is resent is the
 * same as before.
 *
 * A message that is partly sent can be cancelled. The sender then sends an empty part that ends the
 * message early, and the receiver drops the earlier parts. That end takes one position, like any
 * other, so both sides keep counting the same.
 *
 * Bounds: a peer has at most LANE_SLOTS partly sent messages, whose sizes add up to at most twice
 * the longest one. The sender keeps to that, and the receiver treats more as malformed.
 */
#ifndef ADTOPK_LANE_H
#define ADTOPK_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/link/packet.h"
#include "daemon/link/share.h"

#define LANE_NEVER UINT64_MAX

/* If so few positions are in flight, all are sent again at once. A probe would cost a round trip,
 * and might get lost as well. */
#define LANE_FEW 1500

/* The fewest positions a window may have: a byte and an end, so that the last byte can be sent. */
#define LANE_WINDOW_MIN 2

struct lane_message {
    struct share_item item; /* first; while it is not wholly cut */
    struct buffer *buffer;
    uint64_t job;     /* of its class */
    uint64_t cut;     /* bytes that have positions */
    uint64_t pending; /* positions that are not acknowledged yet */
    unsigned slot;    /* once it has begun */
    bool cancelled;   /* Only its end is left to send. */
};

/* A message or part that was sent and is not wholly acknowledged. */
struct lane_part {
    struct lane_message *message;
    uint64_t start; /* position of its first byte */
    uint64_t offset;
    uint32_t size;
};

/* The timeout of probes, after Jacobson 1988 ("Congestion avoidance and control") with Karn's rule.
 * Positions that were sent twice give no sample, and a doubled timeout stays until some data is
 * acknowledged. */
struct lane_timer {
    uint64_t floor_us, ceiling_us;
    uint64_t timeout_us;
    uint64_t smoothed_us, variance_us; /* 0 before the first sample */
    uint64_t sample_end;               /* a sample ends when this position is acknowledged */
    uint64_t sample_start_us;
    bool sampling;
};

/* How fast the lane is while it has more to send than it may: otherwise its rate is the sender's.
 */
struct lane_meter {
    uint64_t rate; /* positions per second, smoothed; 0: not known yet */
    uint64_t start, start_us;
    bool running;
};

struct lane_limits {
    uint64_t floor_us, ceiling_us; /* of the resend timeout */
    unsigned slots;                /* 1 to LANE_SLOTS */
    uint64_t message_max;          /* bytes */
};

struct lane_out {
    struct lane_limits limits;
    struct share share;     /* the messages that are not wholly cut */
    struct lane_part *part; /* a ring of the parts in flight */
    size_t capacity;        /* a power of two, or 0 */
    size_t head, count;
    size_t next;           /* the part, counted from head, that holds `position`; count: none */
    uint64_t acknowledged; /* <= position <= sent */
    uint64_t position;     /* the position that is sent next */
    uint64_t sent;         /* nothing at or above this was ever sent */
    uint64_t slots_taken;  /* a bit each */
    uint64_t begun_bytes;  /* of the messages that have a slot */
    uint64_t queued_bytes; /* of the messages that are not wholly acknowledged */
    uint64_t resend_at;    /* when a probe is due; LANE_NEVER while nothing is in flight */
    uint64_t probe;        /* end of the one in flight; 0: none; LANE_NEVER: not sent yet */
    struct lane_timer timer;
    struct lane_meter meter;
};

struct lane_in {
    uint64_t position; /* everything below was taken */
    uint64_t bytes;    /* of all messages in slots */
    uint64_t copied;   /* bytes, into messages */
    uint64_t checked;  /* bytes of which a CRC was computed */
    struct lane_slot {
        struct buffer *message;
        uint64_t filled;
        uint32_t crc; /* of these bytes; only of a message of at least BUFFER_KNOWN_MIN */
    } slot[LANE_SLOTS];
};

enum lane_result { LANE_TAKEN, LANE_DUPLICATE, LANE_GAP, LANE_NO_MEMORY, LANE_MALFORMED };

/** Drops everything and starts at position 0. The structure must be zero before the first call. */
void lane_out_reset(struct lane_out *out, const struct lane_limits *limits);
void lane_in_reset(struct lane_in *in);

/** Queues a message and takes its own reference; false without memory. */
bool lane_out_push(struct lane_out *out, struct buffer *message, const struct share_class *class);

/** Drops the messages of a job that have not begun, and cancels those that are partly cut. Messages
 * that are wholly cut stay. */
void lane_out_drop(struct lane_out *out, uint64_t job);

/** Bytes of a job's messages that have not been acknowledged. */
uint64_t lane_out_queued(const struct lane_out *out, uint64_t job);

/**
 * Cuts the next part, which may be a probe. It has at most `body_max` bytes, unless it is resent,
 * and nothing at or above position `limit`, which never falls. Fills slot, position, message size,
 * offset and body of `packet`. Returns false if there is no part, or if the part could become
 * larger by waiting for an acknowledgement.
 */
bool lane_out_cut(
    const struct lane_out *out, size_t body_max, uint64_t limit, struct packet *packet);

/** Makes room to remember one more part; false without memory. */
bool lane_out_reserve(struct lane_out *out);

/** The part that lane_out_cut() made, after lane_out_reserve(), was handed to the transport.
 * Returns true if it had been sent before. */
bool lane_out_advance(struct lane_out *out, const struct packet *packet, uint64_t now_us);

/** Everything below `position`, which was sent, arrived. Rewinds if that shows that the rest was
 * lost. */
void lane_out_acknowledge(struct lane_out *out, uint64_t position, uint64_t now_us);

/** Parts that are not acknowledged will be sent again. */
void lane_out_rewind(struct lane_out *out);

/** If the timeout has passed: rewinds or makes a probe due, and doubles it. */
void lane_out_expire(struct lane_out *out, uint64_t now_us);

/** Takes a part from a packet. When it completes a message of at most `message_max` bytes, the
 * message and its reference go to *message, which is NULL otherwise. A part that cancels its
 * message is taken as well. */
enum lane_result lane_in_take(
    struct lane_in *in, const struct packet *packet, uint64_t message_max, struct buffer **message);

#endif
