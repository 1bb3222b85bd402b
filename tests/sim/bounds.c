/*
 * Nothing grows without a reason. The sent packets of a node are read one by one and compared with
 * what its state explains; README.md has the formulas.
 */
#include <malloc.h>
#include <string.h>

#include "daemon/core/inspect.h"
#include "daemon/job/model.h"
#include "daemon/link/packet.h"
#include "tests/sim/world.h"

/* From such a loss on links go down although nothing else happens. */
#define SIM_HEAVY_LOSS 0.3

/* A job that waits tells so at most once per second (waiting.h). */
#define TELL_US 1000000u

/* How often memory is looked at, in events, and how much a node may have for a job
 * a peer, and each of its ranks. Arenas hold a plain operation of 1 MiB each. */
#define HEAP_EVERY 1024u
#define NODE_BYTES (UINT64_C(4) << 20)
#define PEER_BYTES (UINT64_C(1) << 17)
#define RANK_BYTES (UINT64_C(3) << 19)

/* A packet of a newer connection begins it. False: it is of an older one. */
static bool connect_flow(struct flow *flow, uint64_t source, uint64_t destination)
{
    if (source < flow->source || destination < flow->destination) {
        return false;
    }
    if (source > flow->source || destination > flow->destination) {
        flow->source = source;
        flow->destination = destination;
        flow->credit = flow->next[LINK_CONTROL] = flow->next[LINK_BULK] = 0;
    }
    return true;
}

static void count_part(struct flow *flow, const struct packet *packet)
{
    if (packet->position >= flow->next[packet->lane]) {
        flow->next[packet->lane] = packet->position + packet_span(packet);
        flow->parts[packet->lane]++;
        flow->messages[packet->lane] +=
            packet->offset + packet->body_size == packet->message_size ? 1 : 0;
    }
}

void bounds_sent(struct world *world, unsigned from, unsigned to, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct flow *flow = flow_of(world, from, to);
    static uint8_t bytes[PACKET_HEADER_SIZE + SIM_MAX_BODY]; /* too large for a stack */
    struct packet packet;

    flow->packets++;
    if (world->node[from].ghost != NULL || world->scenario.mutate > 0 || body_size > SIM_MAX_BODY) {
        return;
    }
    (void)memcpy(bytes, header, header_size);
    if (body_size > 0) {
        (void)memcpy(bytes + header_size, body, body_size);
    }
    if (!packet_decode(&packet, bytes, header_size + body_size) || packet.type != PACKET_DATA ||
        !connect_flow(flow, packet.source_incarnation, packet.destination_incarnation)) {
        return;
    }
    count_part(flow, &packet);
    if (packet.lane == LINK_BULK && packet.position + packet_span(&packet) > flow->credit) {
        world_violate(world, "node %u sends to %llu, node %u has granted %llu", from,
            (unsigned long long)(packet.position + packet_span(&packet)), to,
            (unsigned long long)flow->credit);
    }
}

void bounds_received(struct world *world, unsigned to, const uint8_t *bytes, size_t size)
{
    struct packet packet;
    struct flow *flow;

    if (!packet_decode(&packet, bytes, size) || packet.source >= world->scenario.nodes ||
        (packet.type != PACKET_DATA && packet.type != PACKET_ACK) ||
        packet.destination_incarnation != world->node[to].incarnation) {
        return;
    }
    flow = flow_of(world, to, packet.source);
    if (connect_flow(flow, packet.destination_incarnation, packet.source_incarnation) &&
        packet.credit > flow->credit) {
        flow->credit = packet.credit;
    }
}

void bounds_moved(struct node *node, const struct machine_table *table, unsigned event)
{
    node->prepares += table == &job_machine && event == JOB_ON_PREPARE ? 1 : 0;
}

/* The limit for all jobs of the world together. */
struct load {
    uint64_t steps;   /* to be accepted or withdrawn */
    uint64_t rounds;  /* and of plain operations */
    uint64_t notices; /* control messages of steps: a split of every bucket, and an estimate */
    uint64_t frames;  /* to one peer, in one step of all jobs */
    uint64_t bytes;   /* of these */
};

static struct load load_of(const struct world *world)
{
    const struct scenario *scenario = &world->scenario;
    struct load load = {0};

    for (unsigned j = 0; j < world->jobs; j++) {
        const struct sim_job *job = &world->job[j];
        uint64_t frames = job->tensors * (4 + 2 * scenario->nodes) +
                          2 * job->elements / (1 + scenario->seed % SIM_SEGMENTS);
        load.steps += scenario->steps;
        load.rounds += scenario->steps + scenario->operations;
        load.notices += scenario->steps * (1 + job->tensors);
        load.frames += frames;
        load.bytes += 16 * job->elements + 128 * frames;
    }
    return load;
}

/* A count that must not exceed its explanation. */
static void limit(struct world *world, unsigned node, const char *what, uint64_t is, uint64_t most)
{
    if (is > most) {
        world_violate(world, "node %u: %llu %s, at most %llu are explained", node,
            (unsigned long long)is, what, (unsigned long long)most);
    }
}

/* Disturbances after which nodes agree anew. Where most packets are lost they do so without. */
static uint64_t disturbances(const struct world *world)
{
    const struct sim_stats *stats = &world->stats;

    return stats->crashes + stats->cuts + stats->pauses + stats->storms + world->next_ticket +
           stats->replanned;
}

static void check_flow(struct world *world, unsigned from, unsigned to, const struct load *load)
{
    const struct flow *flow = flow_of(world, from, to), *back = flow_of(world, to, from);
    uint64_t views = world->node[from].prepares + world->node[to].prepares;
    uint64_t parts = flow->parts[LINK_CONTROL] + flow->parts[LINK_BULK] +
                     back->parts[LINK_CONTROL] + back->parts[LINK_BULK];

    limit(world, from, "control messages to a peer", flow->messages[LINK_CONTROL],
        8 * world->jobs + load->notices + world->jobs * (world->now_us / TELL_US) +
            4 * (views + world->next_ticket + world->stats.replanned));
    limit(world, from, "bulk messages to a peer", flow->messages[LINK_BULK],
        load->frames * (load->rounds + views));
    limit(world, from, "packets to a peer", flow->packets, 64 + 4 * parts + world->now_us / 250);
}

static void check_queues(struct world *world, unsigned number, const struct load *load)
{
    struct peer_info peer;

    for (unsigned i = 0; core_peer_info(world->node[number].core, i, &peer); i++) {
        limit(world, number, "bytes queued for a peer", peer.link.queued_bytes,
            65536 + 3 * load->bytes);
    }
}

static bool is_honest(const struct world *world)
{
    bool honest = world->scenario.mutate <= 0 && !world->flooded;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        honest = honest && world->node[n].ghost == NULL;
    }
    return honest;
}

uint64_t bounds_heap(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static bool may_fail(const struct world *world)
{
    bool may = false;

    for (unsigned j = 0; j < world->jobs; j++) {
        may = may || world->job[j].may_fail;
    }
    return may;
}

/* Messages of a view that is over arrive where a view was replaced, that is after a disturbance.
 * Otherwise honest nodes send nothing that a peer cannot use, however the network behaves. */
static void check_bad(struct world *world, unsigned number)
{
    if (disturbances(world) == 0 && !may_fail(world) && world->scenario.loss < SIM_HEAVY_LOSS) {
        limit(world, number, "bad messages of honest peers", world->node[number].core->bad_messages,
            0);
    }
}

void bounds_check(struct world *world, unsigned number)
{
    struct load load = load_of(world);

    if (world->node[number].core == NULL || !is_honest(world)) {
        return;
    }
    for (unsigned to = 0; to < world->scenario.nodes; to++) {
        check_flow(world, number, to, &load);
    }
    check_queues(world, number, &load);
    check_bad(world, number);
    if (world->scenario.loss < SIM_HEAVY_LOSS) {
        limit(world, number, "proposals of views", world->node[number].prepares,
            16 * world->jobs * (1 + disturbances(world)));
    }
    if (world->stats.events % HEAP_EVERY == 0) {
        limit(world, number, "bytes of memory", bounds_heap() - world->heap_base,
            world->scenario.nodes *
                    (world->jobs * NODE_BYTES + world->scenario.nodes * PEER_BYTES) +
                world->trainers * RANK_BYTES);
    }
}
