#include "tests/unit/link_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLD_STEPS_MAX 20000000
#define WORLD_MAX_CONTROL 2000
#define WORLD_MAX_BULK (1U << 20)
#define WORLD_LOOK_US 10000 /* how often a packet looks whether its node runs again */
#define SECOND_US 1000000u

static uint64_t world_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

uint64_t world_random(struct world *world, uint64_t bound)
{
    world->random = world_mix(world->random);
    return world->random % bound;
}

static bool world_chance(struct world *world, uint64_t per_mille)
{
    return world_random(world, 1000) < per_mille;
}

static void *world_copy(const void *bytes, size_t size)
{
    void *copy = malloc(size);

    assert_non_null(copy);
    memcpy(copy, bytes, size);
    return copy;
}

/* The packets on their way: a binary heap by time, then by order of sending. */

static bool world_earlier(const struct world_packet *a, const struct world_packet *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void world_swap(struct world_packet *a, struct world_packet *b)
{
    struct world_packet copy = *a;

    *a = *b;
    *b = copy;
}

static void world_put(struct world *world, const struct world_packet *packet)
{
    size_t at = world->heap_size++;

    if (world->heap_size > world->heap_capacity) {
        world->heap_capacity = 2 * world->heap_size;
        world->heap = realloc(world->heap, world->heap_capacity * sizeof(*world->heap));
        assert_non_null(world->heap);
    }
    world->heap[at] = *packet;
    world->heap[at].order = world->order++;
    while (at > 0 && world_earlier(&world->heap[at], &world->heap[(at - 1) / 2])) {
        world_swap(&world->heap[at], &world->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
}

static struct world_packet world_take(struct world *world)
{
    struct world_packet first = world->heap[0];
    size_t at = 0;

    world->heap[0] = world->heap[--world->heap_size];
    for (;;) {
        size_t least = at;

        for (size_t child = 2 * at + 1; child <= 2 * at + 2; child++) {
            if (child < world->heap_size &&
                world_earlier(&world->heap[child], &world->heap[least])) {
                least = child;
            }
        }
        if (least == at) {
            return first;
        }
        world_swap(&world->heap[at], &world->heap[least]);
        at = least;
    }
}

/* The time at which a packet has left: after earlier packets if the rate is limited. */
static uint64_t world_departure(struct world *world, const struct world_packet *packet)
{
    uint64_t *free_at = &world->free_at[packet->from][packet->to][packet->lane];

    if (world->config.rate == 0) {
        return world->now;
    }
    *free_at = (*free_at > world->now ? *free_at : world->now) +
               packet->size * SECOND_US / world->config.rate;
    return *free_at;
}

static void world_post(struct world *world, const struct world_packet *packet)
{
    const struct world_config *config = &world->config;
    struct world_packet copy = *packet;

    copy.bytes = world_copy(packet->bytes, packet->size);
    copy.time = world_departure(world, packet) + config->delay_min_us +
                world_random(world, config->delay_max_us - config->delay_min_us + 1);
    if (world_chance(world, config->corrupt)) {
        /* A bulk body has a CRC of its own, which links do not check. */
        size_t span = copy.lane == LINK_CONTROL ? copy.size : PACKET_HEADER_SIZE;

        copy.bytes[world_random(world, span)] ^= (uint8_t)(1 + world_random(world, 255));
    }
    world_put(world, &copy);
}

void world_replay(struct world *world, size_t index)
{
    world_post(world, &world->history[index]);
}

static void world_record(struct world *world, const struct world_packet *packet)
{
    size_t at = world->recorded;

    if (at >= WORLD_HISTORY) {
        at = world_random(world, WORLD_HISTORY);
        free(world->history[at].bytes);
    } else {
        world->recorded++;
    }
    world->history[at] = *packet;
    world->history[at].bytes = world_copy(packet->bytes, packet->size);
}

/* Streams: the independent record of messages that must arrive. */

static bool world_is_between(const struct world_stream *stream, const struct world_stream *key)
{
    return stream->from == key->from && stream->to == key->to && stream->lane == key->lane &&
           stream->from_incarnation == key->from_incarnation &&
           stream->to_incarnation == key->to_incarnation;
}

static struct world_stream *world_stream(struct world *world, const struct world_stream *key)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        struct world_stream *stream = &world->streams[i];

        if (world_is_between(stream, key) && stream->class.job == key->class.job &&
            stream->class.place == key->class.place) {
            return stream;
        }
    }
    world->streams =
        realloc(world->streams, (world->stream_count + 1) * sizeof(struct world_stream));
    assert_non_null(world->streams);
    world->streams[world->stream_count] = *key;
    return &world->streams[world->stream_count++];
}

static void world_fill(const struct world_stream *stream, size_t index, uint8_t *bytes, size_t size)
{
    uint64_t x = world_mix(stream->from_incarnation * 31 + stream->to_incarnation) ^
                 world_mix(index * 8 + stream->from * 2U + stream->lane) ^
                 world_mix(stream->class.job * 1000 + stream->class.place);

    for (size_t i = 0; i < size; i++) {
        if (i % 8 == 0) {
            x = world_mix(x);
        }
        bytes[i] = (uint8_t)(x >> (8 * (i % 8)));
    }
}

static bool world_send_on(struct world *world, uint16_t from, uint16_t to, enum link_lane lane,
    const struct share_class *class, uint32_t size)
{
    struct world_stream *stream =
        world_stream(world, &(struct world_stream){.from = from,
                                .to = to,
                                .lane = lane,
                                .class = *class,
                                .from_incarnation = world->nodes[from].incarnation,
                                .to_incarnation = links_incarnation(world->nodes[from].links, to)});
    struct buffer *message = buffer_new(size);
    bool sent;

    assert_non_null(message);
    world_fill(stream, stream->sent, message->bytes, size);
    sent = links_send(world->nodes[from].links, to, lane, class, message);
    buffer_unref(message);
    if (sent) {
        stream->sizes = realloc(stream->sizes, (stream->sent + 1) * sizeof(uint32_t));
        assert_non_null(stream->sizes);
        stream->sizes[stream->sent++] = size;
    }
    return sent;
}

bool world_send(struct world *world, uint16_t from, uint16_t to, enum link_lane lane, uint32_t size)
{
    const struct share_class none = {0};

    return world_send_on(world, from, to, lane, &none, size);
}

bool world_send_as(
    struct world *world, uint16_t from, uint16_t to, const struct share_class *class, uint32_t size)
{
    assert_true(size >= WORLD_CLASSED_MIN);
    return world_send_on(world, from, to, LINK_BULK, class, size);
}

void world_drop(struct world *world, uint16_t from, uint64_t job)
{
    links_drop_job(world->nodes[from].links, job);
    for (size_t i = 0; i < world->stream_count; i++) {
        struct world_stream *stream = &world->streams[i];

        if (stream->from == from && stream->lane == LINK_BULK && stream->class.job == job) {
            stream->dropped = stream->sent;
        }
    }
}

uint64_t world_delivered(
    const struct world *world, uint16_t from, uint16_t to, const struct share_class *class)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < world->stream_count; i++) {
        const struct world_stream *stream = &world->streams[i];

        for (size_t k = 0; stream->from == from && stream->to == to &&
                           stream->class.job == class->job && k < stream->delivered;
             k++) {
            bytes += stream->sizes[k];
        }
    }
    return bytes;
}

/* Whether the message is this one of the stream. */
static bool world_is(const struct world_stream *stream, size_t index, const struct buffer *message)
{
    uint8_t *expected;
    bool same;

    if (index == stream->sent || message->size != stream->sizes[index]) {
        return false;
    }
    expected = malloc(message->size + 1);
    assert_non_null(expected);
    world_fill(stream, index, expected, message->size);
    same = memcmp(message->bytes, expected, message->size) == 0;
    free(expected);
    return same;
}

/* Whether the message is the next one of the stream, which then moves on. */
static bool world_is_next(struct world_stream *stream, const struct buffer *message)
{
    size_t index = stream->delivered;

    while (index < stream->dropped && !world_is(stream, index, message)) {
        index++;
    }
    if (!world_is(stream, index, message)) {
        return false;
    }
    stream->delivered = index + 1;
    return true;
}

static void world_deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct world_node *node = context;
    const struct world_stream key = {.from = peer,
        .to = node->id,
        .lane = lane,
        .from_incarnation = links_incarnation(node->links, peer),
        .to_incarnation = node->incarnation};
    bool expected = false;

    for (size_t i = 0; i < node->world->stream_count && !expected; i++) {
        struct world_stream *stream = &node->world->streams[i];

        expected = world_is_between(stream, &key) && world_is_next(stream, message);
    }
    assert_true(expected);
    buffer_unref(message);
    if (node->echo && lane == LINK_BULK) {
        (void)world_send(node->world, node->id, peer, LINK_CONTROL, 5);
        (void)world_send(
            node->world, node->id, (uint16_t)((peer + 1) % WORLD_NODES), LINK_CONTROL, 0);
    }
}

static void world_peer_up(void *context, uint16_t peer, uint64_t incarnation)
{
    struct world_node *node = context;

    assert_true(links_is_up(node->links, peer));
    /* Never back to an incarnation that was replaced. */
    assert_true(incarnation >= node->adopted[peer]);
    assert_true(incarnation <= node->world->nodes[peer].incarnation);
    if (incarnation != node->adopted[peer]) {
        assert_int_equal(world_stats(node->world, node->id, peer).queued_bytes, 0);
        node->bulk_acked[peer] = 0;
    }
    node->adopted[peer] = incarnation;
    node->ups++;
    node->last_change_us = node->world->now;
    if (node->echo) {
        assert_true(world_send(node->world, node->id, peer, LINK_CONTROL, 11));
    }
}

static void world_peer_down(void *context, uint16_t peer)
{
    struct world_node *node = context;

    assert_false(links_is_up(node->links, peer));
    node->downs++;
    node->last_change_us = node->world->now;
}

static size_t world_window(const struct world_node *node)
{
    const struct world_config *config = &node->world->config;

    return node->id == 0 && config->first_window > 0 ? config->first_window : config->window;
}

/* Checks the rules that a sender must keep. */
static void world_check(struct world_node *node, const struct packet *packet)
{
    size_t window = world_window(node);

    assert_int_equal(packet->source, node->id);
    assert_int_equal(packet->source_incarnation, node->incarnation);
    if (packet->type == PACKET_DATA || packet->type == PACKET_ACK) {
        assert_int_equal(packet->destination_incarnation, node->adopted[packet->destination]);
        assert_int_equal(packet->credit, packet->acknowledged[LINK_BULK] + window);
    }
    if (packet->type == PACKET_DATA && packet->lane == LINK_BULK) {
        assert_true(packet->body_size <= node->world->config.part_size);
        assert_true(packet->position + packet_span(packet) <=
                    node->bulk_acked[packet->destination] + window);
        node->packets[packet->destination]++;
        node->spread += packet->slot != 0 ? 1 : 0;
    }
}

static bool world_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct world_node *node = context;
    struct world *world = node->world;
    struct world_packet packet = {.from = node->id, .to = peer, .lane = lane};
    struct packet decoded;

    assert_true((owner != NULL) == (body_size >= LINK_KEEP_MIN));
    if (world_chance(world, world->config.refuse) || (node->bulk_blocked && lane == LINK_BULK)) {
        return false;
    }
    packet.size = header_size + body_size;
    packet.bytes = malloc(packet.size);
    assert_non_null(packet.bytes);
    memcpy(packet.bytes, header, header_size);
    if (body_size > 0) {
        memcpy(packet.bytes + header_size, body, body_size);
    }
    assert_true(packet_decode(&decoded, packet.bytes, packet.size));
    world_check(node, &decoded);
    if (!world->cut[node->id][peer] && !world->dead[node->id][peer][lane]) {
        if (!world_chance(world, world->config.loss)) {
            world_post(world, &packet);
        }
        if (world_chance(world, world->config.duplicate)) {
            world_post(world, &packet);
        }
        if (world->recorded > 0 && world_chance(world, world->config.replay)) {
            world_replay(world, world_random(world, world->recorded));
        }
    }
    world_record(world, &packet);
    free(packet.bytes);
    return true;
}

static void world_reopen(void *context, uint16_t peer, enum link_lane lane)
{
    struct world_node *node = context;

    node->reopened[lane]++;
    if (!node->world->cut[node->id][peer]) {
        node->world->dead[node->id][peer][lane] = false;
    }
}

/* A transport may hand a packet over in one piece, or its body apart. */
static void world_hand_over(
    struct world_node *node, const struct world_packet *packet, uint16_t from)
{
    const bool apart = packet->size > PACKET_HEADER_SIZE && world_chance(node->world, 500);
    struct buffer *body = apart ? buffer_new(packet->size - PACKET_HEADER_SIZE) : NULL;

    assert_true(!apart || body != NULL);
    if (apart) {
        memcpy(body->bytes, packet->bytes + PACKET_HEADER_SIZE, body->size);
    }
    links_receive(node->links, from, packet->lane, packet->bytes,
        apart ? PACKET_HEADER_SIZE : packet->size, body, node->world->now);
    buffer_unref(body);
}

static void world_receive(struct world *world, const struct world_packet *packet)
{
    struct world_node *node = &world->nodes[packet->to];
    struct packet decoded;

    if (node->links == NULL || world->cut[packet->from][packet->to]) {
        return;
    }
    if (packet_decode(&decoded, packet->bytes, packet->size) && decoded.type != PACKET_HELLO &&
        decoded.type != PACKET_WELCOME && decoded.destination_incarnation == node->incarnation &&
        decoded.source_incarnation == node->adopted[packet->from] &&
        decoded.acknowledged[LINK_BULK] > node->bulk_acked[packet->from]) {
        node->bulk_acked[packet->from] = decoded.acknowledged[LINK_BULK];
    }
    world_hand_over(node, packet, world_chance(world, 500) ? UINT16_MAX : packet->from);
}

static void world_default(uint64_t *field, uint64_t value)
{
    if (*field == 0) {
        *field = value;
    }
}

struct world *world_new(const struct world_config *config)
{
    struct world *world = calloc(1, sizeof(*world));

    assert_non_null(world);
    world->config = *config;
    world->random = config->seed;
    world->now = 1000000;
    world_default(&world->config.delay_min_us, 100);
    world_default(&world->config.delay_max_us, world->config.delay_min_us);
    world_default(&world->config.heartbeat_us, 100000);
    world_default(&world->config.timeout_us, 1000000);
    world_default(&world->config.resend_us, 20000);
    if (world->config.part_size == 0) {
        world->config.part_size = 1000;
    }
    if (world->config.window == 0) {
        world->config.window = 16 * world->config.part_size;
    }
    for (uint16_t id = 0; id < WORLD_NODES; id++) {
        world->nodes[id].world = world;
        world->nodes[id].id = id;
    }
    return world;
}

void world_free(struct world *world)
{
    for (size_t i = 0; i < WORLD_NODES; i++) {
        links_destroy(world->nodes[i].links);
    }
    for (size_t i = 0; i < world->heap_size; i++) {
        free(world->heap[i].bytes);
    }
    for (size_t i = 0; i < world->recorded; i++) {
        free(world->history[i].bytes);
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        free(world->streams[i].sizes);
    }
    free(world->heap);
    free(world->streams);
    free(world);
}

void world_start(struct world *world, uint16_t id, unsigned peers)
{
    struct world_node *node = &world->nodes[id];
    const struct links_ops ops = {.transmit = world_transmit,
        .reopen = world_reopen,
        .deliver = world_deliver,
        .peer_up = world_peer_up,
        .peer_down = world_peer_down};
    const struct links_config config = {
        .self = id,
        .incarnation = node->incarnation + 1 + world_random(world, 1000),
        .part_size = world->config.part_size,
        .window = world_window(node),
        .max_control_message = WORLD_MAX_CONTROL,
        .max_bulk_message = WORLD_MAX_BULK,
        .heartbeat_us = world->config.heartbeat_us,
        .timeout_us = world->config.timeout_us,
        .resend_us = world->config.resend_us,
        .reopen_us = world->config.reopen_us,
    };

    links_destroy(node->links);
    memset(node->adopted, 0, sizeof(node->adopted));
    memset(node->bulk_acked, 0, sizeof(node->bulk_acked));
    node->incarnation = config.incarnation;
    node->links = links_create(&config, &ops, node);
    assert_non_null(node->links);
    for (uint16_t peer = 0; peer < peers; peer++) {
        if (peer != id) {
            assert_int_equal(links_add_peer(node->links, peer, world->now), ADTOPK_OK);
        }
    }
}

/* The earliest deadline; *node is the node that has it. */
static uint64_t world_next_tick(struct world *world, struct world_node **node)
{
    uint64_t earliest = UINT64_MAX;

    for (size_t i = 0; i < WORLD_NODES; i++) {
        if (world->nodes[i].links != NULL && !world->nodes[i].paused) {
            uint64_t deadline = links_deadline(world->nodes[i].links);

            if (deadline < earliest) {
                earliest = deadline;
                *node = &world->nodes[i];
            }
        }
    }
    return earliest;
}

void world_run(struct world *world, uint64_t duration_us)
{
    uint64_t end = world->now + duration_us;

    for (;;) {
        struct world_node *node = NULL;
        uint64_t tick = world_next_tick(world, &node);
        uint64_t arrival = world->heap_size > 0 ? world->heap[0].time : UINT64_MAX;
        uint64_t next = tick < arrival ? tick : arrival;

        /* A deadline that never moves would fail here. */
        assert_true(++world->steps < WORLD_STEPS_MAX);
        if (next > end) {
            break;
        }
        world->now = next > world->now ? next : world->now;
        if (arrival <= tick) {
            struct world_packet packet = world_take(world);

            if (world->nodes[packet.to].paused) {
                packet.time += WORLD_LOOK_US;
                world_put(world, &packet);
            } else {
                world_receive(world, &packet);
                free(packet.bytes);
            }
        } else {
            node->ticks++;
            links_tick(node->links, world->now);
        }
    }
    world->now = end;
}

struct link_stats world_stats(const struct world *world, uint16_t node, uint16_t peer)
{
    struct link_stats stats = {0};

    assert_true(links_stats(world->nodes[node].links, peer, &stats));
    return stats;
}

static bool world_is_settled(const struct world *world)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        const struct world_stream *stream = &world->streams[i];
        const struct world_node *from = &world->nodes[stream->from];

        if (stream->from_incarnation == from->incarnation &&
            stream->to_incarnation == world->nodes[stream->to].incarnation && stream->sent > 0 &&
            ((stream->delivered < stream->sent && stream->dropped < stream->sent) ||
                world_stats(world, stream->from, stream->to).queued_bytes > 0)) {
            return false;
        }
    }
    return true;
}

bool world_settle(struct world *world, uint64_t limit_us)
{
    for (uint64_t spent = 0; spent <= limit_us; spent += 10000) {
        if (world_is_settled(world)) {
            return true;
        }
        world_run(world, 10000);
    }
    return false;
}
