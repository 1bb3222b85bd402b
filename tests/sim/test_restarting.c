/*
 * All daemons restart after their job, under the policy "shrink", has lost a node. No node has the
 * view in force then: each learns from its store which nodes are left.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/failure.h"

#define POLICY_OF(more)                                                                            \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"join_timeout\":30,"                 \
    "\"push_timeout\":60,\"wait_limit\":60,\"on_peer_loss\":\"shrink\",\"shrink_after\":1," more   \
    "}"

static const char *const policies[] = {
    POLICY_OF("\"sparsifier\":\"topk\""),
    POLICY_OF("\"sparsifier\":\"adtopk\""),
    POLICY_OF("\"sparsifier\":\"topk\",\"sparse_collective\":\"oktopk\""),
    POLICY_OF("\"sparsifier\":\"dense\",\"dense_collective\":\"ring\""),
    POLICY_OF("\"sparsifier\":\"dense\",\"dense_collective\":\"nccl-allreduce\""),
};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

static struct world *four_nodes(const char *policy, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.nodes = 4;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 3;
    scenario.max_us = 200000000;
    return world_create(&scenario);
}

static bool some_smaller(const struct world *world)
{
    for (unsigned n = 0; n < 3; n++) {
        struct job_info info;
        if (check_find(world, n, 0, &info) && info.nodes == 3 &&
            strcmp(info.state, "active") == 0) {
            return true;
        }
    }
    return false;
}

static bool all_smaller(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (world->node[n].core != NULL &&
            (!check_find(world, n, 0, &info) || info.nodes == world->scenario.nodes)) {
            return false;
        }
    }
    return true;
}

/* Node 3 of four is lost. So many events after the first of the others goes on without it, their
 * daemons are all killed, and come back one after the other. If a node is `absent` then, all others
 * must have gone on without node 3 before. */
static struct world *restart_all(const char *policy, unsigned turns, unsigned absent)
{
    struct world *world = four_nodes(policy, 23 + turns);

    assert_true(world_until(world, all_run_step_one));
    lose_node(world, 3);
    assert_true(world_until(world, absent < 3 ? all_smaller : some_smaller));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    for (unsigned n = 0; n < 3; n++) {
        if (n == absent) {
            lose_node(world, n);
            continue;
        }
        node_crash(world, n);
        world_at(world, 1000 + n * turns * 500, (struct sim_event){.type = SIM_RESTART, .node = n});
    }
    return world;
}

static void expect_restart(const char *policy, unsigned turns, unsigned absent)
{
    struct world *world = restart_all(policy, turns, absent);
    char about[300];

    (void)snprintf(
        about, sizeof(about), "all restart after %u, without %u: %s", turns, absent, policy);
    expect_rest(world, about);
    world_destroy(world);
}

static void test_all_restart(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 2 * POLICIES; p++) {
        expect_restart(policies[p % POLICIES], p * 4, 4);
        expect_restart(policies[p % POLICIES], p * 6, p % 3);
    }
}

static bool try_restart(uint64_t seed, char *found)
{
    struct world *world = restart_all(policies[seed % POLICIES], (unsigned)seed % 50, 4);
    bool right = world_run(world);

    for (unsigned i = 0; i < 3; i++) {
        right = right && world->trainer[i].state == TRAINER_DONE;
    }
    (void)snprintf(found, SIM_TEXT, "nobody goes on");
    world_destroy(world);
    return right;
}

static void test_planted_header(void **state)
{
    (void)state;
    losses_find(PLANTED_HEADER, "store without views", try_restart);
}

/* ------------------------------------------------------------------ returning in vain */

static bool wants_to_return(const struct world *world)
{
    return world->trainer[1].state == TRAINER_FORMING && world->trainer[1].joined == JOINED_MAPPED;
}

/* A rank returns to the run, or to one that is over, and dies before the other one is back. The
 * store stays for those that return after it. */
static void expect_store_stays(uint64_t other_run)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;
    uint64_t run;

    scenario.nodes = 1;
    scenario.jobs = 1;
    world = world_create(&scenario);
    assert_true(world_until(world, all_run_step_one));
    node_crash(world, 0);
    world->trainer[0].hold = HOLD_OUT;
    run = world->trainer[1].run;
    world->trainer[1].run += other_run;
    node_start(world, 0);
    assert_true(world_until(world, wants_to_return));
    lose(&world->trainer[1]);
    world->trainer[1].state = TRAINER_OUT;
    world->trainer[1].lost = false;
    world->trainer[1].run = run;
    world_wake(world, &world->trainer[1], 1000);
    let_go(&world->trainer[0]);
    expect_rest(world, "the store is left");
    world_destroy(world);
}

static void test_returns_in_vain(void **state)
{
    (void)state;
    expect_store_stays(0);
    expect_store_stays(1);
}

/* ------------------------------------------------------------------ ranks that return late */

#define PARTLY 1u /* the node of ranks 2 and 3, whose daemon restarts */

static bool some_are_back(const struct world *world)
{
    return world->trainer[2].state == TRAINER_FORMING && world->trainer[2].joined == JOINED_MAPPED;
}

static bool others_go_on(const struct world *world)
{
    struct job_info info;

    return check_find(world, 2, 0, &info) && info.nodes == 2 && strcmp(info.state, "active") == 0;
}

/* Three nodes in a step. What it lacks of the node PARTLY may be lost. */
static struct world *three_in_step(const char *policy)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.nodes = 3;
    scenario.jobs = 1;
    scenario.max_us = 200000000;
    world = world_create(&scenario);
    assert_true(world_until(world, all_run_step_one));
    check_forget_step(world, PARTLY, 0, 1u << PARTLY);
    return world;
}

/* A daemon of three restarts, or two. Rank 2 returns at once, and rank 3 does not. A second daemon
 * hears of rank 2 before its own ranks have read in the store who takes part. */
static struct world *restart_partly(const char *policy, bool two)
{
    struct world *world = three_in_step(policy);

    world->trainer[3].hold = HOLD_OUT;
    world->trainer[0].hold = world->trainer[1].hold = two ? HOLD_OPEN : HOLD_NEVER;
    for (unsigned n = 0; n <= PARTLY; n++) {
        if (two || n == PARTLY) {
            node_crash(world, n);
            node_start(world, n);
        }
    }
    assert_true(world_until(world, some_are_back));
    until_us = world->now_us + 100000;
    assert_true(world_until(world, waited));
    let_go(&world->trainer[0]);
    let_go(&world->trainer[1]);
    return world;
}

/* Rank 3 comes a moment before `shrink_after` is over. */
static void test_returns_in_time(void **state)
{
    (void)state;
    for (unsigned p = 0; p < POLICIES; p++) {
        struct world *world = restart_partly(policies[p], p % 2 == 0);
        until_us = world->now_us + 600000;
        assert_true(world_until(world, waited));
        let_go(&world->trainer[3]);
        expect_rest(world, "rank 3 is late");
        world_destroy(world);
    }
}

/* Rank 3 comes when the others have gone on without its node, or never. */
static void expect_others(const char *policy, bool two, bool comes)
{
    struct world *world = restart_partly(policy, two);
    const uint64_t since_us = world->now_us;

    world->job[0].may_fail = true;
    world->trainer[2].lost = world->trainer[3].lost = true;
    assert_true(world_until(world, others_go_on));
    assert_in_range(world->now_us - since_us, 500000, 1500000);
    if (comes) {
        let_go(&world->trainer[3]);
    } else {
        world->trainer[3].state = TRAINER_FAILED;
    }
    expect_rest(world, "rank 3 is too late");
    expect_rank(&world->trainer[2], comes ? ADTOPK_ERR_STATE : ADTOPK_ERR_TIMEOUT,
        comes ? "runs without ranks on node 1" : "s, for rank 3", "");
    world_destroy(world);
}

static void test_returns_after_the_others_went_on(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 2 * POLICIES; p++) {
        expect_others(policies[p % POLICIES], p % 2 == 0, p < POLICIES);
    }
}

static bool partly_is(const struct world *world, bool up)
{
    struct peer_info info;

    for (uint32_t i = 0; core_peer_info(world->node[2].core, i, &info); i++) {
        if (info.node == PARTLY) {
            return info.up == up;
        }
    }
    return false;
}

static bool partly_is_down(const struct world *world)
{
    return partly_is(world, false);
}

static bool partly_is_up(const struct world *world)
{
    return partly_is(world, true);
}

/* Rank 3 does not come, and the node's links are down for a moment. The node is lost as before. */
static void test_links_break_before_all_are_back(void **state)
{
    struct world *world = restart_partly(policies[0], false);
    const uint64_t since_us = world->now_us;

    (void)state;
    world->job[0].may_fail = true;
    world->trainer[2].lost = world->trainer[3].lost = true;
    world->node[PARTLY].cut = true;
    assert_true(world_until(world, partly_is_down));
    world->node[PARTLY].cut = false;
    assert_true(world_until(world, partly_is_up));
    assert_true(world_until(world, others_go_on));
    assert_in_range(world->now_us - since_us, 500000, 2500000);
    world_destroy(world);
}

static bool both_are_back(const struct world *world)
{
    return world->trainer[2].joined == JOINED_MAPPED && world->trainer[3].joined == JOINED_MAPPED &&
           world->trainer[3].state == TRAINER_FORMING;
}

/* Both ranks return, and one dies again before the third node has restarted. */
static void test_one_dies_again(void **state)
{
    struct world *world = three_in_step(policies[0]);

    (void)state;
    world->trainer[0].hold = world->trainer[1].hold = HOLD_OPEN;
    for (unsigned n = 0; n <= PARTLY; n++) {
        node_crash(world, n);
        node_start(world, n);
    }
    assert_true(world_until(world, both_are_back));
    until_us = world->now_us + 100000;
    assert_true(world_until(world, waited));
    world->job[0].may_fail = true;
    world->trainer[2].lost = world->trainer[3].lost = true;
    lose(&world->trainer[3]);
    until_us = world->now_us + 100000;
    assert_true(world_until(world, waited));
    let_go(&world->trainer[0]);
    let_go(&world->trainer[1]);
    assert_true(world_until(world, others_go_on));
    world_destroy(world);
}

/* ------------------------------------------------------------------ other batches of tensors */

static bool some_commits(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].committing) {
            return true;
        }
    }
    return false;
}

/* So many events after the first rank began to commit more tensors nodes are killed, a bit each. */
static void expect_commit(const char *policy, unsigned turns, unsigned nodes)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;
    char about[100];

    scenario.seed = turns;
    scenario.jobs = 1;
    scenario.later = true;
    world = world_create(&scenario);
    assert_true(world_until(world, some_commits));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    for (unsigned n = 0; n < scenario.nodes; n++) {
        if ((nodes >> n & 1) != 0) {
            node_crash(world, n);
            world_at(
                world, 1000 + n * turns * 100, (struct sim_event){.type = SIM_RESTART, .node = n});
        }
    }
    (void)snprintf(about, sizeof(about), "%#x killed %u events after a commit", nodes, turns);
    expect_rest(world, about);
    world_destroy(world);
}

static void test_mid_commit(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 120; turns++) {
        expect_commit(policies[turns % 4], turns, 1 + turns / 4 % 3);
    }
}

static bool all_have_both(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].batches == 0) {
            return false;
        }
    }
    return true;
}

/* The last of some nodes is killed when all tensors are in force. Its ranks return in another way.
 */
static void expect_other_batches(unsigned nodes, void (*change)(struct trainer *trainer),
    enum adtopk_status status, const char *words)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    scenario.nodes = nodes;
    scenario.jobs = 1;
    scenario.later = true;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    assert_true(world_until(world, all_have_both));
    node_crash(world, nodes - 1);
    change(&world->trainer[2 * nodes - 2]);
    change(&world->trainer[2 * nodes - 1]);
    node_start(world, nodes - 1);
    assert_true(world_run(world));
    expect_rank(&world->trainer[2 * nodes - 2], status, words, "");
    world_destroy(world);
}

static void bring_fewer(struct trainer *trainer)
{
    trainer->batches = 0;
}

static void bring_other_tensors(struct trainer *trainer)
{
    trainer->tensor[trainer->tensors - 1].shape.size[0]++;
}

static void bring_another_order(struct trainer *trainer)
{
    const struct tensor_spec last = trainer->tensor[trainer->tensors - 1];

    trainer->tensor[trainer->tensors - 1] = trainer->tensor[0];
    trainer->tensor[0] = last;
}

static void test_other_batches(void **state)
{
    (void)state;
    expect_other_batches(
        1, bring_fewer, ADTOPK_ERR_MISMATCH, "returns to job 'job' after 1 commits of tensors");
    expect_other_batches(2, bring_fewer, ADTOPK_ERR_LOST, "without the tensors");
    expect_other_batches(1, bring_other_tensors, ADTOPK_ERR_MISMATCH, "had other tensors");
    expect_other_batches(
        2, bring_other_tensors, ADTOPK_ERR_MISMATCH, "another name, type, shape or form");
    expect_other_batches(
        2, bring_another_order, ADTOPK_ERR_MISMATCH, "another name, type, shape or form");
}

static bool is_over(const struct world *world)
{
    return world->trainer[0].state == TRAINER_FAILED && world->trainer[3].state == TRAINER_FAILED;
}

/* Node 0 is killed, and rank 0 returns. Its process ends before rank 1 returns. That ends the job,
 * and rank 1 hears why when it comes. */
static void test_returns_too_late(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    world->trainer[1].hold = HOLD_OUT;
    node_crash(world, 0);
    node_start(world, 0);
    until_us = world->now_us + 100000;
    assert_true(world_until(world, waited));
    lose(&world->trainer[0]);
    assert_true(world_until(world, is_over));
    let_go(&world->trainer[1]);
    expect_end(world);
    expect_rank(&world->trainer[1], ADTOPK_ERR_LOST, "no part in this run", "rank 0 is gone");
    world_destroy(world);
}

const struct CMUnitTest suite_restarting[] = {
    cmocka_unit_test(test_all_restart),
    cmocka_unit_test(test_returns_in_vain),
    cmocka_unit_test(test_returns_too_late),
    cmocka_unit_test(test_returns_in_time),
    cmocka_unit_test(test_returns_after_the_others_went_on),
    cmocka_unit_test(test_one_dies_again),
    cmocka_unit_test(test_links_break_before_all_are_back),
    cmocka_unit_test(test_mid_commit),
    cmocka_unit_test(test_other_batches),
    cmocka_unit_test(test_planted_header),
    {0},
};
