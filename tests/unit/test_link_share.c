/* How messages share a link. Urgent ones overtake, weights hold, no message starves, and a peer
 * that is slow or lies hurts only itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/lane.h"
#include "tests/unit/link_world.h"

#define SECOND_US 1000000u
#define CHUNK 1000u
#define MESSAGE_MAX 1000u

/* Three nodes that know each other. */
static struct world *connected(const struct world_config *config)
{
    struct world *world = world_new(config);

    for (uint16_t id = 0; id < WORLD_NODES; id++) {
        world_start(world, id, WORLD_NODES);
    }
    world_run(world, SECOND_US);
    return world;
}

/* A small urgent message arrives at once, although a large one of the same job, and one of another
 * job, are under way. */
static void test_urgent_overtakes(void **state)
{
    const struct share_class low = {.job = 1, .place = 9}, urgent = {.job = 1, .place = 1};
    const struct share_class other = {.job = 2, .weight = SHARE_WEIGHT_MAX};
    struct world *world =
        connected(&(struct world_config){.seed = 1, .delay_min_us = 5000, .delay_max_us = 5000});
    uint64_t before;

    (void)state;
    assert_true(world_send_as(world, 0, 1, &low, 1000 * CHUNK));
    assert_true(world_send_as(world, 0, 1, &other, 1000 * CHUNK));
    world_run(world, 100000);
    before = world->nodes[0].packets[1];
    assert_in_range(before, 2, 1990);
    assert_true(world_send_as(world, 0, 1, &urgent, 12));
    world_run(world, 25000); /* a round trip for the credit, half of one, and delayed ACKs */
    assert_int_equal(world_delivered(world, 0, 1, &urgent), 12);
    assert_int_equal(world_delivered(world, 0, 1, &other), 0);
    assert_true(world->nodes[0].spread > 0);
    assert_true(world_settle(world, 10 * SECOND_US));
    assert_int_equal(world_stats(world, 0, 1).resent, 0);
    world_free(world);
}

static void top_up(struct world *world, const struct share_class *class, uint32_t size)
{
    for (int i = 0; i < 64; i++) {
        assert_true(world_send_as(world, 0, 1, class, size));
    }
}

/* Jobs with endless traffic. Their delivered bytes, divided by their weights, differ by at most a
 * chunk of each. Every message has one part, so delivered bytes are sent bytes. */
static void test_weights(void **state)
{
    const struct share_class job[] = {{.job = 1, .weight = 1, .place = 5}, {.job = 2, .weight = 4},
        {.job = 3, .weight = 20, .place = 7}};
    struct world *world =
        connected(&(struct world_config){.seed = 2, .part_size = CHUNK, .window = 16 * CHUNK});
    double got[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        top_up(world, &job[i], CHUNK - 1);
    }
    for (int turn = 0; turn < 300; turn++) {
        world_run(world, 200);
        for (int i = 0; i < 3; i++) {
            got[i] = (double)world_delivered(world, 0, 1, &job[i]) / job[i].weight;
            for (int k = 0; k < i; k++) {
                double most = (double)CHUNK / job[i].weight + (double)CHUNK / job[k].weight;
                assert_true(got[i] - got[k] <= most && got[k] - got[i] <= most);
            }
        }
        for (int i = 0; turn % 3 == 0 && i < 3; i++) {
            top_up(world, &job[i], CHUNK - 1);
        }
    }
    assert_true(got[0] >= 60 * CHUNK);
    world_free(world);
}

/* Endless urgent messages of the same job. A large message behind them arrives after at most
 * (SHARE_PASSES + 1) chunks for each of its own. */
static void test_nobody_starves(void **state)
{
    enum { CHUNKS = 40 };
    const struct share_class low = {.job = 1, .place = 100}, urgent = {.job = 1, .place = 1};
    struct world *world =
        connected(&(struct world_config){.seed = 3, .part_size = CHUNK, .window = 16 * CHUNK});
    struct world_stream *stream = NULL;
    uint64_t before;

    (void)state;
    assert_true(world_send_as(world, 0, 1, &low, CHUNKS * CHUNK));
    before = world->nodes[0].packets[1];
    for (size_t i = 0; i < world->stream_count; i++) {
        stream = world->streams[i].class.place == 100 ? &world->streams[i] : stream;
    }
    assert_non_null(stream);
    while (world->streams[0].delivered == 0) {
        top_up(world, &urgent, CHUNK);
        world_run(world, 500);
        assert_true(world_stats(world, 0, 1).queued_bytes >= 16 * CHUNK);
        assert_true(world->nodes[0].packets[1] - before <= (SHARE_PASSES + 1) * CHUNKS + 40);
    }
    assert_true(world->nodes[0].packets[1] - before > SHARE_PASSES * CHUNKS);
    world_free(world);
}

/* The time of a message to node 1 while node 2 accepts nothing, or while it accepts as much. */
static uint64_t time_beside(bool stuck)
{
    const struct share_class class = {.job = 1}, other = {.job = 2};
    struct world *world =
        connected(&(struct world_config){.seed = 4, .timeout_us = 60 * SECOND_US});
    uint64_t start;

    world->cut[2][0] = world->cut[0][2] = stuck;
    assert_true(world_send_as(world, 0, 2, &class, 1u << 20));
    assert_true(world_send_as(world, 0, 2, &other, 1u << 20));
    assert_true(world_send_as(world, 0, 1, &class, 1u << 20));
    start = world->now;
    while (world_delivered(world, 0, 1, &class) == 0) {
        world_run(world, 100);
        assert_true(world->now - start < 10 * SECOND_US);
    }
    start = world->now - start;
    assert_true(!stuck || world_delivered(world, 0, 2, &class) == 0);
    world_free(world);
    return start;
}

static void test_slow_peer(void **state)
{
    (void)state;
    assert_true(time_beside(true) <= time_beside(false));
}

/* If nobody accepts a job's messages, they fill all of that job's slots. The messages of another
 * job still arrive. */
static void test_many_classes(void **state)
{
    const struct share_class last = {.job = 99};
    struct world *world =
        connected(&(struct world_config){.seed = 5, .part_size = CHUNK, .window = 16 * CHUNK});

    (void)state;
    for (uint64_t job = 0; job < 12; job++) { /* more than there are slots */
        for (uint64_t place = 20; place > 0; place--) {
            const struct share_class class = {.job = job, .place = place};
            assert_true(world_send_as(world, 0, 1, &class, 10 * CHUNK));
            world_run(world, 300);
        }
    }
    assert_true(world_send_as(world, 0, 1, &last, 12));
    assert_true(world_settle(world, 10 * SECOND_US));
    assert_int_equal(world_delivered(world, 0, 1, &last), 12);
    world_free(world);
}

/* 64 kB in a round trip of 200 ms: chunks of 10 ms have 3.2 kB, although 16 kB are allowed. */
static void test_chunks_of_a_slow_link(void **state)
{
    const struct share_class class = {.job = 1};
    struct world *world = connected(&(struct world_config){.seed = 7,
        .part_size = 16000,
        .window = 64000,
        .delay_min_us = 100000,
        .delay_max_us = 100000});
    uint64_t bytes, packets;

    (void)state;
    assert_int_equal(world_stats(world, 0, 1).bulk_rate, 0);
    assert_true(world_send_as(world, 0, 1, &class, 1u << 20));
    world_run(world, 3 * SECOND_US / 2);
    assert_in_range(world_stats(world, 0, 1).bulk_rate, 200000, 450000);
    bytes = world_stats(world, 0, 1).bytes_sent;
    packets = world->nodes[0].packets[1];
    world_run(world, SECOND_US);
    packets = world->nodes[0].packets[1] - packets;
    bytes = (world_stats(world, 0, 1).bytes_sent - bytes) / packets;
    assert_in_range(bytes, 1000, 4500);
    assert_true(world_settle(world, 10 * SECOND_US));
    world_free(world);
}

/* A liar begins more messages than fit. The memory that a peer can make this node use has a limit.
 */
static void test_bounds(void **state)
{
    struct lane_in in = {0};
    struct buffer *message;
    const uint8_t byte = 1;
    struct packet packet = {.type = PACKET_DATA, .lane = LINK_BULK, .body = &byte, .body_size = 1};

    (void)state;
    packet.message_size = MESSAGE_MAX / 2;
    for (unsigned slot = 0; slot < 4; slot++) {
        packet.slot = slot;
        assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_TAKEN);
        packet.position++;
    }
    packet.slot = 4;
    packet.message_size = 1; /* even one that would be complete */
    assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_MALFORMED);
    packet.slot = 2;
    packet.offset = 1;
    assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_MALFORMED);
    packet.message_size = MESSAGE_MAX / 2;
    assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_TAKEN);
    assert_null(message);
    lane_in_reset(&in);
}

/* The sender keeps these limits, whatever is queued: a receiver accepts everything that it sends.
 */
static void test_sender_keeps_bounds(void **state)
{
    const struct lane_limits limits = {
        .floor_us = 1, .ceiling_us = 1, .slots = LANE_SLOTS, .message_max = MESSAGE_MAX};
    struct lane_out out = {0};
    struct lane_in in = {0};
    struct packet packet;
    unsigned sent = 0, taken = 0;

    (void)state;
    srand(1);
    lane_out_reset(&out, &limits);
    for (unsigned turn = 0; turn < 20000 || out.share.items > 0; turn++) {
        const struct share_class class = {.job = (uint64_t)(rand() % 12),
            .weight = (uint32_t)(rand() % 5),
            .place = (uint64_t)(rand() % 100)};
        struct buffer *message = buffer_new((size_t)rand() % (MESSAGE_MAX + 1));

        assert_non_null(message);
        if (turn < 20000 && rand() % 10 < 3) {
            memset(message->bytes, 0, message->size);
            assert_true(lane_out_push(&out, message, &class));
            sent++;
        }
        buffer_unref(message);
        if (lane_out_cut(&out, 100, UINT64_MAX, &packet)) {
            assert_true(lane_out_reserve(&out));
            (void)lane_out_advance(&out, &packet, 1);
            assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_TAKEN);
            taken += message != NULL ? 1 : 0;
            buffer_unref(message);
        }
        if (rand() % 50 == 0) {
            lane_out_acknowledge(&out, in.position, 1);
        }
        if (rand() % 500 == 0) { /* a repetition is cut as before */
            lane_out_rewind(&out);
            while (out.position < out.sent && lane_out_cut(&out, 7, UINT64_MAX, &packet)) {
                assert_true(lane_out_advance(&out, &packet, 1));
                assert_int_equal(lane_in_take(&in, &packet, MESSAGE_MAX, &message), LANE_DUPLICATE);
            }
        }
    }
    assert_int_equal(sent, taken);
    lane_out_acknowledge(&out, in.position, 1);
    assert_int_equal(out.queued_bytes, 0);
    assert_int_equal(out.count + out.slots_taken + out.begun_bytes + in.bytes, 0);
    lane_out_reset(&out, &limits);
    free(out.part);
    lane_in_reset(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urgent_overtakes),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_slow_peer),
        cmocka_unit_test(test_many_classes),
        cmocka_unit_test(test_chunks_of_a_slow_link),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_sender_keeps_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
