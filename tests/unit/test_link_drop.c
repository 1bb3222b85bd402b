/* When a job ends, links drop its queued messages. Both ends keep the same counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/lane.h"
#include "tests/unit/link_world.h"

#define SECOND_US 1000000u
#define CHUNK 1000u
#define SEEDS 100

static struct world *connected(const struct world_config *config)
{
    struct world *world = world_new(config);

    for (uint16_t id = 0; id < WORLD_NODES; id++) {
        world_start(world, id, WORLD_NODES);
    }
    world_run(world, SECOND_US);
    return world;
}

/* No message of the job has begun, so none is sent. */
static void test_before_it_begins(void **state)
{
    const struct share_class job = {.job = 1}, other = {.job = 2};
    struct world *world = connected(&(struct world_config){.seed = 1});

    (void)state;
    assert_true(world_send_as(world, 0, 1, &job, 100 * CHUNK));
    assert_true(world_send_as(world, 0, 2, &job, 100 * CHUNK));
    world_drop(world, 0, 1);
    assert_int_equal(world_stats(world, 0, 1).queued_bytes, 0);
    assert_int_equal(world_stats(world, 0, 2).queued_bytes, 0);
    world_run(world, SECOND_US);
    assert_int_equal(world->nodes[0].packets[1] + world->nodes[0].packets[2], 0);
    world_drop(world, 0, 1); /* nothing is left to drop */
    world_drop(world, 0, 7);
    assert_true(world_send_as(world, 0, 1, &other, 12));
    assert_true(world_send_as(world, 0, 1, &job, 12)); /* another run of the same job */
    assert_true(world_settle(world, SECOND_US));
    assert_int_equal(world_delivered(world, 0, 1, &other), 12);
    world_free(world);
}

/* A large message on a slow link: its rest is not sent, and the next message does not wait for it.
 */
static void test_in_the_middle(void **state)
{
    const struct share_class job = {.job = 1};
    struct world *world = connected(&(struct world_config){
        .seed = 2, .rate = 100000, .timeout_us = 20 * SECOND_US, .window = 4 * CHUNK});
    uint64_t before;

    (void)state;
    assert_true(world_send_as(world, 0, 1, &job, 1000 * CHUNK)); /* 10 s of the link */
    assert_true(world_send(world, 0, 1, LINK_BULK, 3));          /* of no job */
    world_run(world, SECOND_US);
    before = world->nodes[0].packets[1];
    assert_in_range(before, 50, 200);
    world_drop(world, 0, 1);
    assert_true(world_send_as(world, 0, 1, &job, 500));
    assert_true(world_settle(world, SECOND_US / 2));
    assert_in_range(world->nodes[0].packets[1] - before, 1, 10);
    assert_int_equal(world_stats(world, 1, 0).malformed, 0);
    world_free(world);
}

/* A message that was sent whole is in flight. It arrives although its packets were lost once. */
static void test_sent_whole(void **state)
{
    const struct share_class job = {.job = 1};
    struct world *world = connected(&(struct world_config){.seed = 3});

    (void)state;
    world->cut[0][1] = true;
    assert_true(world_send_as(world, 0, 1, &job, 3 * CHUNK));
    world_run(world, 5000);
    links_drop_job(world->nodes[0].links, 1);
    world->cut[0][1] = false;
    assert_true(world_settle(world, SECOND_US));
    assert_int_equal(world_delivered(world, 0, 1, &job), 3 * CHUNK);
    world_free(world);
}

/* Jobs end at any time, whatever the network does. Other messages arrive exactly once. */
static void chaos(uint64_t seed)
{
    struct world *world = connected(&(struct world_config){.seed = seed,
        .loss = seed % 4 * 30,
        .duplicate = 20,
        .corrupt = 10,
        .replay = 10,
        .refuse = seed % 3 * 100,
        .delay_max_us = seed % 5 == 0 ? 1000 : 0,
        .rate = seed % 2 * 1000000,
        .window = (2 + seed % 15) * CHUNK});

    for (int turn = 0; turn < 200; turn++) {
        const struct share_class class = {
            .job = world_random(world, 4), .place = world_random(world, 3)};
        uint16_t from = (uint16_t)world_random(world, WORLD_NODES);

        (void)world_send_as(world, from, (uint16_t)((from + 1) % WORLD_NODES), &class,
            (uint32_t)(WORLD_CLASSED_MIN + world_random(world, 6 * CHUNK)));
        if (world_random(world, 10) == 0) {
            world_drop(world, from, 1 + world_random(world, 3));
        }
        if (world_random(world, 200) == 0) {
            world_start(world, from, WORLD_NODES);
        }
        world_run(world, world_random(world, 20000));
    }
    assert_true(world_settle(world, 100 * SECOND_US));
    world_free(world);
}

static void test_chaos(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        chaos(seed);
    }
}

/* A receiver takes an early end only at the position where the sender left the message. */
static void test_receiver(void **state)
{
    struct lane_in in = {0};
    struct buffer *message;
    const uint8_t bytes[] = "0123";
    struct packet part = {.message_size = 8, .body = bytes, .body_size = 4};
    struct packet end = {.position = 4, .offset = 3, .message_size = 3};

    (void)state;
    assert_int_equal(lane_in_take(&in, &part, 8, &message), LANE_TAKEN);
    assert_int_equal(lane_in_take(&in, &end, 8, &message), LANE_MALFORMED);
    end.offset = end.message_size = 4;
    end.slot = 1; /* no message began there */
    assert_int_equal(lane_in_take(&in, &end, 8, &message), LANE_MALFORMED);
    end.slot = 0;
    assert_int_equal(lane_in_take(&in, &end, 8, &message), LANE_TAKEN);
    assert_null(message);
    assert_int_equal(lane_in_take(&in, &end, 8, &message), LANE_DUPLICATE);
    assert_int_equal(in.position, 5);
    assert_int_equal(in.bytes, 0);
    part.position = 5;
    assert_int_equal(lane_in_take(&in, &part, 8, &message), LANE_TAKEN);
    lane_in_reset(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_it_begins),
        cmocka_unit_test(test_in_the_middle),
        cmocka_unit_test(test_sent_whole),
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_receiver),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
