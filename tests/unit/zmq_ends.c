#include "tests/unit/zmq_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <zmq.h>

#include <cmocka.h>

#include "proto/payload.h"

const struct transport_ops *const end_transport = &transport_zmq;

uint64_t ends_now_us(void)
{
    struct timespec now;

    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec * SECOND_US + (uint64_t)now.tv_nsec / 1000;
}

/* Byte `at` of message `index`: its number, then bytes that depend on it and on their place. */
uint8_t ends_content(uint64_t index, size_t at)
{
    return (uint8_t)(at < 8 ? index >> (8 * at) : (index + at) * 167 + (at >> 8));
}

static void end_receive(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body)
{
    struct end *end = context;

    links_receive(end->links, peer, lane, packet, size, body, ends_now_us());
}

static bool end_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct end *end = context;

    return end_transport->send(
        end->transport, peer, lane, header, header_size, body, body_size, owner);
}

static void end_reopen(void *context, uint16_t peer, enum link_lane lane)
{
    struct end *end = context;

    end_transport->reopen(end->transport, peer, lane);
}

static void end_deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct end *end = context;
    uint64_t index = end->received[lane]++;

    (void)peer;
    for (size_t i = 0; i < message->size; i++) {
        if (message->bytes[i] != ends_content(index, i)) {
            fail_msg("message %u differs at byte %u", (unsigned)index, (unsigned)i);
        }
    }
    buffer_unref(message);
}

static void end_up(void *context, uint16_t peer, uint64_t incarnation)
{
    struct end *end = context;

    (void)peer;
    end->ups++;
    if (incarnation != end->incarnation_seen) {
        end->incarnation_seen = incarnation;
        memset(end->sent, 0, sizeof(end->sent));
        memset(end->received, 0, sizeof(end->received));
    }
}

static void end_down(void *context, uint16_t peer)
{
    (void)context;
    (void)peer;
}

static void end_warn(void *context, const char *line)
{
    struct end *end = context;

    end->warnings++;
    (void)snprintf(end->warning, sizeof(end->warning), "%s", line);
    (void)snprintf(
        end->warned + strlen(end->warned), sizeof(end->warned) - strlen(end->warned), "%s\n", line);
}

void end_start(struct end *end, uint16_t id, uint64_t incarnation, enum end_links links,
    const struct transport_config *options)
{
    const bool patient = links == END_PATIENT;
    const struct links_config config = {.self = id,
        .incarnation = incarnation,
        .part_size = 256 << 10,
        .window = 4 << 20,
        .max_control_message = 64 << 10,
        .max_bulk_message = 64 << 20,
        .heartbeat_us = patient ? 20 * SECOND_US : SECOND_US,
        .timeout_us = patient ? 60 * SECOND_US : 5 * SECOND_US,
        .resend_us = patient ? 15 * SECOND_US : SECOND_US / 5,
        .reopen_us = patient ? 60 * SECOND_US : 3 * SECOND_US};
    const struct links_ops ops = {.transmit = end_transmit,
        .reopen = end_reopen,
        .deliver = end_deliver,
        .peer_up = end_up,
        .peer_down = end_down};
    struct transport_config with_id = *options;
    struct error err = {0};

    with_id.self = id;
    with_id.warn = end_warn;
    memset(end, 0, sizeof(*end));
    end->links = links_create(&config, &ops, end);
    assert_non_null(end->links);
    end->transport = end_transport->create(&with_id, end_receive, end, &err);
    if (end->transport == NULL) {
        fail_msg("%s", err.text);
    }
    (void)snprintf(
        end->endpoint, sizeof(end->endpoint), "%s", end_transport->endpoint(end->transport));
}

void end_connect(struct end *end, uint16_t peer, const char *endpoint, const char *key)
{
    const struct transport_peer entry = {.id = peer, .endpoint = endpoint, .keys = {key}};
    struct error err = {.code = ADTOPK_OK};

    if (end_transport->add_peer(end->transport, &entry, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(links_add_peer(end->links, peer, ends_now_us()), ADTOPK_OK);
}

void end_stop(struct end *end)
{
    links_destroy(end->links);
    end_transport->destroy(end->transport);
}

void end_send(struct end *end, uint16_t peer, enum link_lane lane, size_t size)
{
    struct buffer *message = buffer_new(size);

    assert_non_null(message);
    for (size_t i = 0; i < size; i++) {
        message->bytes[i] = ends_content(end->sent[lane], i);
    }
    if (size >= BUFFER_KNOWN_MIN) { /* as of a frame */
        message->known = true;
        message->crc = crc32c(0, message->bytes, size);
    }
    assert_true(links_send(end->links, peer, lane, NULL, message));
    end->sent[lane]++;
    buffer_unref(message);
}

/* Takes one turn as a daemon's loop does: sleeps until a packet or a deadline. */
void ends_turn(struct end *ends, uint64_t until)
{
    struct pollfd polls[2];
    uint64_t now = ends_now_us(), wake = until;
    bool more = false;

    for (int i = 0; i < 2; i++) {
        uint64_t deadline = links_deadline(ends[i].links);

        wake = deadline < wake ? deadline : wake;
        polls[i] =
            (struct pollfd){.fd = end_transport->descriptor(ends[i].transport), .events = POLLIN};
    }
    assert_true(poll(polls, 2, wake > now ? (int)((wake - now + 999) / 1000) : 0) >= 0);
    for (int i = 0; i < 2; i++) {
        bool ticked = links_deadline(ends[i].links) <= ends_now_us();

        if (ticked) {
            links_tick(ends[i].links, ends_now_us());
        }
        if (ticked || polls[i].revents != 0) {
            do {
                more = end_transport->pump(ends[i].transport, 64);
            } while (more);
        }
    }
}

static bool ends_reached(const struct end *ends, uint64_t control, uint64_t bulk)
{
    return ends[0].received[LINK_CONTROL] >= control && ends[1].received[LINK_CONTROL] >= control &&
           ends[0].received[LINK_BULK] >= bulk && ends[1].received[LINK_BULK] >= bulk;
}

void ends_run_until(struct end *ends, uint64_t control, uint64_t bulk)
{
    uint64_t limit = ends_now_us() + PATIENCE_US;

    while (!ends_reached(ends, control, bulk)) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, limit);
    }
}

/* Takes turns until nodes 0 and 1 see each other. */
static void ends_run_until_up(struct end *ends)
{
    uint64_t limit = ends_now_us() + PATIENCE_US;

    while (!links_is_up(ends[0].links, 1) || !links_is_up(ends[1].links, 0)) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, limit);
    }
}

void ends_start_pair(struct end *ends)
{
    const struct transport_config config = {.listen = ANY_PORT};

    end_start(&ends[0], 0, 100, END_PATIENT, &config);
    end_start(&ends[1], 1, 200, END_PATIENT, &config);
    end_connect(&ends[0], 1, ends[1].endpoint, NULL);
    end_connect(&ends[1], 0, ends[0].endpoint, NULL);
    ends_run_until_up(ends);
}

void ends_draw_keys(struct keyfile_pair *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(zmq_curve_keypair(pairs[i].public_key, pairs[i].secret_key), 0);
    }
}

void ends_start_keyed(struct end *ends, enum end_links links, const struct keyfile_pair *pairs,
    bool clear_0, bool clear_1)
{
    const bool clear[2] = {clear_0, clear_1};

    for (uint16_t i = 0; i < 2; i++) {
        const struct transport_config config = {
            .listen = ANY_PORT, .pair = &pairs[i], .bulk_listen = clear[i] ? ANY_PORT : NULL};

        end_start(&ends[i], i, 100 * (i + 1U), links, &config);
    }
    end_connect(&ends[0], 1, ends[1].endpoint, pairs[1].public_key);
    end_connect(&ends[1], 0, ends[0].endpoint, pairs[0].public_key);
    ends_run_until_up(ends);
}

void ends_stop_pair(struct end *ends)
{
    end_stop(&ends[0]);
    end_stop(&ends[1]);
}

int tcp_connect(const char *endpoint)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

void ends_check_nothing_resent(const struct end *ends)
{
    for (uint16_t i = 0; i < 2; i++) {
        struct link_stats stats;

        assert_true(links_stats(ends[i].links, (uint16_t)(1 - i), &stats));
        assert_int_equal(stats.resent, 0);
        assert_int_equal(stats.malformed + stats.dropped + stats.duplicates, 0);
    }
}
