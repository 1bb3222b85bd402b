/*
 * The flight recorder: what a job did last on this node, as a ring of short records. It has no
 * clock, no I/O and no lock: a record gets the time of the event that caused it, and is a store of
 * 32 bytes. The ring grows until it holds RECORDER_STEPS steps, or RECORDER_MAX records; then the
 * oldest records go. No result of a computation depends on it.
 */
#ifndef ADTOPK_JOB_RECORDER_H
#define ADTOPK_JOB_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDER_STEPS 64u
#define RECORDER_MIN 256u   /* records that the ring has room for at first; a power of two */
#define RECORDER_MAX 32768u /* at most; 1 MiB per job and node */

#define RECORD_OPERATION UINT32_MAX /* as bucket: of a plain operation, whose number `step` is */

/* Appended to only: nodes of other versions read these numbers. */
enum record_kind {
    RECORD_BEGAN,    /* rank `value` made its first push of the step */
    RECORD_PUSHED,   /* rank `value` pushed the last tensor of `bucket` */
    RECORD_ENDED,    /* rank `value` ended the step */
    RECORD_SENT,     /* a frame of `value` bytes to `node` was given to the links */
    RECORD_RECEIVED, /* a frame of `value` bytes from `node` was there as a whole */
    RECORD_OPENED,   /* the step began */
    RECORD_SETTLE,   /* every round is delivered: what was sent leaves the residuals */
    RECORD_WITHDRAW, /* the step's gradients are taken back */
    RECORD_CLOSED,   /* the step is over */
    RECORD_ROUND,    /* + enum round_state: the round of `bucket` has moved there */
    RECORD_KINDS = RECORD_ROUND + 8
};

struct flight_record {
    uint64_t at_us; /* on the clock of the node */
    uint64_t step;
    uint32_t bucket;
    uint32_t value; /* a rank, or bytes (UINT32_MAX: that many or more) */
    uint16_t node;  /* SENT, RECEIVED: the other node */
    uint16_t view;  /* SENT, RECEIVED: its low 16 bits */
    uint8_t kind;   /* enum record_kind */
    uint8_t phase;  /* SENT, RECEIVED: of the exchange */
    uint16_t unused;
};

struct recorder {
    struct flight_record *ring; /* of `size` slots, a power of two; NULL: none yet */
    uint32_t size;
    uint32_t count;  /* records in the ring */
    uint32_t next;   /* the slot of the next record */
    uint64_t added;  /* records so far; a record's number is how many were there before it */
    uint32_t closed; /* steps in the ring that are over */
    struct flight_record nowhere; /* where records are written that find no memory at all */
};

/** Adds a record of this kind, and returns its slot, to be written at once. Without memory to grow,
 * the oldest one goes. The caller writes the record there, because making one elsewhere and
 * copying it takes longer. */
struct flight_record *recorder_add(struct recorder *recorder, enum record_kind kind);

struct recorder_piece {
    uint64_t first; /* number of its first record */
    uint32_t count;
    uint32_t older; /* records of the last RECORDER_STEPS steps that are before it */
};

/** Copies records of the last RECORDER_STEPS steps, oldest first: the newest `most` of those with
 * numbers below `before`, or of all if that is 0. */
struct recorder_piece recorder_read(
    const struct recorder *recorder, uint64_t before, uint32_t most, struct flight_record *out);

void recorder_free(struct recorder *recorder);

/** The name of a kind in documents; NULL: there is no such kind. */
const char *recorder_kind_name(unsigned kind);

/* What one node has recorded, for a client. */
struct recorded_part {
    uint16_t node;
    bool answered;               /* false: it is not known */
    uint64_t asked_us, heard_us; /* the node was asked, and its answer came, on this node's clock */
    uint64_t answered_us;        /* on the clock of the node; 0: it did not tell */
    struct flight_record *record;
    uint32_t records;
    uint32_t missing; /* earlier ones of the last steps */
    bool late;        /* there was no time for those; otherwise no room */
    /* While pieces come (recording.c): */
    uint64_t daemon;  /* incarnation of the node's daemon at the first question */
    bool asked;       /* the answer to a question is awaited */
    uint64_t sent_us; /* when that was sent */
    uint64_t next_us; /* when the next one is due; UINT64_MAX: there is none */
    uint32_t piece;   /* records to ask for */
    uint32_t room;    /* of `record`, which they fill from its end */
    uint64_t first;   /* number of the first one, if `record` is there */
};

struct recorded {
    unsigned parts;
    struct recorded_part part[];
};

/** The records of one node alone; NULL without memory. */
struct recorded *recorded_of(const struct recorder *recorder, uint16_t node, uint64_t now_us);

/** If records are missing, drops the end of a step of which they are the begin. */
void recorded_trim(struct recorded_part *part);

/** NULL does nothing. */
void recorded_free(struct recorded *records);

/* Records on their way to another node: RECORD_PACKED bytes each, little-endian. */
#define RECORD_PACKED 32u

void recorder_pack(const struct flight_record *record, uint32_t count, uint8_t *out);
void recorder_unpack(const uint8_t *bytes, uint32_t count, struct flight_record *out);

#endif
