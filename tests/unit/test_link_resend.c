/* Links soon resend lost packets, and resend next to none that are only late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/link_world.h"

#define SECOND_US 1000000u

/* Two nodes that know each other. */
static struct world *connected(const struct world_config *config)
{
    struct world *world = world_new(config);

    world_start(world, 0, 2);
    world_start(world, 1, 2);
    world_run(world, SECOND_US);
    assert_true(links_is_up(world->nodes[0].links, 1));
    assert_true(links_is_up(world->nodes[1].links, 0));
    return world;
}

/* The round trip is longer than the first resend timeout. The link must learn it, or it would send
 * every message twice for ever. */
static void test_slow_round_trip(void **state)
{
    struct world *world = connected(&(struct world_config){
        .seed = 4, .delay_min_us = 100000, .delay_max_us = 100000, .resend_us = 20000});
    uint64_t before;

    (void)state;
    for (int i = 0; i < 10; i++) {
        assert_true(world_send(world, 0, 1, LINK_CONTROL, 10));
        assert_true(world_settle(world, SECOND_US));
    }
    before = world_stats(world, 0, 1).resent;
    assert_true(before > 0);
    for (int i = 0; i < 20; i++) {
        assert_true(world_send(world, 0, 1, LINK_CONTROL, 10));
        assert_true(world_settle(world, SECOND_US));
    }
    assert_int_equal(world_stats(world, 0, 1).resent, before);
    world_free(world);
}

/* A long queue: much is in flight when the timeout passes. The packet about which the link asks is
 * acknowledged first. */
static void test_late_is_not_lost(void **state)
{
    struct world *world =
        connected(&(struct world_config){.seed = 5, .rate = 20000, .timeout_us = 5 * SECOND_US});
    struct link_stats stats;

    (void)state;
    assert_true(world_send(world, 0, 1, LINK_BULK, 12000)); /* 12 parts, of 54 ms each */
    assert_true(world_settle(world, SECOND_US));
    stats = world_stats(world, 0, 1);
    assert_in_range(stats.resent, 1, 3);
    assert_int_equal(stats.resent_bytes, stats.resent * (PACKET_HEADER_SIZE + 1));
    world_free(world);
}

/* All packets in flight are lost, as when a connection breaks. The link resends them after one
 * timeout and a round trip, not after one timeout per part. */
static void test_lost_at_once(void **state)
{
    struct world *world =
        connected(&(struct world_config){.seed = 5, .delay_min_us = 1000, .resend_us = 20000});
    uint64_t start = world->now;
    struct link_stats stats;

    (void)state;
    world->cut[0][1] = true;
    assert_true(world_send(world, 0, 1, LINK_BULK, 12000));
    world_run(world, 10000);
    world->cut[0][1] = false;
    assert_true(world_settle(world, SECOND_US));
    assert_true(world->now - start < 100000);
    stats = world_stats(world, 0, 1);
    assert_in_range(stats.resent, 12, 16);
    assert_in_range(stats.resent_bytes, 12000, 14000);
    world_free(world);
}

/* The probes are lost too. The timeout doubles, and one of the probes gets through. */
static void test_lost_for_long(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 5, .resend_us = 20000});
    uint64_t start = world->now;
    struct link_stats stats;

    (void)state;
    world->cut[0][1] = true;
    assert_true(world_send(world, 0, 1, LINK_BULK, 12000));
    world_run(world, 300000);
    world->cut[0][1] = false;
    assert_true(world_settle(world, SECOND_US));
    assert_true(world->now - start < 700000);
    stats = world_stats(world, 0, 1);
    assert_in_range(stats.resent, 15, 20); /* 12 parts, and probes after 20, 60, 140, 300, 620 ms */
    assert_in_range(stats.resent_bytes, 12000, 14000);
    world_free(world);
}

static void stand_still(
    struct world *world, uint16_t from, uint16_t to, enum link_lane lane, uint64_t duration_us)
{
    uint64_t *free_at = &world->free_at[from][to][lane];

    *free_at = (*free_at > world->now ? *free_at : world->now) + duration_us;
}

/* Both sides send bursts that take much longer than the first timeout. There are standstills, as
 * TCP makes when it loses packets. Less than 1% is sent twice. */
static void test_slow_link(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world *world = connected(&(struct world_config){.seed = seed,
            .rate = 100000,
            .part_size = 4000,
            .window = 64000,
            .timeout_us = 5 * SECOND_US,
            .resend_us = 20000});

        for (unsigned turn = 0; turn < 30; turn++) {
            for (uint16_t from = 0; from < 2; from++) {
                uint16_t to = (uint16_t)(1 - from);
                enum link_lane stands = (enum link_lane)world_random(world, LINK_LANES);

                stand_still(world, from, to, stands, world_random(world, 500000));
                for (uint64_t left = world_random(world, 6); left > 0; left--) {
                    uint32_t size = (uint32_t)world_random(world, 30000);
                    assert_true(world_send(world, from, to, LINK_BULK, size));
                }
            }
            world_run(world, world_random(world, SECOND_US));
        }
        assert_true(world_settle(world, 60 * (uint64_t)SECOND_US));
        for (uint16_t from = 0; from < 2; from++) {
            struct link_stats stats = world_stats(world, from, (uint16_t)(1 - from));

            assert_true(stats.resent > 0);
            assert_in_range(stats.resent_bytes, 1, stats.bytes_sent / 100);
        }
        world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_round_trip),
        cmocka_unit_test(test_late_is_not_lost),
        cmocka_unit_test(test_lost_at_once),
        cmocka_unit_test(test_lost_for_long),
        cmocka_unit_test(test_slow_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
