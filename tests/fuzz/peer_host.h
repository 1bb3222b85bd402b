/*
 * A core with one rank of a job of two nodes, and the links of the other node, whose messages the
 * fuzz target writes. Packets, computes, memory and time as in the daemon, but in one thread.
 */
#ifndef ADTOPK_FUZZ_PEER_HOST_H
#define ADTOPK_FUZZ_PEER_HOST_H

#include "daemon/core/inspect.h"
#include "daemon/policy/policy.h"
#include "peer.pb-c.h"
#include "tests/host/host.h"

#define PEER 1
#define HOST_TENSORS 4
#define HOST_FRAME_MAX 65536

struct pair_frame {
    size_t size;
    uint8_t bytes[HOST_FRAME_MAX];
};

/* What the peer does by itself when the core says something. */
enum {
    REFLEX_JOIN = 1,    /* answers a join with its own */
    REFLEX_STATE = 2,   /* answers a prepare with a state */
    REFLEX_COMMIT = 4,  /* answers a state with a commit */
    REFLEX_FRAME = 8,   /* answers a frame with the same as its own */
    REFLEX_COPY = 16,   /* answers a fetch with the copy it has */
    REFLEX_POLICY = 32, /* takes part in changes of the policy */
    REFLEX_GROW = 64    /* trains alone, and takes in a core whose ranks begin */
};

struct pair {
    uint16_t node; /* the core's: the peer coordinates if it is the higher one */
    const char *policy;
    uint64_t incarnation; /* the last that was given away */
    uint64_t peer_incarnation;
    struct host host;
    struct links *peer;
    struct host_queue to_core, to_peer;
    session_id session; /* 0: the rank is out */
    session_id last_session;
    uint64_t job, step, operation;
    uint64_t run;                /* of the job, as either side said it last; 0: none yet */
    uint64_t peer_job, core_job; /* the numbers that both give the job in their messages */
    bool anew;                   /* the peer's ranks have begun: its joins name no run */
    bool takes_in;  /* the peer has proposed to take the core in, which knows nothing yet */
    bool forgetful; /* no store outlives the core, as in the daemon; from its next start on */
    unsigned reflexes;
    /* What the core said last. */
    uint32_t view;            /* in a prepare or state */
    bool refused;             /* that state was a refusal */
    char failure[400];        /* why the job ended */
    uint32_t policy_version;  /* in force, as far as the peer knows */
    uint32_t attempt;         /* of the last proposal */
    Adtopk__PeerPolicy offer; /* of the last proposal; version 0: none is under way */
    char offer_text[POLICY_TEXT_SIZE];
    uint64_t policy_hash;
    uint64_t tensor_hash[HOST_TENSORS];
    unsigned tensor_hashes;
    struct pair_frame frame, copy; /* a contribution; a copy of a round that was delivered */
};

/** A host whose core runs, with the rank's job open and the peer's links connected. */
void pair_init(struct pair *pair, uint16_t node, const char *policy, unsigned reflexes);
void pair_free(struct pair *pair);

/** Hands an event to the core and does what it asks for. */
void pair_event(struct pair *pair, struct event event);

/** Packets go to and fro until none is left. */
void pair_pump(struct pair *pair);

/** Time passes. */
void pair_wait(struct pair *pair, uint64_t us);

/** The rank joins again, if it is out. */
void pair_open(struct pair *pair);

/** The rank writes this into a tensor's gradient. */
void pair_fill(struct pair *pair, uint32_t tensor, uint8_t seed);

/** The daemon of the core, or the peer's, starts anew; memory stays. */
void pair_restart_core(struct pair *pair);
void pair_restart_peer(struct pair *pair);

/** What the peer answers by itself to a message of the core's; pair_pump() calls it. */
void pair_reflex(struct pair *pair, const Adtopk__PeerMessage *heard);

/** The peer sends bytes, or a message about the job. */
void pair_send(struct pair *pair, enum link_lane lane, const uint8_t *bytes, size_t size);
void pair_send_message(struct pair *pair, Adtopk__PeerMessage *message);

/** What the peer's messages are about: the core's job. */
Adtopk__PeerAbout pair_about(const struct pair *pair);

/** The peer's true join: rank 1, the same tensors and policy. */
void pair_send_join(struct pair *pair, uint32_t view, bool reply);

/** The peer's rank starts anew, as that of a job's part which had ended. */
void pair_join_anew(struct pair *pair);

/** The core's last frame as if the peer had made it, after `changes` (pairs of an offset and a
 * value to xor) were applied; length and CRC are right. */
void pair_send_frame(struct pair *pair, const uint8_t *changes, size_t size);

/** The same with the core's last copy, which becomes one of the open step and the last view. */
void pair_send_copy(struct pair *pair, const uint8_t *changes, size_t size);

#endif
