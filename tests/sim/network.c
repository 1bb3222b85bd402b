/*
 * The network between the nodes. It takes time, loses, repeats and reorders packets, is cut in one
 * direction or both, and changes the packets of a hostile node.
 *
 * With a rate, each direction between two nodes is a line that sends one packet after the other.
 * Control packets wait for control packets only; bulk packets wait for both.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/link/packet.h"
#include "tests/host/seal.h"
#include "tests/sim/world.h"

/* How old a replayed packet may be. */
#define REPLAY_US 50000u

/* A line that is busy for so long takes nothing more. */
#define BACKLOG_US 20000u

static uint64_t later_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct flow *flow_of(struct world *world, unsigned from, unsigned to)
{
    return &world->flow[from * world->scenario.nodes + to];
}

/* When the line has sent a packet that it gets now, from now on. */
static uint64_t link_takes(
    struct world *world, unsigned from, unsigned to, enum link_lane lane, size_t size)
{
    struct flow *flow = flow_of(world, from, to);
    uint64_t begin = later_of(world->now_us, flow->busy_until[LINK_CONTROL]);

    if (world->scenario.rate == 0) {
        return 0;
    }
    if (lane == LINK_BULK) {
        begin = later_of(begin, flow->busy_until[LINK_BULK]);
    }
    flow->busy_until[lane] = begin + size * 1000 / world->scenario.rate;
    return flow->busy_until[lane] - world->now_us;
}

static void send_packet(struct world *world, struct sim_event packet, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    packet.type = SIM_PACKET;
    packet.size = header_size + body_size;
    packet.bytes = sim_alloc(packet.size + 1);
    (void)memcpy(packet.bytes, header, header_size);
    if (body_size > 0) {
        (void)memcpy(packet.bytes + header_size, body, body_size);
    }
    world->stats.packets++;
    world_at(world,
        link_takes(world, packet.from, packet.node, packet.lane, packet.size) + 10 +
            world_random(world, world->scenario.delay_us + 1),
        packet);
}

/* A changed packet beside, or instead of, the true one. */
static struct sim_event mutate(struct world *world, struct sim_event packet)
{
    struct sim_event copy = packet;
    uint64_t kind = world_random(world, 5);

    copy.bytes = sim_alloc(packet.size + 1);
    (void)memcpy(copy.bytes, packet.bytes, packet.size);
    if (kind == 0) {
        copy.size = world_random(world, packet.size + 1);
    } else if (kind == 1) {
        copy.from = (uint16_t)world_random(world, 16); /* perhaps a stranger */
    } else if (kind == 2) {
        copy.lane = packet.lane == LINK_BULK ? LINK_CONTROL : LINK_BULK;
    } else if (kind == 3) {
        for (uint64_t flips = 1 + world_random(world, 4); flips > 0; flips--) {
            uint64_t at = world_random(world, packet.size);
            copy.bytes[at] ^= (uint8_t)(1u << world_random(world, 8));
        }
        if (world->scenario.reseal) {
            (void)packet_seal(copy.bytes, copy.size);
        }
    } /* kind 4: replayed as it is */
    return copy;
}

/* The packet that was queued last is the one to be changed. */
static void mutate_last(struct world *world, struct sim_event packet, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct sim_event whole = packet, changed;

    whole.size = header_size + body_size;
    whole.bytes = sim_alloc(whole.size + 1);
    (void)memcpy(whole.bytes, header, header_size);
    if (body_size > 0) {
        (void)memcpy(whole.bytes + header_size, body, body_size);
    }
    changed = mutate(world, whole);
    free(whole.bytes);
    changed.type = SIM_PACKET;
    world->faults++;
    world_at(world, 10 + world_random(world, REPLAY_US), changed);
}

/* Whether the network takes a packet at all. */
static bool link_takes_more(struct world *world, unsigned from, unsigned to, enum link_lane lane)
{
    return flow_of(world, from, to)->busy_until[lane] <= world->now_us + BACKLOG_US &&
           !world_chance(world, world->scenario.refuse);
}

static bool is_lost(struct world *world, const struct node *from, const struct node *to)
{
    double loss = world->storms > 0 ? world->scenario.storm_loss : world->scenario.loss;

    return from->cut || to->cut || flow_of(world, from->number, to->number)->cuts > 0 ||
           world_chance(world, loss);
}

bool node_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct node *slot = context;
    struct world *world = slot->world;
    struct sim_event packet = {.node = peer, .from = (uint16_t)slot->number, .lane = lane};

    (void)owner;
    if (!link_takes_more(world, slot->number, peer, lane)) {
        return false;
    }
    bounds_sent(world, slot->number, peer, header, header_size, body, body_size);
    if (lane == LINK_BULK ? ++slot->bulk_packets > slot->bulk_last : slot->quiet) {
        return true;
    }
    if (is_lost(world, slot, &world->node[peer])) {
        world->stats.lost++;
        world->faults++;
        return true;
    }
    if (slot->number == world->scenario.hostile && world_chance(world, world->scenario.mutate)) {
        mutate_last(world, packet, header, header_size, body, body_size);
        if (world_chance(world, 0.5)) {
            return true;
        }
    }
    send_packet(world, packet, header, header_size, body, body_size);
    if (world_chance(world, world->scenario.duplicate)) {
        world->stats.duplicated++;
        world->faults++;
        send_packet(world, packet, header, header_size, body, body_size);
    }
    return true;
}
