/*
 * The state of links. link.c, which moves packets, and link_peers.c, which keeps the table of
 * peers, share it. No other folder includes this.
 */
#ifndef ADTOPK_LINK_STATE_H
#define ADTOPK_LINK_STATE_H

#include <assert.h>

#include "daemon/link/lane.h"
#include "daemon/link/link.h"
#include "daemon/link/packet.h"

#define LINK_HELLO_FIRST_US 100000
#define LINK_RETRY_FIRST_US 1000

/* Whether a lane of a peer works: see link_heal.c. */
struct link_watch {
    uint64_t since;       /* since when the lane waits; LANE_NEVER: it does not */
    uint64_t patience_us; /* how long it may wait before it is opened anew */
    uint64_t reopened_at;
};

struct link_peer {
    uint16_t id;
    uint64_t incarnation; /* 0: the peer has not answered yet */
    bool up;
    bool confirmed; /* a DATA or ACK of this connection has arrived */
    uint64_t challenge;
    uint64_t hello_at, hello_last, hello_interval;
    uint64_t heard_at;
    uint64_t ack_at;     /* when an ACK goes out, at the latest as heartbeat */
    uint64_t bulk_acked; /* the bulk position in the last ACK to the peer */
    uint64_t credit;     /* the bulk position up to which the peer lets us send */
    uint64_t retry_at[LINK_LANES], retry_interval[LINK_LANES];
    struct link_watch watch[LINK_LANES];
    struct lane_out out[LINK_LANES];
    struct lane_in in[LINK_LANES];
    struct link_stats stats;
};

/* Who may call what: a callback may queue messages, unless it is that of a packet. */
enum link_use {
    LINK_IDLE = 0,
    LINK_BUSY,        /* in links_receive() or links_tick() */
    LINK_TRANSMITTING /* in ops.transmit */
};

struct links {
    enum link_use use;
    struct links_config config;
    struct links_ops ops;
    void *context;
    uint64_t now, ticked_at;
    struct link_peer **peers; /* in ascending order of id */
    size_t count;
    size_t next_peer;  /* the peer that is served first next time */
    uint64_t deadline; /* of links_deadline(), if it is known */
    bool deadline_known;
    struct link_refused refused;
};

static inline uint64_t link_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t link_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Aborts if a callback calls what it must not. */
static inline void link_must_be_idle(const struct links *links)
{
    assert(links->use == LINK_IDLE);
}

/* The peer of that id, or NULL. */
struct link_peer *link_find(const struct links *links, uint16_t id);

/* The longest message of a lane. */
uint64_t link_longest(const struct links *links, enum link_lane lane);

/* Drops queued and unfinished messages, because a connection begins or is over. */
void link_reset_lanes(const struct links *links, struct link_peer *peer);

/* link_heal.c */

/* Opens lanes anew that have waited too long; to be called in every tick. */
void link_heal(struct links *links, struct link_peer *peer);

/* When link_heal() has something to do next. */
uint64_t link_heal_deadline(const struct links *links, const struct link_peer *peer);

/* A lane's packets arrive: something new was acknowledged, or the peer came up. */
void link_heal_progress(const struct links *links, struct link_peer *peer, enum link_lane lane);

/* The peer says that it has not heard us for so long. */
void link_heal_unheard(struct links *links, struct link_peer *peer, uint64_t silence_us);

/* If much time has passed since the last tick, this daemon was stopped: no peer is blamed for it.
 * To be called first in every tick. */
void link_forgive_stall(struct links *links);

#endif
