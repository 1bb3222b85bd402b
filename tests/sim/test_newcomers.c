/*
 * Nodes that want to join a job while it trains, and what becomes of those that wait: they are
 * refused with a reason, or they are taken in, whatever happens to the others meanwhile.
 */
#include <string.h>

#include "tests/sim/growing.h"

static const struct trainer *refused_one;

static bool is_refused(const struct world *world)
{
    (void)world;
    return refused_one->state == TRAINER_FAILED;
}

/* Its rank has come, and is told why the job does not take it. The others take all of their steps.
 */
static void expect_refusal(
    struct world *world, struct trainer *trainer, enum adtopk_status status, const char *sentence)
{
    refused_one = trainer;
    assert_true(world_until(world, is_refused));
    expect_rank(trainer, status, sentence, "");
    trainer->lost = true;
    grow_release(world);
    expect_rest(world, sentence);
    world_destroy(world);
}

/* A node of four is lost, and all others wait for it before their last steps. */
static struct world *without_node(unsigned node, bool later)
{
    struct scenario scenario = growing_scenario(MEAN, 4, 1, 15);
    struct world *world;

    scenario.later = later;
    world = world_create(&scenario);
    world->job[0].may_fail = world->job[0].bent = true;
    assert_true(world_until(world, grow_in_step_four));
    grow_hold_others(world, node, STEPS - 1);
    lose_node(world, node);
    assert_true(world_until(world, grow_is_smaller));
    return world;
}

static void test_refusals(void **state)
{
    struct world *world = without_node(2, false);

    (void)state;
    world->trainer[2].says_rank = 1;
    grow_come_back(world, 2);
    expect_refusal(world, &world->trainer[2], ADTOPK_ERR_MISMATCH,
        "rank 1 of job 'job' trains on another node than 2");

    world = without_node(2, true);
    grow_come_back(world, 2);
    expect_refusal(world, &world->trainer[2], ADTOPK_ERR_STATE, "committed more tensors");
}

static bool is_four(const struct world *world)
{
    return grow_nodes(world) == 4;
}

/* Nodes 3 and 4 are lost. Node 3 comes back, and the others wait for node 4 before they take it. */
static struct world *one_waits(void)
{
    struct world *world = growing_world(MEAN, 5, 1, 15);

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, 3, STEPS - 2);
    lose_node(world, 3);
    lose_node(world, 4);
    world->trainer[4].hold = HOLD_NEVER;
    assert_true(world_until(world, grow_is_three));
    grow_come_back(world, 3);
    until_us = world->now_us + 300000;
    assert_true(world_until(world, waited));
    return world;
}

/* Node 4 comes back with rank 3, too. The first that came is taken. */
static void test_rank_of_two_newcomers(void **state)
{
    struct world *world = one_waits();

    (void)state;
    world->trainer[4].says_rank = 3;
    grow_come_back(world, 4);
    assert_true(world_until(world, is_four));
    expect_refusal(
        world, &world->trainer[4], ADTOPK_ERR_MISMATCH, "rank 3 of job 'job' trains on another");
}

/* Node 4 comes back with another tensor. It is told so, and node 3 waits on until all the others
 * have taken it. */
static void test_other_tensors_beside(void **state)
{
    struct world *world = one_waits();
    struct trainer *stranger = &world->trainer[4];

    (void)state;
    (void)strcpy(stranger->tensor[0].name, "another");
    grow_come_back(world, 4);
    assert_true(world_until(world, is_four));
    expect_refusal(world, stranger, ADTOPK_ERR_MISMATCH, "tensor 0");
}

/* The daemon of a node that trains restarts, and node 4 comes only then. Both are taken. */
static void waits_over_restart(unsigned restarted)
{
    struct world *world = one_waits();

    node_crash(world, restarted);
    world_at(world, 1000, (struct sim_event){.type = SIM_RESTART, .node = restarted});
    until_us = world->now_us + 2000000;
    assert_true(world_until(world, waited));
    grow_come_back(world, 4);
    assert_true(world_until(world, grow_has_joined));
    grow_release(world);
    expect_rest(world, "waits over a restart");
    world_destroy(world);
}

static void test_waits_over_restart(void **state)
{
    (void)state;
    for (unsigned node = 0; node < 3; node++) {
        waits_over_restart(node);
    }
}

/* Meanwhile the ranks of the others leave. */
static void test_ends_before_it_joins(void **state)
{
    struct world *world = one_waits();

    (void)state;
    world->trainer[3].lost = true;
    grow_release(world);
    expect_rest(world, "ends");
    expect_rank(&world->trainer[3], ADTOPK_ERR_PEER, "ended before it took node 3 in", "");
    world_destroy(world);
}

/* The job begins on three nodes. */
static void test_one_node_too_many(void **state)
{
    struct world *world = growing_world(MEAN, 4, 1, 15);

    (void)state;
    world->job[0].trainers = 3;
    for (unsigned i = 0; i < 4; i++) {
        world->trainer[i].says_world_size = 3;
    }
    world->trainer[3].says_rank = 2;
    grow_hold_others(world, 3, STEPS - 2);
    world->trainer[3].hold = HOLD_OUT;
    assert_true(world_until(world, later));
    let_go(&world->trainer[3]);
    expect_refusal(world, &world->trainer[3], ADTOPK_ERR_STATE, "has memory for no more");
}

const struct CMUnitTest suite_newcomers[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_rank_of_two_newcomers),
    cmocka_unit_test(test_other_tensors_beside),
    cmocka_unit_test(test_waits_over_restart),
    cmocka_unit_test(test_ends_before_it_joins),
    cmocka_unit_test(test_one_node_too_many),
    {0},
};
