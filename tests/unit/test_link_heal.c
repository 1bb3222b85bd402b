/* Links heal: they soon reopen a connection that no longer delivers, and leave a slow one alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/link_world.h"

#define SECOND_US 1000000u
#define REOPEN_US 300000u /* three heartbeats, as in the daemon */

static struct world *connected(const struct world_config *config)
{
    struct world_config with_reopen = *config;
    struct world *world;

    with_reopen.reopen_us = REOPEN_US;
    world = world_new(&with_reopen);
    for (uint16_t id = 0; id < WORLD_NODES; id++) {
        world_start(world, id, WORLD_NODES);
    }
    world_run(world, SECOND_US);
    for (uint16_t id = 0; id < WORLD_NODES; id++) {
        assert_int_equal(world->nodes[id].reopened[LINK_CONTROL], 0);
        assert_int_equal(world->nodes[id].reopened[LINK_BULK], 0);
    }
    return world;
}

static unsigned downs(const struct world *world)
{
    return world->nodes[0].downs + world->nodes[1].downs + world->nodes[2].downs;
}

/* A lane takes everything and delivers nothing, and a message waits. */
static void test_message_waits(void **state)
{
    (void)state;
    for (int i = 0; i < LINK_LANES; i++) {
        enum link_lane lane = (enum link_lane)i;
        struct world *world = connected(&(struct world_config){.seed = 1});

        world->dead[0][1][lane] = true;
        assert_true(world_send(world, 0, 1, lane, 1500));
        assert_true(world_settle(world, 2 * REOPEN_US));
        assert_int_equal(world->nodes[0].reopened[lane], 1);
        assert_int_equal(world->nodes[0].reopened[1 - i], 0); /* the other lane is well */
        assert_int_equal(downs(world), 0);
        world_free(world);
    }
}

/* The same repeatedly, with a message each time. It takes as long each time as the first time. */
static void test_again(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 2});

    (void)state;
    for (int i = 0; i < 10; i++) {
        world->dead[0][1][LINK_BULK] = true;
        assert_true(world_send(world, 0, 1, LINK_BULK, 100));
        assert_true(world_settle(world, 2 * REOPEN_US));
    }
    assert_int_equal(world->nodes[0].reopened[LINK_BULK], 10);
    world_free(world);
}

/* No message waits. The peer hears nothing and says so, but never goes so far as to report this
 * node as down. */
static void test_only_heartbeats(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 3});

    (void)state;
    world->dead[0][1][LINK_CONTROL] = true;
    world_run(world, 2 * SECOND_US);
    assert_false(world->dead[0][1][LINK_CONTROL]);
    assert_int_equal(world->nodes[0].reopened[LINK_CONTROL], 1);
    assert_int_equal(world->nodes[1].reopened[LINK_CONTROL], 0);
    assert_int_equal(downs(world), 0);
    world_free(world);
}

/* Both directions of both lanes. */
static void test_everything_dead(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 4});

    (void)state;
    for (int lane = 0; lane < LINK_LANES; lane++) {
        world->dead[0][1][lane] = world->dead[1][0][lane] = true;
    }
    assert_true(world_send(world, 0, 1, LINK_BULK, 5000));
    assert_true(world_send(world, 1, 0, LINK_CONTROL, 50));
    assert_true(world_settle(world, SECOND_US + 4 * REOPEN_US));
    world_free(world);
}

/* The network is away for 9 s, and TCP waits much longer until it tries again. Connections that
 * were opened before do not come back by themselves. */
static void test_after_a_partition(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 5});
    struct link_stats stats;

    (void)state;
    assert_true(world_send(world, 0, 1, LINK_BULK, 5000));
    for (int lane = 0; lane < LINK_LANES; lane++) {
        world->dead[0][1][lane] = world->dead[1][0][lane] = true;
    }
    world->cut[0][1] = world->cut[1][0] = true;
    world_run(world, 9 * SECOND_US);
    assert_true(world->nodes[0].reopened[LINK_BULK] >= 9 * SECOND_US / (2 * REOPEN_US) - 2);
    assert_true(links_stats(world->nodes[0].links, 1, &stats));
    assert_in_range(stats.reopened, 1, 4); /* until it counted as down */
    world->cut[0][1] = world->cut[1][0] = false;
    assert_true(world_settle(world, 3 * REOPEN_US));
    world_free(world);
}

/* The node was never there, so TCP may have given up its first connection for good. */
static void test_before_the_first_word(void **state)
{
    struct world *world = world_new(&(struct world_config){.seed = 6, .reopen_us = REOPEN_US});

    (void)state;
    world_start(world, 0, 2);
    world->dead[0][1][LINK_CONTROL] = world->dead[0][1][LINK_BULK] = true;
    world->cut[0][1] = true;
    world_run(world, 5 * SECOND_US);
    world->cut[0][1] = false;
    world_start(world, 1, 2);
    world_run(world, SECOND_US + 2 * REOPEN_US); /* HELLOs are a second apart */
    assert_true(links_is_up(world->nodes[0].links, 1));
    assert_true(links_is_up(world->nodes[1].links, 0));
    world_free(world);
}

/* A link that is busy for long, slow, or long is left alone. */
static void test_slow_is_not_dead(void **state)
{
    const struct world_config slow[] = {
        {.seed = 7, .rate = 100000, .timeout_us = 5 * SECOND_US},
        {.seed = 8, .delay_min_us = 100000, .delay_max_us = 100000},
        {.seed = 9, .rate = 20000, .part_size = 500, .window = 100000, .timeout_us = 5 * SECOND_US},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        struct world *world = connected(&slow[i]);

        assert_true(world_send(world, 0, 1, LINK_BULK, 200000));
        assert_true(world_settle(world, 60 * SECOND_US));
        assert_int_equal(world->nodes[0].reopened[LINK_BULK], 0);
        assert_int_equal(world->nodes[0].reopened[LINK_CONTROL], 0);
        world_free(world);
    }
}

/* One part alone takes ten times as long as a lane may wait at first. It gets the time it needs. */
static void test_a_part_that_takes_long(void **state)
{
    struct world *world = connected(&(struct world_config){
        .seed = 10, .rate = 10000, .part_size = 30000, .timeout_us = 20 * SECOND_US});

    (void)state;
    assert_true(world_send(world, 0, 1, LINK_BULK, 30000));
    assert_true(world_settle(world, 60 * SECOND_US));
    assert_in_range(world->nodes[0].reopened[LINK_BULK], 1, 4);
    world_free(world);
}

/* A process that was stopped for 20 s reads its peers' messages before it blames a peer. */
static void test_stopped_process(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 11});
    struct world_node *node = &world->nodes[0];

    (void)state;
    node->paused = true;
    world_run(world, 20 * SECOND_US);
    assert_int_equal(node->downs, 0);
    assert_int_equal(world->nodes[1].downs + world->nodes[2].downs, 2);
    node->paused = false;
    links_tick(node->links, world->now); /* before any packet is read */
    assert_true(links_is_up(node->links, 1));
    assert_true(world_send(world, 0, 1, LINK_CONTROL, 10));
    assert_true(world_settle(world, SECOND_US));
    assert_int_equal(node->downs, 0);
    world_free(world);
}

/* A peer that stops while this node is stopped is detected one timeout later. */
static void test_peer_that_died_meanwhile(void **state)
{
    struct world *world = connected(&(struct world_config){.seed = 12});
    struct world_node *node = &world->nodes[0];

    (void)state;
    node->paused = true;
    world->cut[1][0] = true;
    world_run(world, 20 * SECOND_US);
    node->paused = false;
    links_tick(node->links, world->now);
    world_run(world, SECOND_US + 100);
    assert_false(links_is_up(node->links, 1));
    assert_true(links_is_up(node->links, 2));
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_waits),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_only_heartbeats),
        cmocka_unit_test(test_everything_dead),
        cmocka_unit_test(test_after_a_partition),
        cmocka_unit_test(test_before_the_first_word),
        cmocka_unit_test(test_slow_is_not_dead),
        cmocka_unit_test(test_a_part_that_takes_long),
        cmocka_unit_test(test_stopped_process),
        cmocka_unit_test(test_peer_that_died_meanwhile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
