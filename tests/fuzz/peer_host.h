/*
 * A core with one rank of a job of two nodes, and the links of the other node, whose messages the
 * fuzz target writes. Packets, computes, memory and time as in the daemon, but in one thread.
 */
#ifndef ADTOPK_FUZZ_PEER_HOST_H
#define ADTOPK_FUZZ_PEER_HOST_H

#include "daemon/core/core.h"
#include "daemon/core/policy.h"
#include "peer.pb-c.h"

#define PEER 1
#define HOST_TENSORS 4
#define HOST_FRAME_MAX 65536

struct host_packet {
    struct host_packet *next;
    enum link_lane lane;
    size_t size;
    uint8_t bytes[];
};

/* Packets under way in one direction. */
struct host_queue {
    struct host_packet *first, **last;
};

struct host_frame {
    size_t size;
    uint8_t bytes[HOST_FRAME_MAX];
};

/* What the peer does by itself when the core says something. */
enum {
    REFLEX_JOIN = 1,   /* answers a join with its own */
    REFLEX_STATE = 2,  /* answers a prepare with a state */
    REFLEX_COMMIT = 4, /* answers a state with a commit */
    REFLEX_FRAME = 8,  /* answers a frame with the same as its own */
    REFLEX_COPY = 16,  /* answers a fetch with the copy it has */
    REFLEX_POLICY = 32 /* takes part in changes of the policy */
};

struct host {
    uint16_t node; /* the core's: the peer coordinates if it is the higher one */
    const char *policy;
    uint64_t now_us, incarnation; /* the last that was given away */
    uint64_t peer_incarnation;
    struct core *core;
    struct links *peer;
    struct host_queue to_core, to_peer;
    session_id session; /* 0: the rank is out */
    session_id last_session;
    uint64_t job, step, operation;
    uint64_t run;                /* of the job, as either side said it last; 0: none yet */
    uint64_t peer_job, core_job; /* the numbers that both give the job in their messages */
    void *gradients, *results, *store[CORE_STORE_PARTS];
    bool results_old, store_old[CORE_STORE_PARTS];
    uint64_t results_size, store_size[CORE_STORE_PARTS];
    struct compute *held[64]; /* computes that take their time */
    unsigned held_count;
    bool hold;
    unsigned reflexes;
    /* What the core said last. */
    uint32_t view;            /* in a prepare or state */
    uint32_t policy_version;  /* in force, as far as the peer knows */
    uint32_t attempt;         /* of the last proposal */
    Adtopk__PeerPolicy offer; /* of the last proposal; version 0: none is under way */
    char offer_text[POLICY_TEXT_SIZE];
    uint64_t policy_hash;
    uint64_t tensor_hash[HOST_TENSORS];
    unsigned tensor_hashes;
    struct host_frame frame, copy; /* a contribution; a copy of a round that was delivered */
};

/** A host whose core runs, with the rank's job open and the peer's links connected. */
void host_init(struct host *host, uint16_t node, const char *policy, unsigned reflexes);
void host_free(struct host *host);

/** Hands an event to the core and does what it asks for. */
void host_event(struct host *host, struct event event);

/** Packets go to and fro until none is left. */
void host_pump(struct host *host);

/** Time passes. */
void host_wait(struct host *host, uint64_t us);

/** The rank joins again, if it is out. */
void host_open(struct host *host);

/** The rank writes this into a tensor's gradient. */
void host_fill(struct host *host, uint32_t tensor, uint8_t seed);

/** The daemon of the core, or the peer's, starts anew; memory stays. */
void host_restart_core(struct host *host);
void host_restart_peer(struct host *host);

/** What the peer answers by itself to a message of the core's; host_pump() calls it. */
void host_reflex(struct host *host, const Adtopk__PeerMessage *heard);

/** Runs the computes that were held back. */
void host_compute(struct host *host);

/** The peer sends bytes, or a message about the job. */
void host_send(struct host *host, enum link_lane lane, const uint8_t *bytes, size_t size);
void host_send_message(struct host *host, Adtopk__PeerMessage *message);

/** What the peer's messages are about: the core's job. */
Adtopk__PeerAbout host_about(const struct host *host);

/** The peer's true join: rank 1, the same tensors and policy. */
void host_send_join(struct host *host, uint32_t view, bool reply);

/** The core's last frame as if the peer had made it, after `changes` (pairs of an offset and a
 * value to xor) were applied; length and CRC are right. */
void host_send_frame(struct host *host, const uint8_t *changes, size_t size);

/** The same with the core's last copy, which becomes one of the open step and the last view. */
void host_send_copy(struct host *host, const uint8_t *changes, size_t size);

#endif
