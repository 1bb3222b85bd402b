/*
 * Changes of the policy at moments that chance seldom finds: several at once, refused and requested
 * again, and a coordinator that is gone when only some nodes have switched.
 */
#include <stdio.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define SEEDS CASES_OF(30u, 10u, 5u)

#define EXACT "\"reduce\":\"sum\",\"values\":\"f32\",\"density\":0.05"

/* Each rule goes with the policy beneath it, but not the two with each other. */
#define IMPOSSIBLE                                                                                 \
    "{\"rules\":[{\"match\":\"*\",\"scope\":\"rank\"},{\"match\":\"*\",\"sparsifier\":\"dense\"}]" \
    "}"

/* One job with two ranks a node. */
static struct world *world_of(unsigned nodes, uint64_t seed)
{
    struct scenario scenario = failure_scenario("{" EXACT "}");

    scenario.seed = seed;
    scenario.nodes = nodes;
    scenario.jobs = 1;
    scenario.steps = 9;
    scenario.delay_us = 1500;
    return world_create(&scenario);
}

static void expect_done(struct world *world)
{
    if (!world_run(world)) {
        (void)printf(
            "# seed %llu: %s\n", (unsigned long long)world->scenario.seed, world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
}

/* All nodes closed the last step under this version of the policy. */
static void expect_version(const struct world *world, uint32_t version)
{
    assert_int_equal(world->job[0].policy[world->scenario.steps - 1], 1 + version);
}

static void expect_answer(const struct world *world, uint64_t ticket, enum adtopk_status status)
{
    const struct error *told = operator_answer(world, ticket);

    assert_non_null(told);
    if (told->code != status) {
        fail_msg("seed %llu: %s: %s", (unsigned long long)world->scenario.seed,
            adtopk_status_name(told->code), told->text);
    }
}

static void reach(struct world *world, bool (*holds)(const struct world *world))
{
    if (!world_until(world, holds)) {
        fail_msg("seed %llu: %s %s", (unsigned long long)world->scenario.seed, world->violation,
            world->trainer[0].error.text);
    }
}

static uint64_t must_change(struct world *world, unsigned node, const char *policy)
{
    struct error err = {.code = ADTOPK_OK};
    uint64_t ticket = operator_change(world, node, 0, policy, &err);

    if (ticket == 0) {
        fail_msg("seed %llu: %s", (unsigned long long)world->scenario.seed, err.text);
    }
    return ticket;
}

static bool all_run(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING || world->trainer[i].step < 1) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ refused */

/* Every node refuses the first, and the coordinator is the first to do so. The refusals of the
 * others come when the second is under way: they do not concern it. */
static void refused_and_asked_again(unsigned node, unsigned nodes)
{
    for (uint64_t seed = 1; seed <= CASES(SEEDS, 2u); seed++) {
        struct world *world = world_of(nodes, seed);
        uint64_t bad, good;
        reach(world, all_run);
        bad = must_change(world, node, IMPOSSIBLE);
        while (operator_answer(world, bad) == NULL) {
            assert_true(world_turn(world));
        }
        good = must_change(world, node, "{\"sparsifier\":\"dense\"}");
        expect_done(world);
        expect_answer(world, bad, ADTOPK_ERR_POLICY);
        expect_answer(world, good, ADTOPK_OK);
        expect_version(world, 1);
        world_destroy(world);
    }
}

static void test_refused_and_asked_again(void **state)
{
    (void)state;
    refused_and_asked_again(0, 2);
    refused_and_asked_again(0, 3);
    refused_and_asked_again(1, 2);
    refused_and_asked_again(2, 4);
}

/* One node has no memory for the ranks' residuals: nobody changes, and everybody goes on. */
static void test_one_node_cannot(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct world *world = world_of(3, seed);
        unsigned poor = (unsigned)(seed % 3);
        uint64_t ticket;
        char name[32];
        reach(world, all_run);
        world->node[poor].refuses = MEMORY_NO_STORE;
        ticket = must_change(world, (unsigned)(seed / 3 % 3), "{\"scope\":\"rank\"}");
        expect_done(world);
        expect_answer(world, ticket, ADTOPK_ERR_MEMORY);
        (void)snprintf(name, sizeof(name), "node %u", poor);
        assert_non_null(strstr(operator_answer(world, ticket)->text, name));
        expect_version(world, 0);
        world_destroy(world);
    }
}

/* Two operators on two nodes: one is first, and the other is told so. */
static void test_two_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct world *world = world_of(3, seed);
        unsigned one = (unsigned)(seed % 3), two = (unsigned)((one + 1 + seed / 3 % 2) % 3);
        uint64_t first, second;
        reach(world, all_run);
        first = must_change(world, one, "{\"sparsifier\":\"dense\"}");
        second = must_change(world, two, "{\"scope\":\"rank\"}");
        expect_done(world);
        assert_non_null(operator_answer(world, first));
        assert_non_null(operator_answer(world, second));
        assert_int_not_equal(operator_answer(world, first)->code == ADTOPK_OK,
            operator_answer(world, second)->code == ADTOPK_OK);
        expect_version(world, 1);
        world_destroy(world);
    }
}

/* Changes from node `asks`, and as soon as that is done there, again; returns the second ticket. */
static uint64_t change_twice(struct world *world, unsigned asks)
{
    uint64_t first;

    world->scenario.compute_us = 3000; /* the others are still switching */
    reach(world, all_run);
    first = must_change(world, asks, "{\"scope\":\"rank\"}");
    while (operator_answer(world, first) == NULL) {
        assert_true(world_turn(world));
    }
    expect_answer(world, first, ADTOPK_OK);
    return must_change(world, asks, "{\"sparsifier\":\"dense\",\"scope\":\"node\"}");
}

/* The second change waits for the first, and comes. */
static void test_one_after_the_other(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct world *world = world_of(3, seed);
        uint64_t second = change_twice(world, (unsigned)(seed % 3));
        expect_done(world);
        expect_answer(world, second, ADTOPK_OK);
        expect_version(world, 2);
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ coordinators that go */

static uint32_t version_on(const struct world *world, unsigned node)
{
    struct job_info info;

    return check_find(world, node, 0, &info) ? info.policy.version : 0;
}

static bool holds(const struct world *world, unsigned node)
{
    struct job_info info;

    return check_find(world, node, 0, &info) && info.policy.next_version > 0 &&
           info.policy.next_step == info.steps_done;
}

static bool one_has_switched(const struct world *world)
{
    return version_on(world, 1) != version_on(world, 2) || version_on(world, 0) > 0;
}

static bool all_hold(const struct world *world)
{
    return (holds(world, 0) && holds(world, 1) && holds(world, 2)) || version_on(world, 0) > 0;
}

static void restart(struct world *world, unsigned node)
{
    node_crash(world, node);
    node_start(world, node);
}

/* The commit reached one of the others, and the coordinator restarts before it has switched itself.
 * Perhaps a node that has switched restarts as well, or one that has not. */
static bool commit_reaches_one(uint64_t seed, unsigned also)
{
    struct world *world = world_of(3, seed);
    unsigned asks = (unsigned)(seed % 3), first;
    uint64_t ticket;
    bool met;

    world->scenario.compute_us = 3000; /* the switch takes its time on each node */
    reach(world, all_run);
    ticket = must_change(world, asks, "{\"scope\":\"rank\",\"bucket_bytes\":1}");
    reach(world, one_has_switched);
    met = version_on(world, 0) == 0;
    if (met) {
        first = version_on(world, 1) > 0 ? 1 : 2;
        restart(world, 0);
        if (also == 1) {
            restart(world, first);
        } else if (also == 2) {
            restart(world, 3 - first);
        }
    }
    expect_done(world);
    expect_version(world, 1);
    if (operator_answer(world, ticket) != NULL) { /* NULL: its node restarted */
        expect_answer(world, ticket, ADTOPK_OK);
    }
    world_destroy(world);
    return met;
}

static void test_commit_reaches_one(void **state)
{
    unsigned met = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 4 * SEEDS; seed++) {
        met += commit_reaches_one(seed, (unsigned)(seed / 3 % 3)) ? 1 : 0;
    }
    (void)printf("# %u of %u met\n", met, 4 * SEEDS);
    assert_true(met >= CASES(SEEDS, SEEDS / 2));
}

/* All hold, and then some restart: the change is off, or was decided; the next one is not. */
static void test_restart_while_all_hold(void **state)
{
    unsigned met = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
        struct world *world = world_of(3, seed);
        uint64_t ticket;
        uint32_t version;
        reach(world, all_run);
        ticket = must_change(world, 1, "{\"scope\":\"rank\"}");
        reach(world, all_hold);
        met += version_on(world, 0) == 0 ? 1 : 0;
        restart(world, (unsigned)(seed % 3));
        if (seed % 2 == 0) {
            restart(world, (unsigned)((seed + 1) % 3));
        }
        reach(world, all_run);
        while (world->tickets > 0) { /* who asked is told, unless its daemon has gone */
            assert_true(world_turn(world));
        }
        expect_done(world);
        version = world->job[0].policy[world->scenario.steps - 1] - 1;
        assert_true(version <= 1);
        if (operator_answer(world, ticket) != NULL) {
            expect_answer(world, ticket, version == 1 ? ADTOPK_OK : ADTOPK_ERR_PEER);
        }
        world_destroy(world);
    }
    (void)printf("# %u of %u met\n", met, 2 * SEEDS);
    assert_true(met > SEEDS);
}

/* A node restarts while a change waits for the one before. The change is cancelled, or it comes;
 * the requester is told which, unless its daemon has gone. */
static void test_restart_while_one_waits(void **state)
{
    unsigned off = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
        struct world *world = world_of(3, seed);
        unsigned gone = (unsigned)(seed / 3 % 3);
        uint64_t second = change_twice(world, (unsigned)(seed % 3));
        const struct error *told;
        restart(world, gone);
        expect_done(world);
        told = operator_answer(world, second);
        assert_true(told != NULL || gone == seed % 3);
        if (told != NULL) {
            expect_answer(world, second, told->code == ADTOPK_OK ? ADTOPK_OK : ADTOPK_ERR_PEER);
            expect_version(world, told->code == ADTOPK_OK ? 2 : 1);
            off += told->code != ADTOPK_OK ? 1 : 0;
        }
        world_destroy(world);
    }
    (void)printf("# %u of %u called off\n", off, 2 * SEEDS);
    assert_true(off > 0);
}

/* ------------------------------------------------------------------ copies */

static bool later_step(const struct world *world, uint64_t step)
{
    return world->trainer[0].step > step && all_run(world);
}

/* Node 2 restarts again and again, at any moment of a step: what one of the others has delivered
 * then, the other asks it for. */
static void restart_often(struct world *world, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        uint64_t step = world->trainer[0].step;
        for (uint64_t turns = 100 + world_random(world, 400); turns > 0; turns--) {
            assert_true(world_turn(world));
        }
        if (world->trainer[4].state == TRAINER_RUNNING) {
            restart(world, 2);
        }
        while (!later_step(world, step)) {
            assert_true(world_turn(world));
        }
    }
}

/* Copies are asked for under a plan of few rounds, and then of many. */
static void test_copies_under_two_plans(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CASES(6, 2); seed++) {
        struct scenario scenario = failure_scenario("{" EXACT ",\"bucket_bytes\":100000000}");
        struct world *world;
        uint64_t ticket;
        scenario.seed = seed;
        scenario.nodes = 3;
        scenario.jobs = 1;
        scenario.steps = 40;
        scenario.tensors = 0xfff;
        scenario.compute_us = 2000;
        scenario.max_us = 600000000;
        world = world_create(&scenario);
        reach(world, all_run);
        restart_often(world, 10);
        ticket = must_change(world, 0, "{\"bucket_bytes\":1}");
        while (operator_answer(world, ticket) == NULL) {
            assert_true(world_turn(world));
        }
        expect_answer(world, ticket, ADTOPK_OK);
        restart_often(world, 10);
        expect_done(world);
        world_destroy(world);
    }
}

/* The coordinator plans by what all nodes measured, so each of them tells it. */
static void test_plans_of_several_nodes(void **state)
{
    (void)state;
    for (unsigned nodes = 2; nodes <= 4; nodes++) {
        struct scenario scenario =
            failure_scenario("{\"reduce\":\"sum\",\"values\":\"f32\",\"density\":0.1,"
                             "\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\"}");
        struct world *world;

        scenario.nodes = nodes;
        scenario.jobs = 1;
        scenario.steps = 30;
        world = world_create(&scenario);
        expect_done(world);
        assert_true(world->stats.replanned > 0);
        world_destroy(world);
    }
}

const struct CMUnitTest suite_switching[] = {
    cmocka_unit_test(test_refused_and_asked_again),
    cmocka_unit_test(test_one_node_cannot),
    cmocka_unit_test(test_two_at_once),
    cmocka_unit_test(test_one_after_the_other),
    cmocka_unit_test(test_commit_reaches_one),
    cmocka_unit_test(test_restart_while_all_hold),
    cmocka_unit_test(test_restart_while_one_waits),
    cmocka_unit_test(test_copies_under_two_plans),
    cmocka_unit_test(test_plans_of_several_nodes),
    {0},
};
