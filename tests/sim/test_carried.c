/*
 * Carriers: what random scenarios do not show, because their jobs shall end well. An operation
 * fails, never happens, or has no group; the carrier's process dies; nodes would start operations
 * in other orders.
 */
#include <stdio.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define SEEDS 60u
#define CARRIED_SEED 9u /* both nodes have the same carrier */

#define CARRIED(more)                                                                              \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"sparse_collective\":\"nccl-"        \
    "allgather\",\"dense_collective\":\"nccl-allreduce\",\"round_timeout\":2" more "}"

static struct scenario carried_scenario(uint64_t seed)
{
    struct scenario scenario = failure_scenario(CARRIED(",\"bucket_bytes\":500"));

    scenario.seed = seed;
    scenario.jobs = 1;
    scenario.steps = 8;
    return scenario;
}

static bool in_step_two(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 2;
}

/* Whatever becomes of the carrier of node 0, all ranks hear this, and the world goes on. */
static void expect_fault(enum carrier_fault fault, enum adtopk_status status, const char *words)
{
    const struct scenario scenario = carried_scenario(CARRIED_SEED);
    struct world *world = world_create(&scenario);

    assert_int_equal(carrier_version(CARRIED_SEED, 0), carrier_version(CARRIED_SEED, 1));
    world->job[0].may_fail = true;
    if (fault != CARRIER_NAMELESS) {
        assert_true(world_until(world, in_step_two));
    }
    world->node[0].carrier_fault = fault;
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        expect_rank(&world->trainer[i], status, words, "NCCL of node");
    }
    world_destroy(world);
}

static void test_fails(void **state)
{
    (void)state;
    expect_fault(CARRIER_FAILS, ADTOPK_ERR_SYSTEM, "the carrier has failed");
}

static void test_never_happens(void **state)
{
    (void)state;
    expect_fault(CARRIER_SILENT, ADTOPK_ERR_TIMEOUT, "within round_timeout, 2 s");
}

static void test_no_name(void **state)
{
    (void)state;
    expect_fault(CARRIER_NAMELESS, ADTOPK_ERR_SYSTEM, "the carrier has failed");
}

/* A process that dies takes the operations along that it has. Otherwise the next operation makes a
 * group anew, and nobody notices. */
static void test_dies(void **state)
{
    unsigned failed = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const struct scenario scenario = carried_scenario(seed);
        struct world *world = world_create(&scenario);

        world->job[0].may_fail = true;
        (void)world_until(world, in_step_two);
        for (uint64_t turns = seed * 7; turns > 0 && world_turn(world); turns--) {
        }
        carrier_dies(&world->node[seed % 2]);
        if (!world_run(world)) {
            (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
        }
        assert_false(world->violated);
        failed += world->trainer[0].state == TRAINER_FAILED;
        world_destroy(world);
    }
    assert_in_range(failed, 1, SEEDS - 1);
}

/* Operations are counted where all nodes have the same carrier, and only there. */
static void test_who_carries(void **state)
{
    unsigned framed = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const struct scenario scenario = carried_scenario(seed);
        struct world *world = world_create(&scenario);
        const bool same = carrier_version(seed, 0) == carrier_version(seed, 1);

        assert_true(world_run(world));
        assert_true(same ? world->stats.carried > 0 : world->stats.carried == 0);
        framed += !same;
        world_destroy(world);
    }
    assert_in_range(framed, 1, SEEDS - 1);
}

/* The ranks of a node map their memory one after the other. A join with the first one alone names
 * fewer GPUs. Where packets are lost, another node may have no later one when the view begins, at
 * the start of the job and after a restart. */
static void test_ranks_come_in_turn(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2 * CASES(20u, 5u); seed += 2) { /* odd: with two GPUs */
        struct scenario scenario = carried_scenario(seed);
        struct world *world;

        scenario.nodes = 3;
        scenario.loss = 0.2;
        scenario.crash_every_us = 20000;
        scenario.max_crashes = 3;
        scenario.max_us = 400000000;
        world = world_create(&scenario);
        if (!world_run(world)) {
            (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
        }
        assert_false(world->violated);
        world_destroy(world);
    }
}

static bool try_order(uint64_t seed)
{
    const struct scenario scenario = carried_scenario(seed);
    struct world *world = world_create(&scenario);
    bool ok = world_run(world);

    world_destroy(world);
    return ok;
}

/* Each node starts what it hears of first. */
static void test_any_order(void **state)
{
    uint64_t found = 0;

    (void)state;
    planted_bug = PLANTED_ORDER;
    for (uint64_t seed = 1; found == 0 && seed <= SEEDS; seed++) {
        found = try_order(seed) ? 0 : seed;
    }
    planted_bug = PLANTED_NONE;
    (void)printf("# planted order of operations: found in seed %llu\n", (unsigned long long)found);
    assert_int_not_equal(found, 0);
    assert_true(try_order(found));
}

const struct CMUnitTest suite_carried[] = {
    cmocka_unit_test(test_fails),
    cmocka_unit_test(test_never_happens),
    cmocka_unit_test(test_no_name),
    cmocka_unit_test(test_dies),
    cmocka_unit_test(test_who_carries),
    cmocka_unit_test(test_ranks_come_in_turn),
    cmocka_unit_test(test_any_order),
    {0},
};
