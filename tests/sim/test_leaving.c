/*
 * Ranks that leave at different times, and nodes whose daemon dies meanwhile. Ranks that have left
 * are not missed, the others are told in time, and every node's job ends.
 */
#include <string.h>

#include "tests/sim/failure.h"

#define NODES 3u
#define STEPS 4u
#define PATIENT "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}"

#define MIDDLE 2u          /* the step after which rank 1 leaves, in mid-training */
#define TOLD_US 300000u    /* a message, or the timeout of a peer, which is 200 ms */
#define WAITED_US 2000000u /* wait_limit of POLICY */
#define FORMED_US 3000000u /* join_timeout of POLICY */
#define NOBODY_US 750000u  /* how much later, at most, a node gives up that has nobody to blame */

/* One rank a node, which stops before it would leave. */
static struct world *leaving_world(const char *policy)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.nodes = NODES;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = STEPS;
    scenario.max_us = 120000000;
    world = world_create(&scenario);
    for (unsigned i = 0; i < NODES; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = STEPS;
    }
    return world;
}

static bool all_stepped(const struct world *world)
{
    for (unsigned i = 0; i < NODES; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING || world->trainer[i].step < STEPS) {
            return false;
        }
    }
    return true;
}

static bool in_the_middle(const struct world *world)
{
    return world->trainer[0].step == MIDDLE && world->trainer[1].step == 2 &&
           world->trainer[2].step == MIDDLE && later(world);
}

/* Lets so much time go by. */
static void pass(struct world *world, uint64_t us)
{
    uint64_t due_us = world->now_us + us;

    while (world->now_us < due_us) {
        assert_true(world_turn(world));
    }
}

/* Runs to the end, which comes within so long from now on all nodes. */
static void end_within(struct world *world, uint64_t us)
{
    uint64_t due_us = world->now_us + us;

    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    if (world->now_us > due_us) {
        fail_msg("%llu us later than promised", (unsigned long long)(world->now_us - due_us));
    }
}

static bool two_have_left(const struct world *world)
{
    return world->trainer[0].state == TRAINER_DONE && world->trainer[2].state == TRAINER_DONE &&
           later(world);
}

static bool agrees_anew(const struct world *world)
{
    struct job_info info;

    return check_find(world, 2, 0, &info) && strcmp(info.state, "prepared") == 0;
}

static bool is_back(const struct world *world)
{
    return world->trainer[1].state == TRAINER_RUNNING;
}

/* A node whose ranks have left hears that all others have left before it hears the commit of the
 * view in which they say so. Its daemon's job is over, and the daemon that came back is told. */
static void test_left_before_a_commit(void **state)
{
    struct world *world = leaving_world(PATIENT);

    (void)state;
    assert_true(world_until(world, all_stepped));
    let_go(&world->trainer[0]);
    let_go(&world->trainer[2]);
    assert_true(world_until(world, two_have_left));
    node_crash(world, 1);
    node_start(world, 1);
    assert_true(world_until(world, agrees_anew));
    flow_of(world, 0, 2)->cuts++;
    assert_true(world_until(world, is_back));
    let_go(&world->trainer[1]);
    while (agrees_anew(world)) {
        assert_true(world_turn(world));
    }
    flow_of(world, 0, 2)->cuts--;
    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    world_destroy(world);
}

/* ------------------------------------------------ who left, and whose daemon then dies */

enum death {
    DEATH_TOLD,     /* the others have heard that the rank left, and then the daemon dies */
    DEATH_UNTOLD,   /* nobody hears of it any more */
    DEATH_RESTARTED /* nor of this one, but another daemon begins in its place */
};

static void leave_and_die(struct world *world, enum death death)
{
    unsigned cuts = death == DEATH_TOLD ? 0 : 1;

    flow_of(world, 1, 0)->cuts += cuts;
    flow_of(world, 1, 2)->cuts += cuts;
    check_residuals(world, 1, 0); /* for the sums at the end */
    leave(&world->trainer[1]);
    world->trainer[1].state = TRAINER_DONE;
    pass(world, TOLD_US);
    node_crash(world, 1);
    flow_of(world, 1, 0)->cuts -= cuts;
    flow_of(world, 1, 2)->cuts -= cuts;
    if (death == DEATH_RESTARTED) {
        node_start(world, 1);
    }
}

/* All ranks have all their steps when rank 1 leaves and its daemon dies. The others are not told of
 * an error, whenever they leave, and their daemons' jobs end. */
static void dies_at_the_end(enum death death, uint64_t within_us)
{
    struct world *world = leaving_world(POLICY);

    assert_true(world_until(world, all_stepped));
    leave_and_die(world, death);
    let_go(&world->trainer[0]);
    pass(world, TOLD_US);
    let_go(&world->trainer[2]);
    end_within(world, within_us);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

static void test_dies_at_the_end(void **state)
{
    (void)state;
    dies_at_the_end(DEATH_TOLD, TOLD_US);
    dies_at_the_end(DEATH_UNTOLD, WAITED_US + TOLD_US);
    dies_at_the_end(DEATH_RESTARTED, WAITED_US + TOLD_US);
}

/* Ranks 0 and 2 go on with another step, which cannot end. */
static void dies_in_the_middle(
    const char *policy, enum death death, uint64_t within_us, const char *culprit)
{
    struct world *world = leaving_world(policy);

    world->job[0].may_fail = true;
    for (unsigned i = 0; i < NODES; i++) {
        world->trainer[i].hold_step = MIDDLE;
    }
    assert_true(world_until(world, in_the_middle));
    leave_and_die(world, death);
    let_go(&world->trainer[0]);
    let_go(&world->trainer[2]);
    end_within(world, within_us);
    for (unsigned i = 0; i < NODES; i += 2) {
        expect_rank(&world->trainer[i], world->trainer[i].error.code, "node 1", culprit);
    }
    world_destroy(world);
}

static void test_dies_in_the_middle(void **state)
{
    (void)state;
    dies_in_the_middle(POLICY, DEATH_TOLD, TOLD_US, "left the job before step 2");
    dies_in_the_middle(POLICY, DEATH_UNTOLD, WAITED_US + NOBODY_US, "does not answer");
    dies_in_the_middle(POLICY, DEATH_RESTARTED, WAITED_US + NOBODY_US, "restarted");
    dies_in_the_middle(
        POLICY_WITH(",\"on_peer_loss\":\"fail\""), DEATH_UNTOLD, TOLD_US, "does not answer");
}

static bool all_run(const struct world *world)
{
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING) {
            return false;
        }
    }
    return later(world);
}

/* Rank 0 waits in an operation that rank `leaver` never calls, because it leaves. All others are
 * told at once, and not when patience ends. */
static void leaves_an_operation(struct world *world, unsigned leaver, const char *culprit)
{
    world->scenario.operations = 1;
    world->job[0].may_fail = true;
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = 0;
    }
    assert_true(world_until(world, all_run));
    let_go(&world->trainer[0]);
    pass(world, TOLD_US);
    leave(&world->trainer[leaver]);
    world->trainer[leaver].state = TRAINER_DONE;
    end_within(world, TOLD_US);
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        if (i != leaver) {
            expect_rank(
                &world->trainer[i], ADTOPK_ERR_PEER, culprit, "left the job before operation 0");
        }
    }
    world_destroy(world);
}

static void test_leaves_an_operation(void **state)
{
    (void)state;
    leaves_an_operation(leaving_world(POLICY), 1, "node 1");
    leaves_an_operation(failure_world(POLICY), 1, "rank 1");
}

static bool ranks_stepped(const struct world *world)
{
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        if (world->trainer[i].step < STEPS) {
            return false;
        }
    }
    return later(world);
}

/* One of a node's two ranks has left when the daemon begins anew. The other comes back to a job
 * that is incomplete for ever, and is told so within join_timeout. The ranks of the other node may
 * leave. */
static void test_half_a_node_comes_back(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = world->scenario.steps;
    }
    assert_true(world_until(world, ranks_stepped));
    leave(&world->trainer[2]);
    world->trainer[2].state = TRAINER_DONE;
    node_crash(world, 1);
    node_start(world, 1);
    pass(world, TOLD_US);
    let_go(&world->trainer[0]);
    let_go(&world->trainer[1]);
    end_within(world, FORMED_US + NOBODY_US);
    expect_rank(&world->trainer[3], ADTOPK_ERR_TIMEOUT, "rank 2", "");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

const struct CMUnitTest suite_leaving[] = {
    cmocka_unit_test(test_half_a_node_comes_back),
    cmocka_unit_test(test_leaves_an_operation),
    cmocka_unit_test(test_dies_at_the_end),
    cmocka_unit_test(test_dies_in_the_middle),
    cmocka_unit_test(test_left_before_a_commit),
    {0},
};
