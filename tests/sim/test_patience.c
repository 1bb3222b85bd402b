/*
 * Waits. A node says whom the job waits for. A network, a node or a rank that is only away or slow
 * ends no job.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/job/model.h"
#include "tests/sim/failure.h"

static bool only_rank_0_is_late(const struct world *world)
{
    return world->trainer[0].step == 2 && world->trainer[3].step == 2 && world->now_us > 1000000;
}

#define PATIENT(more)                                                                              \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"push_timeout\":600" more "}"

static bool all_have_heard(const struct world *world)
{
    return only_rank_0_is_late(world) && world->now_us > 20000000;
}

/* The wait of a node while only rank 0, on node 0, has pushed nothing of step 2. At first the node
 * names what it sees itself, and then what node 0 told it. */
static void expect_waiting(const char *policy, unsigned node, const char *expected)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;
    struct job_info info;

    scenario.nodes = 4;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.max_us = 60000000;
    world = world_create(&scenario);
    world->trainer[0].hold = HOLD_STEP;
    world->trainer[0].hold_step = 2;
    assert_true(world_until(world, only_rank_0_is_late));
    assert_true(core_job_info(world->node[node].core, 0, &info));
    assert_string_equal(info.waiting_for, expected);
    assert_true(world_until(world, all_have_heard));
    assert_true(core_job_info(world->node[node].core, 0, &info));
    assert_string_equal(info.waiting_for, "rank 0 on node 0 to push tensor 'fc.weight' of step 2");
    assert_int_equal(info.waiting.kind, WAIT_PUSH);
    assert_int_equal(info.waiting.rank, 0);
    assert_int_equal(info.waiting.node, 0);
    assert_string_equal(info.waiting_tensor, "fc.weight");
    world_destroy(world);
}

/* Where a neighbour may only pass on what others send, the sentence says so. */
static void test_who_is_waited_for(void **state)
{
    static const char sparse[] = PATIENT("");
    static const char ring[] = PATIENT(",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\"");

    (void)state;
    expect_waiting(ring, 0, "rank 0 on node 0 to push tensor 'fc.weight' of step 2");
    expect_waiting(ring, 1, "node 0 to send its part of step 2");
    expect_waiting(ring, 2, "node 1 to send its part of step 2, or a node that it waits for");
    expect_waiting(ring, 3, "node 2 to send its part of step 2, or a node that it waits for");
    expect_waiting(sparse, 3, "node 0 to send its part of step 2");
}

/* Nobody is to blame */

#define HASTY                                                                                      \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"round_timeout\":2,"                 \
    "\"push_timeout\":600,\"wait_limit\":600}"

static uint64_t goes_on_at;

static bool goes_on(const struct world *world)
{
    return world->now_us >= goes_on_at;
}

/* Node 1 has waited a second for rank 0, on node 0. */
static bool frames_under_way(const struct world *world)
{
    return only_rank_0_is_late(world) && world->now_us > 1000000;
}

/* An absence longer than round_timeout, of a network or of a node, ends no job. */
static void absent(bool paused, uint64_t for_us, uint64_t seed)
{
    struct scenario scenario = failure_scenario(HASTY);
    struct world *world;

    scenario.jobs = 1;
    scenario.steps = 30;
    scenario.max_us = 300000000;
    scenario.seed = seed;
    scenario.max_us = 120000000;
    world = world_create(&scenario);
    world->trainer[0].hold = HOLD_STEP;
    world->trainer[0].hold_step = 2;
    assert_true(world_until(world, frames_under_way));
    goes_on_at = world->now_us + for_us;
    if (paused) {
        node_pause(world, 1, for_us);
        assert_true(world_until(world, goes_on));
        goes_on_at += 1000000;
        assert_true(world_until(world, goes_on));
    } else {
        flow_of(world, 0, 1)->cuts++;
        flow_of(world, 1, 0)->cuts++;
        assert_true(world_until(world, goes_on));
        flow_of(world, 0, 1)->cuts--;
        flow_of(world, 1, 0)->cuts--;
    }
    let_go(&world->trainer[0]);
    if (!world_run(world)) {
        (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state != TRAINER_DONE) {
            (void)printf("# seed %llu, paused %d: rank %u: %s\n", (unsigned long long)seed, paused,
                i, world->trainer[i].error.text);
        }
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

static void test_link_that_was_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        absent(false, 20000000 + 37000 * seed, seed);
    }
}

static void test_node_that_was_stopped(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        absent(true, 20000000 + 37000 * seed, seed);
    }
}

/* Runs the world to its end, and says what went wrong. */
static void run_on(struct world *world)
{
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
}

/* A rank that pushes a tensor now and then is not stuck, and its node says so. */
static void test_rank_that_is_slow(void **state)
{
    struct scenario scenario = failure_scenario(
        "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"round_timeout\":1,"
        "\"push_timeout\":600,\"wait_limit\":600}");
    struct world *world;

    (void)state;
    scenario.jobs = 1;
    scenario.ranks_per_node = 1;
    scenario.tensors = (1u << SIM_MAX_TENSORS) - 1;
    scenario.max_us = 300000000;
    world = world_create(&scenario);
    world->trainer[0].hold = HOLD_STEP;
    world->trainer[0].hold_step = 2;
    goes_on_at = 2000000;
    for (unsigned i = 1; i < 12; i++) {
        world->trainer[0].hold_pushes = i;
        assert_true(world_until(world, goes_on));
        goes_on_at += 245000;
        let_go(&world->trainer[0]);
        world->trainer[0].hold = HOLD_STEP;
    }
    let_go(&world->trainer[0]);
    run_on(world);
    for (unsigned i = 0; i < world->trainers; i++) {
        assert_string_equal(world->trainer[i].error.text, "");
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

/* A frame that takes longer than round_timeout is not overdue while its bytes come. */
static void test_line_that_is_slow(void **state)
{
    struct scenario scenario = failure_scenario(
        "{\"reduce\":\"sum\",\"density\":0.5,\"values\":\"f32\",\"round_timeout\":0.3,"
        "\"push_timeout\":600,\"wait_limit\":600}");
    struct world *world;

    (void)state;
    scenario.jobs = 1;
    scenario.ranks_per_node = 1;
    scenario.tensors = (1u << SIM_MAX_TENSORS) - 1;
    scenario.rate = 8;
    scenario.max_us = 60000000;
    world = world_create(&scenario);
    run_on(world);
    assert_false(world->violated);
    assert_true(world->now_us > scenario.steps * 600000);
    world_destroy(world);
}

static bool all_have_done(const struct world *world, uint64_t steps)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].step < steps) {
            return false;
        }
    }
    return true;
}

static bool all_know_their_steps(const struct world *world)
{
    return all_have_done(world, 3);
}

static bool all_are_nearly_done(const struct world *world)
{
    return all_have_done(world, world->scenario.steps - 1);
}

/* When a node heard last that another one waits; 0: never. */
static uint64_t last_report(const struct world *world)
{
    uint64_t last_us = 0;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const struct job *job = world->node[n].core->jobs;
        for (unsigned i = 0; i < job->members; i++) {
            const uint64_t told_us = job->member[i]->told_us;
            last_us = told_us > last_us ? told_us : last_us;
        }
    }
    return last_us;
}

/* Where steps take longer than a second, nodes soon know that, and report no waits. */
static void test_steps_that_are_long(void **state)
{
    struct scenario scenario = failure_scenario(PATIENT(""));
    struct world *world;
    uint64_t known_us;

    (void)state;
    scenario.nodes = 4;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 20;
    scenario.compute_us = 1500000;
    scenario.max_us = 300000000;
    world = world_create(&scenario);
    assert_true(world_until(world, all_know_their_steps));
    known_us = world->now_us;
    assert_true(last_report(world) > 0);
    assert_true(world_until(world, all_are_nearly_done));
    assert_true(world->now_us - known_us > 16 * scenario.compute_us);
    assert_true(last_report(world) <= known_us);
    world_destroy(world);
}

const struct CMUnitTest suite_patience[] = {
    cmocka_unit_test(test_who_is_waited_for),
    cmocka_unit_test(test_link_that_was_cut),
    cmocka_unit_test(test_node_that_was_stopped),
    cmocka_unit_test(test_rank_that_is_slow),
    cmocka_unit_test(test_line_that_is_slow),
    cmocka_unit_test(test_steps_that_are_long),
    {0},
};
