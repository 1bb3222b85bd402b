/*
 * A virtual network for links: a clock, nodes that can restart, and packets. A seed decides which
 * packets are lost, duplicated, reordered, corrupted, replayed or refused. The world checks every
 * delivered message against the sent one, and every packet against the rules of the header.
 */
#ifndef TEST_LINK_WORLD_H
#define TEST_LINK_WORLD_H

#include "daemon/link/packet.h"

#define WORLD_NODES 3
#define WORLD_HISTORY 512

/* Probabilities are per thousand packets. */
struct world_config {
    uint64_t seed;
    uint64_t loss, duplicate, corrupt, replay, refuse;
    uint64_t delay_min_us, delay_max_us;
    uint64_t rate; /* bytes per second of each lane between two nodes; 0: unlimited */
    size_t part_size, window;
    size_t first_window; /* of node 0, if it has another one */
    uint64_t heartbeat_us, timeout_us, resend_us;
    uint64_t reopen_us; /* time after which a broken connection opens again; 0: never */
};

struct world_packet {
    uint64_t time, order;
    uint16_t from, to;
    enum link_lane lane;
    uint8_t *bytes;
    size_t size;
};

/* The messages of one class that an incarnation sent to another on a lane. They arrive in order. */
struct world_stream {
    uint16_t from, to;
    uint64_t from_incarnation, to_incarnation;
    enum link_lane lane;
    struct share_class class;
    uint32_t *sizes;
    size_t sent, delivered;
    size_t dropped; /* messages below this index need not arrive */
};

struct world_node {
    struct world *world;
    uint16_t id;
    uint64_t incarnation; /* grows with every start; 0: not started */
    struct links *links;
    unsigned ticks, ups, downs;
    uint64_t last_change_us;       /* when a peer last came or went */
    uint64_t adopted[WORLD_NODES]; /* the last incarnation that peer_up named */
    /* Bytes that each peer has acknowledged, as far as this node knows. */
    uint64_t bulk_acked[WORLD_NODES];
    uint64_t packets[WORLD_NODES]; /* bulk packets sent */
    bool echo;                     /* answers every bulk message from inside deliver */
    bool bulk_blocked;             /* the transport takes no bulk */
    bool paused;                   /* the process is stopped: packets wait for it */
    uint64_t reopened[LINK_LANES];
    uint64_t spread; /* bulk packets in slots other than 0 */
};

struct world {
    struct world_config config;
    uint64_t random, now, order, steps;
    struct world_node nodes[WORLD_NODES];
    bool cut[WORLD_NODES][WORLD_NODES];
    bool dead[WORLD_NODES][WORLD_NODES][LINK_LANES]; /* true until the lane is opened anew */
    /* A packet that is sent at this time leaves at once. */
    uint64_t free_at[WORLD_NODES][WORLD_NODES][LINK_LANES];
    struct world_packet *heap;
    size_t heap_size, heap_capacity;
    struct world_packet history[WORLD_HISTORY];
    size_t recorded;
    struct world_stream *streams;
    size_t stream_count;
};

/** Makes a network of three nodes, none of which runs. A field of `config` that is 0 gets a
 * default. */
struct world *world_new(const struct world_config *config);
void world_free(struct world *world);

/** A random number below `bound`, which is not 0. */
uint64_t world_random(struct world *world, uint64_t bound);

/** Starts a node, or restarts it with another incarnation. The node knows the first `peers` nodes.
 */
void world_start(struct world *world, uint16_t id, unsigned peers);

/** Queues a message of random content. False if the links refuse it. */
bool world_send(
    struct world *world, uint16_t from, uint16_t to, enum link_lane lane, uint32_t size);

/** Smallest bulk message of a class. Its content shows to which stream it belongs. */
#define WORLD_CLASSED_MIN 12u
bool world_send_as(struct world *world, uint16_t from, uint16_t to, const struct share_class *class,
    uint32_t size);

/** The node drops its queued messages of a job. */
void world_drop(struct world *world, uint16_t from, uint64_t job);

/** Bytes of a job's messages that were delivered. */
uint64_t world_delivered(
    const struct world *world, uint16_t from, uint16_t to, const struct share_class *class);

/** Runs the network for `duration_us`. */
void world_run(struct world *world, uint64_t duration_us);

/** Runs until every message between living incarnations is delivered and acknowledged. False if
 * that takes longer than `limit_us`. */
bool world_settle(struct world *world, uint64_t limit_us);

/** Sends packet `index` of the history again. */
void world_replay(struct world *world, size_t index);

struct link_stats world_stats(const struct world *world, uint16_t node, uint16_t peer);

#endif
