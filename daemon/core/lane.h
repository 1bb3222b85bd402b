/*
 * A lane: one direction of messages between two incarnations, as a stream of positions.
 *
 * Every byte of a message takes one position and so does its end, so an empty message takes one.
 * A packet carries a range of positions of one message. The receiver takes only what continues
 * its stream and acknowledges the position up to which it has everything; the sender goes back to
 * that position when what it sent was lost (go-back-N: transports keep order and lose only when
 * they reconnect).
 *
 * Lost or late? When no acknowledgement comes for a while and much is in flight, the sender goes
 * on, and sends the oldest byte alone once more, as a *probe*. It overtakes nothing, so whatever
 * was not lost is there before it, and the acknowledgement names the end of a part: it was only
 * late, as on a slow link with a long queue. If it names the end of the probe, which lies within a
 * part, all that was sent from there on was lost and is sent again. Where the probe is a whole
 * part, which has one byte then, or where the transport does reorder, what was late may be taken
 * for lost: that costs bytes only.
 *
 * Positions are given out when a part is cut, not when its message is queued, and whose part is cut
 * is decided for each anew (share.h): a message is overtaken between two of its parts. A message
 * that is partly sent has a *slot*, which its packets name, so that the receiver can put several
 * together at a time. Messages of one class stay in order. What is resent is resent as it was cut.
 *
 * A message that is partly sent can be cancelled. Instead of its rest the sender then sends an
 * empty part that ends the message where the rest would have begun, and the receiver drops what it
 * has of the message. That end takes one position, like any other, so both keep counting the same.
 *
 * Bounds: a peer has LANE_SLOTS messages partly sent, whose sizes add up to at most twice the
 * longest one. The sender keeps to that, and a receiver takes more than that as malformed.
 */
#ifndef ADTOPK_LANE_H
#define ADTOPK_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/packet.h"
#include "daemon/core/share.h"

#define LANE_NEVER UINT64_MAX

/* So few positions in flight are sent again at once: to ask first costs a round trip, which may
 * fail as well. */
#define LANE_FEW 1500

/* The fewest positions a window may have: a byte and an end, so that the last byte can be sent. */
#define LANE_WINDOW_MIN 2

struct lane_message {
    struct share_item item; /* first; while it is not wholly cut */
    struct buffer *buffer;
    uint64_t cut;     /* bytes that have positions */
    uint64_t pending; /* positions that are not acknowledged yet */
    unsigned slot;    /* once it has begun */
    bool cancelled;   /* Only its end is left to send. */
};

/* What was sent and is not wholly acknowledged. */
struct lane_part {
    struct lane_message *message;
    uint64_t start; /* position of its first byte */
    uint64_t offset;
    uint32_t size;
};

/* The timeout of probes, after Jacobson 1988 ("Congestion avoidance and control") with Karn's rule:
 * no sample from positions that were sent twice, and a doubled timeout stays until something is
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
    uint64_t rate; /* positions a second, smoothed; 0: not known yet */
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
    struct lane_part *part; /* a ring of those in flight */
    size_t capacity;        /* a power of two, or 0 */
    size_t head, count;
    size_t next;           /* the part, counted from head, that holds `position`; count: none */
    uint64_t acknowledged; /* <= position <= sent */
    uint64_t position;     /* what goes out next */
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
    struct lane_slot {
        struct buffer *message;
        uint64_t filled;
    } slot[LANE_SLOTS];
};

enum lane_result { LANE_TAKEN, LANE_DUPLICATE, LANE_GAP, LANE_NO_MEMORY, LANE_MALFORMED };

/** Drops everything and starts at position 0. The structure must be zero before the first call. */
void lane_out_reset(struct lane_out *out, const struct lane_limits *limits);
void lane_in_reset(struct lane_in *in);

/** Queues a message and takes its own reference; false without memory. */
bool lane_out_push(struct lane_out *out, struct buffer *message, const struct share_class *class);

/** Drops the messages of a job that have not begun, and cancels those that are partly cut. Those
 * that are wholly cut stay. */
void lane_out_drop(struct lane_out *out, uint64_t job);

/**
 * Cuts what goes out next, which may be a probe: at most `body_max` bytes, unless it is resent, and
 * nothing at or above position `limit`, which never falls. Fills slot, position, message size,
 * offset and body of `packet`. False if there is nothing, or if waiting for an acknowledgement
 * allows a larger part.
 */
bool lane_out_cut(
    const struct lane_out *out, size_t body_max, uint64_t limit, struct packet *packet);

/** Makes room to remember one more part; false without memory. */
bool lane_out_reserve(struct lane_out *out);

/** The part that lane_out_cut() made, after lane_out_reserve(), was handed to the transport.
 * Returns true if it had been sent before. */
bool lane_out_advance(struct lane_out *out, const struct packet *packet, uint64_t now_us);

/** Everything below `position` arrived. Rewinds if that shows that the rest was lost. False if that
 * was never sent. */
bool lane_out_acknowledge(struct lane_out *out, uint64_t position, uint64_t now_us);

/** What is not acknowledged will be sent again. */
void lane_out_rewind(struct lane_out *out);

/** If the timeout has passed: rewinds or makes a probe due, and doubles it. */
void lane_out_expire(struct lane_out *out, uint64_t now_us);

/** Takes a part that came in. When it completes a message of at most `message_max` bytes, the
 * message and its reference go to *message, which is NULL otherwise. A part that cancels its
 * message is taken as well. */
enum lane_result lane_in_take(
    struct lane_in *in, const struct packet *packet, uint64_t message_max, struct buffer **message);

#endif
