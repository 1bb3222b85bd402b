/* The checks find every planted bug within a few seeds, and the same seeds pass without it. So the
 * checks can fail, and they fail because of the bug. */
#include <stdio.h>

#include "tests/sim/failure.h"

#define SEEDS 200u

#define PATIENT "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}"
#define HASTY "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"round_timeout\":2}"

#define FORMING_US 3000000u /* join_timeout of POLICY */
#define ROUND_US 2000000u   /* round_timeout of HASTY */
#define TOLD_US 1200000u    /* the timeout of a peer, and 1 s: within so long all hear */

/* Non-finite gradients in every run and crashes in most: where some bugs live. */
static struct scenario scenario_for(uint64_t seed)
{
    struct scenario scenario = scenario_of(seed);

    scenario.refuses = MEMORY_ALL;
    scenario.nonfinite = scenario.loses ? 0 : 0.05;
    if (seed % 4 != 0 && !scenario.loses) {
        scenario.crash_every_us = 5000;
        scenario.fleeting = false;
        scenario.later = false; /* a daemon that restarts does not find tensors of later batches */
        scenario.max_crashes = 10;
    }
    scenario.max_us = 600000000;
    return scenario;
}

/* A run of a seed in which nothing may be violated. Prints what was, if anything. */
typedef bool try_seed(uint64_t seed, bool print);

static bool try_random(uint64_t seed, bool print)
{
    struct scenario scenario = scenario_for(seed);

    return scenario_run(&scenario, print);
}

/* The first seed in which the bug is found; 0: none. */
static uint64_t hunt(enum planted bug, try_seed *try)
{
    uint64_t found = 0;

    planted_bug = bug;
    coverage_count(false);
    for (uint64_t seed = 1; found == 0 && seed <= SEEDS; seed++) {
        found = try(seed, false) ? 0 : seed;
    }
    coverage_count(true);
    planted_bug = PLANTED_NONE;
    return found;
}

static void find_by(enum planted bug, const char *name, try_seed *try)
{
    uint64_t found = hunt(bug, try);

    (void)printf("# planted %s: found in seed %llu\n", name, (unsigned long long)found);
    assert_int_not_equal(found, 0);
    assert_true(try(found, true));
}

static void find(enum planted bug, const char *name)
{
    find_by(bug, name, try_random);
}

static void test_dropped_residual(void **state)
{
    (void)state;
    find(PLANTED_RESIDUAL, "dropped residual");
}

static void test_doubled_message(void **state)
{
    (void)state;
    find(PLANTED_DOUBLE, "doubled message");
}

static void test_stale_view(void **state)
{
    (void)state;
    find(PLANTED_VIEW, "stale view");
}

static void test_repeated_gradient(void **state)
{
    (void)state;
    find(PLANTED_GRADIENT, "repeated gradient");
}

static void test_lost_pushes(void **state)
{
    (void)state;
    find(PLANTED_UNPUSHED, "pushes that were not read");
}

static void test_lost_flag(void **state)
{
    (void)state;
    find(PLANTED_NONFINITE, "lost non-finite flag");
}

static bool try_scaled(uint64_t seed, bool print)
{
    struct scenario scenario = scenario_for(seed);

    scenario.scale = 0;
    scenario.scales = scenario.changed ? SCALES_ANY : SCALES_EXACT;
    return scenario_run(&scenario, print);
}

static void test_kept_scale(void **state)
{
    (void)state;
    find_by(PLANTED_SCALE, "loss scale in the residual", try_scaled);
}

static void test_unsettled_copy(void **state)
{
    (void)state;
    find(PLANTED_SETTLE, "unsettled copy");
}

static bool try_rounded(uint64_t seed, bool print)
{
    struct scenario scenario = scenario_for(seed);

    scenario.changed = true;
    scenario.mixed = false;
    scenario.policy = "{\"reduce\":\"sum\",\"density\":0.1,\"values\":\"int8\"}";
    return scenario_run(&scenario, print);
}

static void test_other_rounding(void **state)
{
    (void)state;
    find_by(PLANTED_ROUNDING, "rounding with another seed", try_rounded);
}

static bool try_half(uint64_t seed, bool print)
{
    struct scenario scenario = scenario_for(seed);

    scenario.scale = 0;
    scenario.half = UINT32_MAX;
    scenario.mixed = scenario.changed = false;
    scenario.policy = planted_bug == PLANTED_RESTS
                          ? "{\"reduce\":\"sum\",\"density\":0.2,\"values\":\"f32\"}"
                          : "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}";
    return scenario_run(&scenario, print);
}

static void test_lost_rests(void **state)
{
    (void)state;
    find_by(PLANTED_RESTS, "rests of entries that are lost", try_half);
    find_by(PLANTED_RESTS_DENSE, "rests of dense updates that are lost", try_half);
}

static void test_wrong_mean(void **state)
{
    (void)state;
    find(PLANTED_MEAN, "mean over nodes x local ranks");
}

static void test_ignored_credit(void **state)
{
    (void)state;
    find(PLANTED_CREDIT, "ignored credit");
}

static void test_leave_storm(void **state)
{
    (void)state;
    find(PLANTED_STORM, "leave storm");
}

static void test_delivered_twice(void **state)
{
    (void)state;
    find(PLANTED_TWICE, "frame delivered twice");
}

/* Runs a world whose jobs may fail to its end, which must come before scenario.max_us. */
static bool run_out(struct world *world, bool print)
{
    bool ok = world_run(world);

    if (!ok && print) {
        (void)printf("# %s\n", world->violation);
    }
    world_destroy(world);
    return ok;
}

static struct world *small_world(const char *policy, uint64_t seed, uint64_t max_us)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.seed = seed;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.max_us = max_us;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    return world;
}

/* Most packets are lost. Within join_timeout the job begins, or its ranks hear that it does not. */
static bool try_lossy(uint64_t seed, bool print)
{
    struct world *world = small_world(POLICY, seed, FORMING_US + TOLD_US);

    world->scenario.steps = 0;
    world->scenario.loss = 0.7;
    return run_out(world, print);
}

static void test_livelock(void **state)
{
    (void)state;
    find_by(PLANTED_LIVELOCK, "view livelock", try_lossy);
}

static void test_quorum_of_one(void **state)
{
    (void)state;
    find(PLANTED_QUORUM, "view without all answers");
}

/* The key is used again at once, while frames of its first run, whose rank 0 died, are under way.
 */
static bool try_again(uint64_t seed, bool print)
{
    struct scenario scenario = scenario_for(seed);

    scenario.nodes = 2 + (unsigned)(seed % 3);
    scenario.jobs = 1;
    scenario.again = scenario.dies = true;
    scenario.mixed = false;
    scenario.gap_us = 0;
    scenario.crash_every_us = 0;
    scenario.delay_us = 20000;
    return scenario_run(&scenario, print);
}

static void test_mixed_runs(void **state)
{
    (void)state;
    find_by(PLANTED_RUN, "mixed runs", try_again);
}

static void test_other_owner(void **state)
{
    (void)state;
    find(PLANTED_OWNER, "job of another user");
}

static bool in_step_one(const struct world *world)
{
    return world->trainer[0].step == 1 && world->trainer[0].next_push > 0;
}

/* The rank of node 0 dies; node 2 hears of it although nothing goes from one to the other. */
static bool try_told(uint64_t seed, bool print)
{
    struct world *world = small_world(PATIENT, seed, 60000000);

    (void)world_until(world, in_step_one);
    flow_of(world, 0, 2)->cuts++;
    flow_of(world, 2, 0)->cuts++;
    world->scenario.max_us = world->now_us + TOLD_US;
    lose(&world->trainer[0]);
    return run_out(world, print);
}

static void test_untold(void **state)
{
    (void)state;
    find_by(PLANTED_UNTOLD, "failure that is not passed on", try_told);
}

/* Node 0 lives and sends no frames. */
static bool try_mute(uint64_t seed, bool print)
{
    struct world *world = small_world(HASTY, seed, 60000000);

    (void)world_until(world, in_step_one);
    world->node[0].bulk_last = 0;
    world->scenario.max_us = world->now_us + ROUND_US + TOLD_US;
    return run_out(world, print);
}

static void test_patient_rounds(void **state)
{
    (void)state;
    find_by(PLANTED_PATIENT, "round_timeout that does not end", try_mute);
}

const struct CMUnitTest suite_planted[] = {
    cmocka_unit_test(test_dropped_residual),
    cmocka_unit_test(test_doubled_message),
    cmocka_unit_test(test_stale_view),
    cmocka_unit_test(test_repeated_gradient),
    cmocka_unit_test(test_lost_pushes),
    cmocka_unit_test(test_lost_flag),
    cmocka_unit_test(test_kept_scale),
    cmocka_unit_test(test_unsettled_copy),
    cmocka_unit_test(test_other_rounding),
    cmocka_unit_test(test_lost_rests),
    cmocka_unit_test(test_wrong_mean),
    cmocka_unit_test(test_ignored_credit),
    cmocka_unit_test(test_leave_storm),
    cmocka_unit_test(test_delivered_twice),
    cmocka_unit_test(test_livelock),
    cmocka_unit_test(test_quorum_of_one),
    cmocka_unit_test(test_mixed_runs),
    cmocka_unit_test(test_other_owner),
    cmocka_unit_test(test_untold),
    cmocka_unit_test(test_patient_rounds),
    {0},
};
