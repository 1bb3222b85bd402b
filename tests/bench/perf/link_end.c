#include "tests/bench/perf/link_end.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/tcp.h"
#include "tests/host/deaf.h"

#define SECOND_US UINT64_C(1000000)
#define CONNECT_US (10 * SECOND_US)
#define ANY_PORT "tcp://127.0.0.1:*"
#define TURN_MS 20
#define PUMP_BUDGET 64

/* The daemon's defaults. */
#define PART_SIZE (1u << 20)
#define WINDOW (8u << 20)

static const struct transport_ops *const transport = &transport_zmq;

const struct link_security link_security_table[] = {
    {.name = "plain"},
    {.name = "curve", .keys = true},
    {.name = "curve-control", .keys = true, .clear_bulk = true},
    {.name = NULL},
};

const char *const link_security_names[] = {"plain", "curve", "curve-control", NULL};

static uint64_t now_us(void)
{
    return clock_ns() / 1000;
}

static void receive(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body)
{
    struct link_end *end = context;

    links_receive(end->links, peer, lane, packet, size, body, now_us());
}

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct link_end *end = context;

    return transport->send(end->transport, peer, lane, header, header_size, body, body_size, owner);
}

static void deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct link_end *end = context;

    (void)peer;
    end->messages[lane]++;
    end->bytes[lane] += message->size;
    end->short_messages += lane == LINK_BULK && message->size <= LINK_END_SHORT ? 1 : 0;
    buffer_unref(message);
}

bool link_end_keys(struct keyfile_pair keys[2])
{
    return zmq_curve_keypair(keys[0].public_key, keys[0].secret_key) == 0 &&
           zmq_curve_keypair(keys[1].public_key, keys[1].secret_key) == 0;
}

/* Listens on a free port of loopback. */
static enum adtopk_status link_end_start(struct link_end *end, uint16_t self,
    const struct link_security *security, const struct keyfile_pair keys[2], struct error *err)
{
    const struct links_config config = {.self = self,
        .incarnation = self + UINT64_C(1),
        .part_size = PART_SIZE,
        .window = WINDOW,
        .max_control_message = 64u << 10,
        .max_bulk_message = UINT64_C(1) << 34,
        .heartbeat_us = SECOND_US,
        .timeout_us = 5 * SECOND_US,
        .resend_us = SECOND_US};
    const struct links_ops ops = {.transmit = transmit,
        .deliver = deliver,
        .peer_up = deaf_peer_up,
        .peer_down = deaf_peer_down};
    const struct transport_config address = {.self = self,
        .listen = ANY_PORT,
        .pair = security->keys ? &keys[self] : NULL,
        .bulk_listen = security->clear_bulk ? ANY_PORT : NULL};

    memset(end, 0, sizeof(*end));
    end->peer = (uint16_t)(1 - self);
    end->keys = security->keys ? keys : NULL;
    end->links = links_create(&config, &ops, end);
    if (end->links == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a link");
    }
    end->transport = transport->create(&address, receive, end, err);
    if (end->transport == NULL) {
        return err->code;
    }
    (void)snprintf(end->endpoint, sizeof(end->endpoint), "%s", transport->endpoint(end->transport));
    return ADTOPK_OK;
}

/* Makes the other end known and waits until it answers. */
static enum adtopk_status link_end_connect(
    struct link_end *end, const char *endpoint, struct error *err)
{
    const uint64_t limit = now_us() + CONNECT_US;
    const struct transport_peer peer = {.id = end->peer,
        .endpoint = endpoint,
        .keys = {end->keys != NULL ? end->keys[end->peer].public_key : NULL}};
    enum adtopk_status status = transport->add_peer(end->transport, &peer, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = links_add_peer(end->links, end->peer, now_us());
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory for a peer");
    }
    while (!links_is_up(end->links, end->peer)) {
        if (now_us() > limit || stop_requested()) {
            return error_set(
                err, ADTOPK_ERR_TIMEOUT, "the other end of the link at %s is silent", endpoint);
        }
        link_end_turn(end);
    }
    return ADTOPK_OK;
}

bool link_end_send(struct link_end *end, enum link_lane lane, struct buffer *message)
{
    return links_send(end->links, end->peer, lane, NULL, message);
}

enum adtopk_status link_end_meet(struct link_end *end, unsigned side,
    const struct link_security *security, const struct keyfile_pair keys[2], int fd,
    struct error *err)
{
    char endpoint[LINK_ENDPOINT_SIZE] = "";
    enum adtopk_status status = link_end_start(end, (uint16_t)side, security, keys, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (!tcp_send(fd, end->endpoint, sizeof(endpoint)) ||
        !tcp_receive(fd, endpoint, sizeof(endpoint))) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "the other end of the link is gone");
    }
    return link_end_connect(end, endpoint, err);
}

bool link_end_send_as(struct link_end *end, const struct share_class *class, struct buffer *message)
{
    return links_send(end->links, end->peer, LINK_BULK, class, message);
}

void link_end_turn(struct link_end *end)
{
    const uint64_t now = now_us();
    const uint64_t deadline = links_deadline(end->links);
    const uint64_t wait_ms = deadline > now ? (deadline - now + 999) / 1000 : 0;
    struct pollfd entry = {.fd = transport->descriptor(end->transport), .events = POLLIN};

    (void)poll(&entry, 1, wait_ms < TURN_MS ? (int)wait_ms : TURN_MS);
    if (links_deadline(end->links) <= now_us()) {
        links_tick(end->links, now_us());
    }
    while (transport->pump(end->transport, PUMP_BUDGET)) {
    }
}

void link_end_stop(struct link_end *end)
{
    links_destroy(end->links);
    if (end->transport != NULL) {
        transport->destroy(end->transport);
    }
}
