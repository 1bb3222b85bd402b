/* The links of a node that lies, and the messages that it receives over them. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "daemon/transport/transport.h"
#include "peer.pb-c.h"
#include "proto/codec.h"
#include "tests/host/deaf.h"
#include "tests/integration/liar.h"

void fail(const char *what)
{
    (void)fprintf(stderr, "test-liar: %s\n", what);
    exit(1);
}

void *need(void *memory)
{
    if (memory == NULL) {
        fail("no memory");
    }
    return memory;
}

uint64_t now_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_US + (uint64_t)now.tv_nsec / 1000;
}

/* The links */

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    const struct liar *liar = context;

    return transport_zmq.send(
        liar->transport, peer, lane, header, header_size, body, body_size, owner);
}

static void reopen(void *context, uint16_t peer, enum link_lane lane)
{
    const struct liar *liar = context;

    transport_zmq.reopen(liar->transport, peer, lane);
}

static void hear(struct heard *heard, const Adtopk__PeerMessage *message)
{
    const Adtopk__PeerJoin *join = message->join;

    if (message->kind_case != ADTOPK__PEER_MESSAGE__KIND_JOIN || join->n_tensors > TENSORS_MAX) {
        return;
    }
    (void)snprintf(heard->name, sizeof(heard->name), "%s", message->about->name);
    heard->job = message->about->sender_job;
    heard->policy = join->policy;
    heard->tensors = join->n_tensors;
    (void)memcpy(heard->tensor, join->tensors, join->n_tensors * sizeof(heard->tensor[0]));
}

static void deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *buffer)
{
    struct liar *liar = context;

    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = need(codec_unpack(
            &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, NULL));
        hear(&liar->heard[peer], message);
        codec_free(&message->base);
    }
    buffer_unref(buffer);
}

static void receive(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body)
{
    const struct liar *liar = context;

    links_receive(liar->links, peer, lane, packet, size, body, now_us());
}

bool liar_turn(struct liar *liar, bool sleep)
{
    struct pollfd polls[] = {{.fd = transport_zmq.descriptor(liar->transport), .events = POLLIN},
        {.fd = STDIN_FILENO, .events = POLLIN}};
    uint64_t now = now_us(), deadline = links_deadline(liar->links);
    uint64_t wait = deadline > now ? (deadline - now + 999) / 1000 : 0;

    if (poll(polls, 2, !sleep ? 0 : wait > 100 ? 100 : (int)wait) < 0) {
        fail("cannot poll");
    }
    if (links_deadline(liar->links) <= now_us()) {
        links_tick(liar->links, now_us());
    }
    while (transport_zmq.pump(liar->transport, 64)) {
    }
    return polls[1].revents != 0;
}

static uint64_t queued(const struct liar *liar, uint16_t peer)
{
    struct link_stats stats = {0};

    (void)links_stats(liar->links, peer, &stats);
    return stats.queued_bytes;
}

void liar_drain(struct liar *liar, uint64_t most)
{
    uint64_t end = now_us() + PATIENCE_US;

    for (uint16_t peer = 0; peer < PEERS; peer++) {
        while (queued(liar, peer) > most) {
            (void)liar_turn(liar, queued(liar, 0) > 0);
            if (now_us() > end) {
                fail("a peer does not acknowledge");
            }
        }
    }
}

void liar_send(
    struct liar *liar, uint16_t peer, enum link_lane lane, const void *bytes, size_t size)
{
    struct buffer *buffer = need(buffer_new(size));

    (void)memcpy(buffer->bytes, bytes, size);
    if (!links_send(liar->links, peer, lane, NULL, buffer)) {
        fail("a peer is not there");
    }
    buffer_unref(buffer);
}

/* Opening */

static void liar_open_links(struct liar *liar)
{
    struct links_config config = {.self = liar->node,
        .part_size = 256u << 10,
        .window = 4u << 20,
        .max_control_message = TRANSPORT_BODY_MAX,
        .max_bulk_message = 64u << 20,
        .heartbeat_us = SECOND_US,
        .timeout_us = 10 * SECOND_US,
        .resend_us = SECOND_US / 10,
        .reopen_us = 5 * SECOND_US};
    const struct links_ops ops = {.transmit = transmit,
        .reopen = reopen,
        .deliver = deliver,
        .peer_up = deaf_peer_up,
        .peer_down = deaf_peer_down};

    if (getrandom(&config.incarnation, sizeof(config.incarnation), 0) !=
        sizeof(config.incarnation)) {
        fail("no random number");
    }
    config.incarnation |= 1;
    liar->links = need(links_create(&config, &ops, liar));
}

static void liar_open_transport(
    struct liar *liar, const char *key_file, const char *listen, char **peers)
{
    struct keyfile_pair pair;
    const struct transport_config config = {.self = liar->node, .listen = listen, .pair = &pair};
    struct error err = {.code = ADTOPK_OK};

    if (keyfile_load(key_file, &pair, &err) != ADTOPK_OK) {
        fail(err.text);
    }
    liar->transport = transport_zmq.create(&config, receive, liar, &err);
    keyfile_wipe(&pair);
    if (liar->transport == NULL) {
        fail(err.text);
    }
    for (uint16_t peer = 0; peer < PEERS; peer++) {
        const struct transport_peer there = {
            .id = peer, .endpoint = peers[2 * peer], .keys = {peers[1 + 2 * peer]}};
        if (transport_zmq.add_peer(liar->transport, &there, &err) != ADTOPK_OK ||
            links_add_peer(liar->links, peer, now_us()) != ADTOPK_OK) {
            fail(err.text);
        }
    }
}

void liar_open(struct liar *liar, const char *key_file, const char *listen, char **peers)
{
    liar_open_links(liar);
    liar_open_transport(liar, key_file, listen, peers);
}

void liar_close(struct liar *liar)
{
    links_destroy(liar->links);
    transport_zmq.destroy(liar->transport);
}
