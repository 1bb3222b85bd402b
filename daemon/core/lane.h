/*
 * A lane: one direction of messages between two incarnations, as a stream of positions.
 *
 * Every byte of a message takes one position and so does its end, so an empty message takes one.
 * A packet carries a range of positions of one message. The receiver takes only what continues
 * its stream and acknowledges the position up to which it has everything; the sender goes back to
 * that position when no acknowledgement comes (go-back-N: transports keep order and lose only when
 * they reconnect). What is resent may be cut differently, so nothing is kept for a packet.
 */
#ifndef ADTOPK_LANE_H
#define ADTOPK_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/packet.h"

#define LANE_NEVER UINT64_MAX

/* The fewest positions a window may have: a byte and an end, so that the last byte can be sent. */
#define LANE_WINDOW_MIN 2

struct lane_message {
    struct lane_message *next;
    struct buffer *buffer;
    uint64_t start; /* position of its first byte */
};

/* The resend timeout, after Jacobson 1988 ("Congestion avoidance and control") with Karn's rule:
 * no sample from positions that were sent twice, and a doubled timeout stays until the next. */
struct lane_timer {
    uint64_t floor_us, ceiling_us;
    uint64_t timeout_us;
    uint64_t smoothed_us, variance_us; /* 0 before the first sample */
    uint64_t sample_end;               /* a sample ends when this position is acknowledged */
    uint64_t sample_start_us;
    bool sampling;
};

struct lane_out {
    struct lane_message *head, *tail; /* messages that are not wholly acknowledged */
    struct lane_message *current;     /* the one that holds `position`; NULL if all was sent */
    uint64_t acknowledged;            /* <= position <= sent <= end */
    uint64_t position;                /* what goes out next */
    uint64_t sent;                    /* nothing at or above this was ever sent */
    uint64_t end;
    uint64_t queued_bytes; /* of the messages in the list */
    uint64_t resend_at;    /* LANE_NEVER while nothing is in flight */
    struct lane_timer timer;
};

struct lane_in {
    uint64_t position; /* everything below was taken */
    struct buffer *message;
    uint64_t filled;
};

enum lane_result { LANE_TAKEN, LANE_DUPLICATE, LANE_GAP, LANE_NO_MEMORY, LANE_MALFORMED };

/** Drops everything and starts at position 0. The structure must be zero before the first call. */
void lane_out_reset(struct lane_out *out, uint64_t floor_us, uint64_t ceiling_us);
void lane_in_reset(struct lane_in *in);

/** Queues a message and takes its own reference; false without memory. */
bool lane_out_push(struct lane_out *out, struct buffer *message);

/**
 * Cuts what goes out next: at most `body_max` bytes and nothing at or above position `limit`. Fills
 * position, message size, offset and body of `packet`. False if there is nothing, or if waiting for
 * an acknowledgement allows a larger part.
 */
bool lane_out_cut(
    const struct lane_out *out, size_t body_max, uint64_t limit, struct packet *packet);

/** The part that lane_out_cut() made was handed to the transport. Returns true if some of it had
 * been sent before. */
bool lane_out_advance(struct lane_out *out, const struct packet *packet, uint64_t now_us);

/** Everything below `position` arrived. False if that was never sent. */
bool lane_out_acknowledge(struct lane_out *out, uint64_t position, uint64_t now_us);

/** What is not acknowledged will be sent again. */
void lane_out_rewind(struct lane_out *out);

/** Rewinds, and doubles the timeout, if the resend timeout has passed. */
void lane_out_expire(struct lane_out *out, uint64_t now_us);

/** Takes a part that came in. When it completes a message of at most `message_max` bytes, the
 * message and its reference go to *message, which is NULL otherwise. */
enum lane_result lane_in_take(
    struct lane_in *in, const struct packet *packet, uint64_t message_max, struct buffer **message);

#endif
