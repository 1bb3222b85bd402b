#include "tests/sim/ghost.h"

#include <string.h>

#include "tests/host/deaf.h"

static void deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct ghost *ghost = context;

    ghost->hear(ghost, peer, lane, message);
    buffer_unref(message);
}

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct ghost *ghost = context;

    return node_transmit(
        &ghost->world->node[ghost->node], peer, lane, header, header_size, body, body_size, owner);
}

static const struct links_ops ops = {
    .transmit = transmit, .deliver = deliver, .peer_up = deaf_peer_up, .peer_down = deaf_peer_down};

/* The deadline of links_deadline(), as an event of the world. */
static void set_timer(struct ghost *ghost)
{
    struct world *world = ghost->world;
    uint64_t due = links_deadline(ghost->links);

    if (due < ghost->timer_us) {
        ghost->timer_us = due;
        world_at(world, due > world->now_us ? due - world->now_us : 0,
            (struct sim_event){.type = SIM_TIMER, .node = ghost->node});
    }
}

void ghost_start(struct world *world, unsigned node, struct ghost *ghost)
{
    struct links_config config = SIM_LINKS;

    if (world->node[node].core != NULL) {
        core_destroy(world->node[node].core);
        world->node[node].core = NULL;
    }
    world->node[node].incarnation = ++world->next_incarnation;
    config.self = (uint16_t)node;
    config.incarnation = world->node[node].incarnation;
    ghost->world = world;
    ghost->node = node;
    ghost->links = sim_must(links_create(&config, &ops, ghost));
    ghost->timer_us = UINT64_MAX;
    for (unsigned peer = 0; peer < world->scenario.nodes; peer++) {
        if (peer != node) {
            (void)links_add_peer(ghost->links, (uint16_t)peer, world->now_us);
        }
    }
    world->node[node].ghost = ghost;
    set_timer(ghost);
}

void ghost_stop(struct ghost *ghost)
{
    ghost->world->node[ghost->node].ghost = NULL;
    links_destroy(ghost->links);
    ghost->links = NULL;
}

void ghost_event(struct ghost *ghost, const struct sim_event *event)
{
    struct world *world = ghost->world;

    if (event->type == SIM_PACKET) {
        links_receive(
            ghost->links, event->from, event->lane, event->bytes, event->size, NULL, world->now_us);
    } else if (ghost->timer_us <= world->now_us) {
        ghost->timer_us = UINT64_MAX;
    }
    if (links_deadline(ghost->links) <= world->now_us) {
        links_tick(ghost->links, world->now_us);
    }
    set_timer(ghost);
}

bool ghost_say(
    struct ghost *ghost, uint16_t peer, enum link_lane lane, const void *bytes, size_t size)
{
    struct buffer *buffer = buffer_new(size);
    bool sent;

    (void)memcpy(((struct buffer *)sim_must(buffer))->bytes, bytes, size);
    sent = links_send(ghost->links, peer, lane, NULL, buffer);
    buffer_unref(buffer);
    set_timer(ghost);
    return sent;
}
