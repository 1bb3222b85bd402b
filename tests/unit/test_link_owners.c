/*
 * The rules of ownership in daemon/link (its README). The test plants a violation of each rule, and
 * the assert that the rule names must end the process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/lane.h"
#include "daemon/link/link.h"
#include "tests/host/aborts.h"

#define PEER 1

/* ------------------------------------------------------------------ buffers */

static void write_shared(void *context)
{
    buffer_put(buffer_ref(context), 0, "x", 1);
}

/* Releases a buffer that was released already. */
static void release_released(void *context)
{
    struct buffer *buffer = context;

    buffer->references = 0;
    buffer_unref(buffer);
}

static void write_beyond(void *context)
{
    buffer_put(context, 7, "xy", 2);
}

static void test_buffers(void **state)
{
    struct buffer *buffer = buffer_new(8);

    (void)state;
    assert_non_null(buffer);
    buffer_put(buffer, 6, "xy", 2);
    assert_memory_equal(buffer->bytes + 6, "xy", 2);
    assert_aborts(write_shared, buffer, "buffer->references == 1");
    assert_aborts(write_beyond, buffer, "buffer->size - offset");
    assert_aborts(release_released, buffer, "references > 0");
    buffer_unref(buffer);
}

/* ------------------------------------------------------------------ queued messages */

/* The message counts fewer positions than are in flight. */
static void acknowledge_too_much(void *context)
{
    struct lane_out *out = context;

    out->part[out->head].message->pending = 1;
    lane_out_acknowledge(out, out->sent, 1);
}

static void test_queued_messages(void **state)
{
    const struct lane_limits limits = {
        .floor_us = 1, .ceiling_us = 2, .slots = 1, .message_max = 100};
    const struct share_class class = {.job = 1};
    struct lane_out out = {.count = 0};
    struct buffer *buffer = buffer_new(8);
    struct packet packet = {.type = PACKET_DATA};

    (void)state;
    assert_non_null(buffer);
    memset(buffer->bytes, 0, buffer->size);
    lane_out_reset(&out, &limits);
    assert_true(lane_out_push(&out, buffer, &class));
    buffer_unref(buffer);
    assert_true(lane_out_cut(&out, 100, 1000, &packet));
    assert_true(lane_out_reserve(&out));
    assert_false(lane_out_advance(&out, &packet, 0));
    assert_aborts(acknowledge_too_much, &out, "message->pending >=");
    lane_out_acknowledge(&out, out.sent, 1);
    lane_out_reset(&out, &limits);
}

/* ------------------------------------------------------------------ callbacks */

struct host {
    struct links *links;
    void (*in_transmit)(struct host *host);
    unsigned packets;
};

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct host *host = context;

    (void)peer;
    (void)lane;
    (void)header;
    (void)header_size;
    (void)body;
    (void)body_size;
    (void)owner;
    host->packets++;
    if (host->in_transmit != NULL) {
        host->in_transmit(host);
    }
    return true;
}

static void tick_again(struct host *host)
{
    links_tick(host->links, 2);
}

static void drop_job(struct host *host)
{
    links_drop_job(host->links, 1);
}

static void add_peer(struct host *host)
{
    (void)links_add_peer(host->links, PEER + 1, 2);
}

static void destroy(struct host *host)
{
    links_destroy(host->links);
}

static void receive(struct host *host)
{
    links_receive(host->links, PEER, LINK_CONTROL, NULL, 0, NULL, 2);
}

static void send_message(struct host *host)
{
    struct buffer *buffer = buffer_new(1);

    (void)links_send(host->links, PEER, LINK_CONTROL, NULL, buffer);
    buffer_unref(buffer);
}

static void tick(void *context)
{
    links_tick(((struct host *)context)->links, 1);
}

static void test_callbacks(void **state)
{
    void (*const forbidden[])(struct host * host) = {
        tick_again, drop_job, add_peer, destroy, receive};
    const struct links_ops ops = {.transmit = transmit};
    const struct links_config config = {.incarnation = 1,
        .part_size = 100,
        .window = 1000,
        .max_control_message = 100,
        .max_bulk_message = 100,
        .heartbeat_us = 1,
        .timeout_us = 10,
        .resend_us = 1};
    struct host host = {.packets = 0};

    (void)state;
    host.links = links_create(&config, &ops, &host);
    assert_non_null(host.links);
    assert_int_equal(links_add_peer(host.links, PEER, 0), ADTOPK_OK);
    for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++) {
        host.in_transmit = forbidden[i];
        assert_aborts(tick, &host, "links->use == LINK_IDLE");
    }
    host.in_transmit = send_message;
    assert_aborts(tick, &host, "links->use != LINK_TRANSMITTING");
    host.in_transmit = NULL;
    tick(&host);
    assert_true(host.packets > 0);
    links_destroy(host.links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_queued_messages),
        cmocka_unit_test(test_callbacks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
