/* Links over a virtual network: every message exactly once and in order, whatever happens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/lane.h"
#include "daemon/link/packet.h"
#include "tests/unit/link_world.h"

#define CHAOS_SEEDS 300
#define CHAOS_ROUNDS 30
#define SECOND_US 1000000U

const char *__asan_default_options(void);

/* One case below asks for a message too large for memory; that is not a bug. */
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static uint32_t minimum(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Two nodes that know each other. */
static struct world *connected(const struct world_config *config)
{
    struct world *world = world_new(config);

    world_start(world, 0, 2);
    world_start(world, 1, 2);
    world_run(world, SECOND_US);
    assert_int_equal(world->nodes[0].adopted[1], world->nodes[1].incarnation);
    assert_int_equal(world->nodes[1].adopted[0], world->nodes[0].incarnation);
    return world;
}

static void test_one_message(void **state)
{
    struct world *world = world_new(&(struct world_config){.seed = 1});

    (void)state;
    world_start(world, 0, 2);
    assert_false(world_send(world, 0, 1, LINK_CONTROL, 10)); /* no peer is there yet */
    world_run(world, 5 * SECOND_US);
    assert_int_equal(links_incarnation(world->nodes[0].links, 1), 0);
    assert_int_equal(world->nodes[0].ups + world->nodes[0].downs, 0);
    world_start(world, 1, 2);
    world_run(world, 200000);
    assert_true(links_is_up(world->nodes[0].links, 1));
    assert_true(links_is_up(world->nodes[1].links, 0));
    assert_true(world_send(world, 0, 1, LINK_CONTROL, 10));
    assert_true(world_send(world, 1, 0, LINK_BULK, 100000));
    assert_true(world_settle(world, SECOND_US));
    assert_int_equal(world->nodes[0].ups, 1);
    world_free(world);
}

static void test_refuses(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 2});
    struct links *links = world->nodes[0].links;
    struct link_stats stats;
    const uint8_t rubbish[200] = {1, 2, 3};

    (void)state;
    assert_int_equal(links_add_peer(links, 0, 0), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(links_add_peer(links, 1, 0), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(links_add_peer(links, UINT16_MAX, 0), ADTOPK_ERR_ARGUMENT);
    assert_false(world_send(world, 0, 2, LINK_CONTROL, 1));    /* not a peer */
    assert_false(world_send(world, 0, 1, LINK_CONTROL, 2001)); /* too long */
    assert_false(world_send(world, 0, 1, LINK_BULK, (1U << 20) + 1));
    assert_false(links_stats(links, 2, &stats));
    for (size_t size = 0; size <= sizeof(rubbish); size++) {
        links_receive(links, UINT16_MAX, LINK_CONTROL, rubbish, size, NULL, world->now);
        links_receive(links, 1, LINK_BULK, rubbish, size, NULL, world->now);
    }
    assert_int_equal(links_refused(links).packets, sizeof(rubbish) + 1);
    assert_int_equal(links_refused(links).strangers, 0);
    assert_int_equal(world_stats(world, 0, 1).malformed, sizeof(rubbish) + 1);
    assert_true(world_send(world, 0, 1, LINK_CONTROL, 2000));
    assert_true(world_settle(world, SECOND_US));
    world_free(world);
}

/* A whole packet that no peer can have sent to this node, or that is for another node. */
static void test_strangers(void **state)
{
    static const struct {
        uint16_t source, destination;
    } wrong[] = {{9, 0}, {0, 1}, {1, 7}};
    struct world *world = connected(&(struct world_config){.seed = 2});
    struct links *links = world->nodes[0].links;
    uint8_t bytes[PACKET_HEADER_SIZE];

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        const struct packet packet = {.type = PACKET_HELLO,
            .source = wrong[i].source,
            .destination = wrong[i].destination,
            .source_incarnation = 5};
        struct link_refused refused;

        packet_encode(&packet, bytes);
        links_receive(links, UINT16_MAX, LINK_CONTROL, bytes, sizeof(bytes), NULL, world->now);
        refused = links_refused(links);
        assert_int_equal(refused.packets, i + 1);
        assert_int_equal(refused.strangers, i + 1);
        assert_int_equal(refused.source, wrong[i].source);
        assert_int_equal(refused.destination, wrong[i].destination);
    }
    bytes[40] ^= 1; /* damaged on the way, so it shows nothing about configurations */
    links_receive(links, UINT16_MAX, LINK_CONTROL, bytes, sizeof(bytes), NULL, world->now);
    assert_int_equal(links_refused(links).packets, 4);
    assert_int_equal(links_refused(links).strangers, 3);
    world_free(world);
}

/* A perfect network with a known delay: nothing is sent twice, and the round trip is measured. */
static void test_round_trip(void **state)
{
    struct world *world =
        connected(&(struct world_config){.seed = 3, .delay_min_us = 5000, .delay_max_us = 5000});
    struct link_stats stats;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_true(world_send(world, 0, 1, i % 2 == 0 ? LINK_CONTROL : LINK_BULK, 1000));
        assert_true(world_settle(world, SECOND_US));
    }
    stats = world_stats(world, 0, 1);
    assert_int_equal(stats.resent, 0);
    assert_int_equal(stats.dropped + stats.stale + stats.malformed + stats.duplicates, 0);
    assert_in_range(stats.round_trip_us, 10000, 11000); /* an ACK may wait for 1 ms */
    world_free(world);
}

/* Without messages only heartbeats wake the two sides. */
static void test_idle_sleeps(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 5});
    unsigned before = world->nodes[0].ticks;

    (void)state;
    world_run(world, 10 * SECOND_US); /* heartbeat: 100 ms */
    assert_in_range(world->nodes[0].ticks - before, 95, 105);
    assert_int_equal(world->nodes[0].downs + world->nodes[1].downs, 0);
    world_free(world);
}

static void test_silence(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 6});
    uint64_t cut_at = world->now;

    (void)state;
    assert_true(world_send(world, 0, 1, LINK_BULK, 50000));
    world_run(world, 150);
    world->cut[0][1] = world->cut[1][0] = true;
    world_run(world, 5 * SECOND_US);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(world->nodes[i].downs, 1);
        assert_in_range(world->nodes[i].last_change_us - cut_at, 900000, 1001000);
    }
    assert_true(world_send(world, 0, 1, LINK_CONTROL, 7)); /* waits for its return */
    world->cut[0][1] = world->cut[1][0] = false;
    assert_true(world_settle(world, 300000));
    for (int i = 0; i < 2; i++) {
        assert_true(links_is_up(world->nodes[i].links, (uint16_t)(1 - i)));
        assert_int_equal(world->nodes[i].ups, 2);
    }
    world_free(world);
}

static void test_restart(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 7});

    (void)state;
    for (int i = 0; i < 20; i++) {
        assert_true(world_send(world, 0, 1, LINK_BULK, 100000));
        world_run(world, 500);
        world_start(world, 1, 2); /* in the middle of the message */
        world_run(world, SECOND_US);
        assert_int_equal(world->nodes[0].adopted[1], world->nodes[1].incarnation);
        assert_int_equal(world_stats(world, 0, 1).queued_bytes, 0);
        assert_true(world_send(world, 0, 1, LINK_CONTROL, 3));
        assert_true(world_send(world, 1, 0, LINK_CONTROL, 3));
        assert_true(world_settle(world, SECOND_US));
    }
    assert_int_equal(world->nodes[0].downs, 0); /* a quick restart does not count as silence */
    world_free(world);
}

/* All packets of old connections come again: at rest, and while a new connection is greeted. */
static void test_replay(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 8});
    unsigned ups[2];

    (void)state;
    for (int life = 0; life < 4; life++) {
        assert_true(world_send(world, 0, 1, LINK_BULK, 20000));
        assert_true(world_send(world, 1, 0, LINK_CONTROL, 0));
        assert_true(world_settle(world, SECOND_US));
        world_start(world, (uint16_t)(life % 2), 2);
        for (size_t i = 0; i < world->recorded; i++) {
            world_replay(world, i);
            world_run(world, 50);
        }
        world_run(world, SECOND_US);
        assert_int_equal(world->nodes[0].adopted[1], world->nodes[1].incarnation);
        assert_int_equal(world->nodes[1].adopted[0], world->nodes[0].incarnation);
    }
    assert_true(world->recorded < WORLD_HISTORY); /* so the history has every packet */
    for (int i = 0; i < 2; i++) {
        ups[i] = world->nodes[i].ups;
    }
    for (size_t i = 0; i < world->recorded; i++) {
        world_replay(world, i);
    }
    world_run(world, SECOND_US);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(world->nodes[i].ups, ups[i]);
        assert_true(links_is_up(world->nodes[i].links, (uint16_t)(1 - i)));
    }
    assert_true(world_stats(world, 0, 1).stale > 0);
    assert_true(world_send(world, 0, 1, LINK_BULK, 20000));
    assert_true(world_settle(world, SECOND_US));
    world_free(world);
}

/* Old packets cannot keep a dead peer alive once another incarnation has taken its place. */
static void test_replay_is_no_sign_of_life(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 9});
    size_t old = world->recorded;

    (void)state;
    world_start(world, 1, 2);
    world_run(world, SECOND_US);
    world->cut[0][1] = true; /* 1 cannot answer, but its old packets still arrive */
    links_destroy(world->nodes[1].links);
    world->nodes[1].links = NULL;
    for (int i = 0; i < 40; i++) {
        world_replay(world, (size_t)i % old);
        world_run(world, 50000);
    }
    assert_false(links_is_up(world->nodes[0].links, 1));
    assert_int_equal(world->nodes[0].downs, 1);
    world_free(world);
}

static void test_windows_and_chunks(void **state)
{
    const size_t sizes[] = {1, 2, 3, 7, 100, 4096};

    (void)state;
    for (size_t c = 0; c < 6; c++) {
        for (size_t w = 0; w < 6; w++) {
            struct world *world = world_new(&(struct world_config){.seed = 10,
                .part_size = sizes[c],
                .window = sizes[w] < 2 ? 2 : sizes[w],
                .delay_min_us = 10});

            world_start(world, 0, 2);
            world_start(world, 1, 2);
            world_run(world, SECOND_US);
            for (uint32_t size = 0; size < 20; size++) {
                assert_true(world_send(world, 0, 1, LINK_BULK, size));
                assert_true(world_send(world, 1, 0, LINK_BULK, 10 * size));
            }
            assert_true(world_settle(world, 10 * SECOND_US));
            assert_int_equal(world_stats(world, 0, 1).resent, 0);
            world_free(world);
        }
    }
}

/* A window of 16 chunks and a round trip of 20 ms. Sending 1 MB in 1,000-byte chunks takes about 63
 * round trips and no more, because acknowledgements keep the pipe full. */
static void test_keeps_the_pipe_full(void **state)
{
    struct world *world =
        connected(&(struct world_config){.seed = 11, .delay_min_us = 10000, .delay_max_us = 10000});
    uint64_t start = world->now;

    (void)state;
    assert_true(world_send(world, 0, 1, LINK_BULK, 1000000));
    assert_true(world_settle(world, 10 * SECOND_US));
    assert_true(world->now - start < 70 * 20000);
    assert_true(world_stats(world, 1, 0).packets_sent < 400); /* not one per chunk */
    world_free(world);
}

/* A message every 2 ms for a second. Each acknowledgement costs both ends a wake-up, so one answers
 * some messages together, yet far sooner than the sender would doubt that they arrived. */
static void test_few_acknowledgements(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 15, .resend_us = SECOND_US / 5});
    const uint64_t before = world_stats(world, 1, 0).packets_sent;

    (void)state;
    for (unsigned i = 0; i < 500; i++) {
        assert_true(world_send(world, 0, 1, LINK_BULK, 100));
        world_run(world, 2000);
    }
    assert_in_range(world_stats(world, 1, 0).packets_sent - before, 40, 60);
    assert_int_equal(world_stats(world, 0, 1).resent, 0);
    world_run(world, 25000);
    assert_int_equal(world_stats(world, 0, 1).queued_bytes, 0);
    world_free(world);
}

/* Whole messages that fill the sender's window are acknowledged soon: it waits for that. */
static void test_small_windows(void **state)
{
    const struct world_config configs[] = {
        {.seed = 16, .part_size = 64000, .window = 64000, .resend_us = SECOND_US / 5},
        {.seed = 16,
            .part_size = 64000,
            .window = 8000000,
            .first_window = 64000,
            .resend_us = SECOND_US / 5}};

    (void)state;
    for (unsigned c = 0; c < 2; c++) {
        struct world *world = connected(&configs[c]);
        const uint64_t start = world->now;

        for (unsigned i = 0; i < 100; i++) {
            assert_true(world_send(world, 0, 1, LINK_BULK, i % 2 == 0 ? 10000 : 60000));
        }
        assert_true(world_settle(world, 10 * SECOND_US));
        assert_true(world->now - start < 100 * 2000);
        world_free(world);
    }
}

static void test_control_overtakes_bulk(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 12});

    (void)state;
    world->nodes[0].bulk_blocked = true;
    assert_true(world_send(world, 0, 1, LINK_BULK, 1 << 20));
    assert_true(world_send(world, 0, 1, LINK_CONTROL, 100));
    world_run(world, 50000);
    assert_int_equal(world_stats(world, 0, 1).queued_bytes, 1 << 20);
    world->nodes[0].bulk_blocked = false;
    world_run(world, 10000); /* the longest time until it is offered again */
    assert_true(world->nodes[0].packets[1] > 0);
    assert_true(world_settle(world, 10 * SECOND_US));
    world_free(world);
}

static void test_peers_take_turns(void **state)
{
    struct world *world =
        world_new(&(struct world_config){.seed = 13, .part_size = 100, .window = 10000});
    uint64_t sent[2];

    (void)state;
    for (uint16_t id = 0; id < 3; id++) {
        world_start(world, id, 3);
    }
    world_run(world, SECOND_US);
    for (uint16_t peer = 1; peer < 3; peer++) {
        assert_true(world_send(world, 0, peer, LINK_BULK, 1 << 20));
    }
    while (world_stats(world, 0, 1).queued_bytes > 0) {
        sent[0] = world->nodes[0].packets[1];
        sent[1] = world->nodes[0].packets[2];
        assert_in_range(sent[1] + 100 - sent[0], 0, 200); /* within one window of each other */
        world_run(world, 100);
    }
    assert_true(world_settle(world, SECOND_US));
    world_free(world);
}

static void test_no_memory(void **state)
{
    struct lane_in in = {0};
    struct buffer *message;
    const uint8_t byte = 7;
    struct packet packet = {.type = PACKET_DATA,
        .lane = LINK_BULK,
        .message_size = UINT64_C(1) << 62,
        .body = &byte,
        .body_size = 1};

    (void)state;
    assert_int_equal(lane_in_take(&in, &packet, UINT64_MAX, &message), LANE_NO_MEMORY);
    assert_int_equal(in.position, 0); /* the sender tries again */
    assert_int_equal(lane_in_take(&in, &packet, 1000, &message), LANE_MALFORMED);
    packet.message_size = 1;
    assert_int_equal(lane_in_take(&in, &packet, 1000, &message), LANE_TAKEN);
    assert_int_equal(message->bytes[0], 7);
    buffer_unref(message);
    lane_in_reset(&in);
}

/* A lane takes parts that continue its stream, however the sender cut it. */
static void test_parts(void **state)
{
    struct lane_in in = {0};
    struct buffer *message;
    const uint8_t bytes[] = "01234567";
    struct packet packet = {.message_size = 8, .body = bytes, .body_size = 3};

    (void)state;
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_TAKEN);
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_DUPLICATE);
    packet.position = packet.offset = 4;
    packet.body = bytes + 4;
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_GAP);
    packet.position = packet.offset = 1;
    packet.body = bytes + 1;
    packet.body_size = 5; /* half of it is new */
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_TAKEN);
    assert_int_equal(in.position, 6);
    packet.position = 6;
    packet.offset = 5; /* the message does not continue here */
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_MALFORMED);
    packet.offset = 6;
    packet.body = bytes + 6;
    packet.body_size = 1;
    packet.message_size = 7; /* another length than before */
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_MALFORMED);
    packet.message_size = 8;
    packet.body_size = 2;
    assert_int_equal(lane_in_take(&in, &packet, 8, &message), LANE_TAKEN);
    assert_non_null(message);
    assert_memory_equal(message->bytes, bytes, 8);
    assert_int_equal(in.position, 9);
    buffer_unref(message);
    lane_in_reset(&in);
}

static void chaos_step(struct world *world, unsigned nodes, size_t unit)
{
    for (uint64_t burst = world_random(world, 6); burst > 0; burst--) {
        uint16_t from = (uint16_t)world_random(world, nodes);
        uint16_t to = (uint16_t)world_random(world, nodes);
        enum link_lane lane = (enum link_lane)world_random(world, LINK_LANES);
        uint32_t longest = lane == LINK_CONTROL ? 2000 : minimum(60 * unit, 1 << 20);

        uint32_t size = (uint32_t)world_random(world, world_random(world, longest) + 1);

        if (world->nodes[from].links != NULL && from != to && lane == LINK_BULK &&
            size >= WORLD_CLASSED_MIN) {
            const struct share_class class = {.job = world_random(world, 4),
                .weight = (uint32_t)world_random(world, SHARE_WEIGHT_MAX + 1),
                .place = world_random(world, 12)};

            (void)world_send_as(world, from, to, &class, size);
        } else if (world->nodes[from].links != NULL && from != to) {
            (void)world_send(world, from, to, lane, size);
        }
    }
    if (world_random(world, 20) == 0) {
        world_start(world, (uint16_t)world_random(world, nodes), nodes);
    }
    if (world_random(world, 15) == 0) {
        bool *cut = &world->cut[world_random(world, nodes)][world_random(world, nodes)];

        *cut = !*cut;
    }
    world_run(world, world_random(world, world_random(world, 10) == 0 ? 2 * SECOND_US : 60000));
}

static bool all_adopted(const struct world *world, unsigned nodes)
{
    for (uint16_t id = 0; id < nodes; id++) {
        for (uint16_t peer = 0; peer < nodes; peer++) {
            if (id != peer && world->nodes[id].adopted[peer] != world->nodes[peer].incarnation) {
                return false;
            }
        }
    }
    return true;
}

/* Returns the number of bulk packets in slots other than the first. */
static uint64_t chaos(uint64_t seed)
{
    static const size_t chunks[] = {1, 7, 64, 1000, 65536, 1 << 20};
    const uint64_t level = seed % 3; /* a third of the networks are only slow */
    const size_t chunk = chunks[seed % 6];
    const size_t windows[] = {2, chunk + 1, 3 * chunk, 64 * chunk};
    const unsigned nodes = seed % 4 == 0 ? 3 : 2;
    uint64_t spread = 0;
    struct world *world = world_new(&(struct world_config){.seed = seed,
        .loss = level == 2 ? 300 : 40 * level,
        .duplicate = 50 * level,
        .corrupt = 50 * level,
        .replay = 50 * level,
        .refuse = 100 * level,
        .delay_max_us = 100 + 5000 * (seed % 5),
        .part_size = chunk,
        .window = windows[(seed / 6) % 4]});

    for (uint16_t id = 0; id < nodes; id++) {
        world->nodes[id].echo = seed % 2 == 0;
        world_start(world, id, nodes);
        world_run(world, world_random(world, 300000));
    }
    for (int round = 0; round < CHAOS_ROUNDS; round++) {
        chaos_step(world, nodes, minimum(chunk, world->config.window));
    }
    memset(world->cut, 0, sizeof(world->cut));
    world->config.refuse = world->config.replay = 0;
    for (int seconds = 0; !all_adopted(world, nodes); seconds++) {
        assert_true(seconds < 60); /* HELLOs come every second, and may be lost */
        world_run(world, SECOND_US);
    }
    if (!world_settle(world, 1000 * (uint64_t)SECOND_US)) {
        fail_msg("seed %u: not everything was delivered", (unsigned)seed);
    }
    assert_true(all_adopted(world, nodes));
    for (uint16_t id = 0; id < nodes && world->config.corrupt == 0; id++) {
        uint16_t peer = (uint16_t)((id + 1) % nodes);

        assert_int_equal(world_stats(world, id, peer).malformed, 0);
    }
    for (uint16_t id = 0; id < nodes; id++) {
        spread += world->nodes[id].spread;
    }
    world_free(world);
    return spread;
}

static void test_chaos(void **state)
{
    uint64_t spread = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= CHAOS_SEEDS; seed++) {
        spread += chaos(seed);
    }
    assert_true(spread > 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_idle_sleeps),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_replay_is_no_sign_of_life),
        cmocka_unit_test(test_windows_and_chunks),
        cmocka_unit_test(test_keeps_the_pipe_full),
        cmocka_unit_test(test_few_acknowledgements),
        cmocka_unit_test(test_small_windows),
        cmocka_unit_test(test_control_overtakes_bulk),
        cmocka_unit_test(test_peers_take_turns),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_chaos),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
