/*
 * A virtual network for links: a clock, nodes that can restart, and packets that are lost,
 * duplicated, reordered, corrupted, replayed or refused, all by a seed. Every delivered message is
 * checked against what was sent, and every packet against the rules of the header.
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
    uint64_t rate; /* bytes a second of each lane between two nodes; 0: unlimited */
    size_t chunk_size, window;
    uint64_t heartbeat_us, timeout_us, resend_us;
    uint64_t reopen_us; /* 0: never */
};

struct world_packet {
    uint64_t time, order;
    uint16_t from, to;
    enum link_lane lane;
    uint8_t *bytes;
    size_t size;
};

/* What one incarnation sent to another on a lane, of one class: this comes in order. */
struct world_stream {
    uint16_t from, to;
    uint64_t from_incarnation, to_incarnation;
    enum link_lane lane;
    struct share_class class;
    uint32_t *sizes;
    size_t sent, delivered;
    size_t dropped; /* messages below this one need not arrive */
};

struct world_node {
    struct world *world;
    uint16_t id;
    uint64_t incarnation; /* grows with every start; 0: not started */
    struct links *links;
    unsigned ticks, ups, downs;
    uint64_t last_change_us;          /* when a peer last went up or down */
    uint64_t adopted[WORLD_NODES];    /* the last incarnation that peer_up named */
    uint64_t bulk_acked[WORLD_NODES]; /* by each peer, as far as we were told */
    uint64_t packets[WORLD_NODES];    /* bulk packets transmitted */
    bool echo;                        /* answer every bulk message from inside deliver */
    bool bulk_blocked;                /* the transport takes no bulk */
    bool paused;                      /* its process is stopped: packets wait for it */
    uint64_t reopened[LINK_LANES];
    uint64_t spread; /* bulk packets that named another slot than 0 */
};

struct world {
    struct world_config config;
    uint64_t random, now, order, steps;
    struct world_node nodes[WORLD_NODES];
    bool cut[WORLD_NODES][WORLD_NODES];
    bool dead[WORLD_NODES][WORLD_NODES][LINK_LANES];        /* until the lane is opened anew */
    uint64_t free_at[WORLD_NODES][WORLD_NODES][LINK_LANES]; /* what is sent then goes out at once */
    struct world_packet *heap;
    size_t heap_size, heap_capacity;
    struct world_packet history[WORLD_HISTORY];
    size_t recorded;
    struct world_stream *streams;
    size_t stream_count;
};

/** A network of three nodes, none started. A zero field of `config` gets a default. */
struct world *world_new(const struct world_config *config);
void world_free(struct world *world);

/** A number below `bound` (which is not 0). */
uint64_t world_random(struct world *world, uint64_t bound);

/** Starts a node, or starts it anew under another incarnation, and makes the first `peers` nodes
 * known to it. */
void world_start(struct world *world, uint16_t id, unsigned peers);

/** Queues a message of random content; false if the links refuse it. */
bool world_send(
    struct world *world, uint16_t from, uint16_t to, enum link_lane lane, uint32_t size);

/** A bulk message of a class; of at least WORLD_CLASSED_MIN bytes, by which its stream is known. */
#define WORLD_CLASSED_MIN 12u
bool world_send_as(struct world *world, uint16_t from, uint16_t to, const struct share_class *class,
    uint32_t size);

/** The node drops what it has queued for a job. */
void world_drop(struct world *world, uint16_t from, uint64_t job);

/** Bytes of the messages of a job that were delivered. */
uint64_t world_delivered(
    const struct world *world, uint16_t from, uint16_t to, const struct share_class *class);

/** Runs for `duration_us`. */
void world_run(struct world *world, uint64_t duration_us);

/** Runs until every message between living incarnations was delivered and acknowledged; false if
 * that takes longer than `limit_us`. */
bool world_settle(struct world *world, uint64_t limit_us);

/** Puts packet `index` of the history on the network again. */
void world_replay(struct world *world, size_t index);

struct link_stats world_stats(const struct world *world, uint16_t node, uint16_t peer);

#endif
