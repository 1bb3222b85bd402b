/*
 * A node without a core: links of its own, and a peer behind them that the test plays. It can say
 * anything that a daemon with the right keys could say.
 */
#ifndef ADTOPK_SIM_GHOST_H
#define ADTOPK_SIM_GHOST_H

#include "tests/sim/world.h"

/* The links of every node, ghosts included. */
#define SIM_LINKS                                                                                  \
    (struct links_config)                                                                          \
    {                                                                                              \
        .part_size = 256, .window = 4096, .max_control_message = 1u << 20,                         \
        .max_bulk_message = 1u << 24, .heartbeat_us = 20000, .timeout_us = 200000,                 \
        .resend_us = 3000                                                                          \
    }

struct ghost {
    struct world *world;
    unsigned node;
    struct links *links;
    /* How the test handles a message of a peer. */
    void (*hear)(
        struct ghost *ghost, uint16_t peer, enum link_lane lane, const struct buffer *message);
    void *context;
    uint64_t timer_us;
};

/** Takes the place of a node's core. */
void ghost_start(struct world *world, unsigned node, struct ghost *ghost);
void ghost_stop(struct ghost *ghost);
/** A packet for the ghost, or (NULL) its timer. */
void ghost_event(struct ghost *ghost, const struct sim_event *event);
bool ghost_say(
    struct ghost *ghost, uint16_t peer, enum link_lane lane, const void *bytes, size_t size);

#endif
