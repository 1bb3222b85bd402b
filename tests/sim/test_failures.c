/*
 * Single failures of a job that forms or runs: ranks that are lost, leave or never push; nodes that
 * come back without their store, or not at all. Every rank of the job on every node gets an error
 * that names the culprit, nothing hangs, and another job is not disturbed.
 */
#include <string.h>

#include "tests/sim/failure.h"

/* Ranks that are lost, or leave */

static void lost_while(enum trainer_hold hold, uint64_t step, unsigned pushes)
{
    struct world *world = failure_world(POLICY);

    world->trainer[3].hold = hold;
    world->trainer[3].hold_step = step;
    world->trainer[3].hold_pushes = pushes;
    assert_true(world_until(world, hold == HOLD_STEP && step == 2 ? others_run : later));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static void test_lost_when_open(void **state)
{
    (void)state;
    lost_while(HOLD_OPEN, 0, 0);
}

static void test_lost_when_committed(void **state)
{
    (void)state;
    lost_while(HOLD_COMMITTED, 0, 0);
}

static void test_lost_when_ready(void **state)
{
    (void)state;
    lost_while(HOLD_STEP, 0, 0);
}

static void test_lost_in_mid_step(void **state)
{
    (void)state;
    lost_while(HOLD_STEP, 2, 3);
}

/* All local ranks are there, but not those of node 0. */
static void test_lost_when_mapped(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static bool node_computes(const struct world *world)
{
    return world->node[1].computing > 0 && world->trainer[3].state == TRAINER_RUNNING &&
           world->trainer[3].step >= 1;
}

static void test_lost_while_computing(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, node_computes));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static bool in_step_one(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 1 &&
           world->trainer[0].next_push > 0;
}

static bool view_changes(const struct world *world)
{
    struct job_info info;

    return check_find(world, 1, 0, &info) && info.view > 0 && strcmp(info.state, "prepared") == 0;
}

static void test_lost_in_a_view_change(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, in_step_one));
    node_crash(world, 0);
    node_start(world, 0);
    assert_true(world_until(world, view_changes));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

/* Rank 3 leaves; the others get an error that names it, or its node. */
static void expect_left(struct world *world, const char *culprit)
{
    expect_end(world);
    assert_int_equal(world->trainer[3].state, TRAINER_DONE);
    for (unsigned i = 0; i < 3; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_PEER, culprit, "left the job");
    }
    world_destroy(world);
}

static void test_leaves_in_mid_step(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].hold = HOLD_STEP;
    world->trainer[3].hold_step = 2;
    world->trainer[3].hold_pushes = 3;
    assert_true(world_until(world, others_run));
    leave(&world->trainer[3]);
    expect_left(world, "rank 3");
}

static void leaves_before(enum trainer_hold hold)
{
    struct world *world = failure_world(POLICY);

    world->trainer[3].hold = hold;
    assert_true(world_until(world, later));
    leave(&world->trainer[3]);
    expect_left(world, "rank 3");
}

static void test_leaves_before_it_began(void **state)
{
    (void)state;
    leaves_before(HOLD_OPEN);
    leaves_before(HOLD_COMMITTED);
}

/* A node's only rank leaves while another node's is not ready yet. */
static struct world *one_rank_a_node(void)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    scenario.ranks_per_node = 1;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    return world;
}

static void test_leaves_alone_when_open(void **state)
{
    struct world *world = one_rank_a_node();

    (void)state;
    world->trainer[1].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    leave(&world->trainer[1]);
    expect_end(world);
    expect_rank(&world->trainer[0], ADTOPK_ERR_TIMEOUT, "rank 1", "");
    assert_int_equal(world->trainer[1].state, TRAINER_DONE);
    world_destroy(world);
}

static void test_leaves_alone_when_mapped(void **state)
{
    struct world *world = one_rank_a_node();

    (void)state;
    world->trainer[0].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    leave(&world->trainer[1]);
    let_go(&world->trainer[0]);
    expect_end(world);
    expect_rank(&world->trainer[0],
        world->trainer[0].error.code == ADTOPK_ERR_PEER ? ADTOPK_ERR_PEER : ADTOPK_ERR_TIMEOUT,
        "rank 1", "");
    assert_int_equal(world->trainer[1].state, TRAINER_DONE);
    world_destroy(world);
}

static bool steps_wait(const struct world *world)
{
    return world->trainer[3].step == 2 && world->trainer[0].step == 2 && world->now_us > 200000;
}

/* Between two steps a rank may go; whoever begins another step is told. */
static void test_leaves_between_steps(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = 2;
    }
    assert_true(world_until(world, steps_wait));
    leave(&world->trainer[3]);
    leave(&world->trainer[2]);
    for (unsigned i = 0; i < 2; i++) {
        world->trainer[i].hold = HOLD_NEVER;
        world_wake(world, &world->trainer[i], 100000);
    }
    expect_end(world);
    for (unsigned i = 0; i < 2; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_PEER, "node 1", "left the job");
        assert_int_equal(world->trainer[2 + i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

/* Nodes */

static bool in_step_two(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 2 &&
           world->trainer[0].next_push > 0;
}

static void test_node_without_its_store(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, in_step_two));
    node_crash(world, 1);
    node_forget(world, 1, 0);
    node_start(world, 1);
    expect_end(world);
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_LOST, "node 1",
            world->trainer[i].node == 0 ? "residuals it told last: they added up to "
                                        : "residuals");
    }
    world_destroy(world);
}

/* All of job 1 is done, and rank 0 waits in mid-step. */
static bool bystander_done(const struct world *world)
{
    for (unsigned i = 0; i < world->job[1].trainers; i++) {
        if (world->trainer[world->job[1].first + i].state != TRAINER_DONE) {
            return false;
        }
    }
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step == 2;
}

static void node_stays_away(const char *policy, enum adtopk_status status, bool lost)
{
    struct world *world = failure_world(policy);

    world->trainer[0].hold = HOLD_STEP;
    world->trainer[0].hold_step = 2;
    world->trainer[0].hold_pushes = 1;
    assert_true(world_until(world, bystander_done));
    world->node[1].cut = true;
    if (lost) {
        node_crash(world, 1);
        world->trainer[2].lost = world->trainer[3].lost = true;
        world->trainer[2].state = world->trainer[3].state = TRAINER_FAILED;
    }
    let_go(&world->trainer[0]);
    expect_end(world);
    for (unsigned i = 0; i < 4; i++) {
        if (!world->trainer[i].lost) {
            expect_rank(&world->trainer[i], status, i < 2 ? "node 1" : "node 0", "");
        }
    }
    world_destroy(world);
}

static void test_node_stays_away(void **state)
{
    (void)state;
    node_stays_away(POLICY, ADTOPK_ERR_TIMEOUT, true);
    node_stays_away(POLICY, ADTOPK_ERR_TIMEOUT, false);
}

static void test_node_lost_with_policy_fail(void **state)
{
    (void)state;
    node_stays_away(POLICY_WITH(",\"on_peer_loss\":\"fail\""), ADTOPK_ERR_PEER, true);
    node_stays_away(POLICY_WITH(",\"on_peer_loss\":\"fail\""), ADTOPK_ERR_PEER, false);
}

static void test_rank_that_never_pushes(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].hold = HOLD_STEP;
    world->trainer[3].hold_step = 2;
    world->trainer[3].hold_pushes = 4;
    expect_all(world, ADTOPK_ERR_TIMEOUT, "rank 3", "push tensor");
}

const struct CMUnitTest suite_failures[] = {
    cmocka_unit_test(test_lost_when_open),
    cmocka_unit_test(test_lost_when_committed),
    cmocka_unit_test(test_lost_when_mapped),
    cmocka_unit_test(test_lost_when_ready),
    cmocka_unit_test(test_lost_in_mid_step),
    cmocka_unit_test(test_lost_while_computing),
    cmocka_unit_test(test_lost_in_a_view_change),
    cmocka_unit_test(test_leaves_in_mid_step),
    cmocka_unit_test(test_leaves_before_it_began),
    cmocka_unit_test(test_leaves_alone_when_open),
    cmocka_unit_test(test_leaves_alone_when_mapped),
    cmocka_unit_test(test_leaves_between_steps),
    cmocka_unit_test(test_node_without_its_store),
    cmocka_unit_test(test_node_stays_away),
    cmocka_unit_test(test_node_lost_with_policy_fail),
    cmocka_unit_test(test_rank_that_never_pushes),
    {0},
};
