/*
 * Nodes that are stopped, killed or cut off while all nodes must agree. A node is away for 20 s,
 * which is beyond the timeout of a peer, at moments in every phase of a view change and of a policy
 * switch.
 * Five nodes are cut into three and two. No half goes on alone, and nobody diverges: the
 * invariants hold after every event. When the nodes are back, the job goes on.
 */
#include <stdio.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define STOPPED_US 20000000u
#define TURNS CASES_OF(5u, 17u, 151u) /* events from one moment to the next */

#define STEADY                                                                                     \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"push_timeout\":600,"                \
    "\"wait_limit\":600}"

static struct world *stopped_world(const char *policy, unsigned nodes, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.nodes = nodes;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 9;
    scenario.delay_us = 1500;
    scenario.max_us = 200000000;
    return world_create(&scenario);
}

static bool all_in_step_one(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING || world->trainer[i].step < 1) {
            return false;
        }
    }
    return true;
}

/* The node is away for a while: stopped, or killed and then started again. */
static void go_away(struct world *world, unsigned node, bool killed)
{
    if (killed) {
        node_crash(world, node);
        world_at(world, STOPPED_US, (struct sim_event){.type = SIM_RESTART, .node = node});
    } else {
        node_pause(world, node, STOPPED_US);
    }
}

/* Every rank takes all of its steps. */
static void expect_steps(struct world *world, unsigned stopped, unsigned turns)
{
    if (!world_run(world)) {
        (void)printf("# node %u stopped after %u events: %s\n", stopped, turns, world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        assert_string_equal(world->trainer[i].error.text, "");
        assert_int_equal(world->trainer[i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

/* ------------------------------------------------------------------ view changes */

static bool view_in_force(const struct world *world, uint32_t view)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (!check_find(world, n, 0, &info) || info.view < view ||
            strcmp(info.state, "active") != 0) {
            return false;
        }
    }
    return true;
}

/* A node restarts, and one goes away so many events later. False: the new view is in force on all
 * nodes before that. */
static bool away_in_view_change(unsigned restarted, unsigned stopped, bool killed, unsigned turns)
{
    struct world *world = stopped_world(STEADY, 3, 7 + turns);
    struct job_info info;
    bool within;

    assert_true(world_until(world, all_in_step_one));
    assert_true(check_find(world, (restarted + 1) % 3, 0, &info));
    node_crash(world, restarted);
    node_start(world, restarted);
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    within = !view_in_force(world, info.view + 1);
    go_away(world, stopped, killed);
    expect_steps(world, stopped, turns);
    return within;
}

static void at_moments_of_view_changes(bool killed)
{
    for (unsigned restarted = 0; restarted < 2; restarted++) {
        for (unsigned stopped = 0; stopped < 3; stopped++) {
            unsigned turns = stopped;
            while (away_in_view_change(restarted, stopped, killed, turns)) {
                turns += TURNS;
            }
            assert_true(turns > stopped); /* the first moment was before the new view */
        }
    }
}

static void test_stops_in_view_change(void **state)
{
    (void)state;
    at_moments_of_view_changes(false);
}

static void test_killed_in_view_change(void **state)
{
    (void)state;
    at_moments_of_view_changes(true);
}

/* ------------------------------------------------------------------ policy switches */

/* Node 1 asks for another policy, and a node goes away so many events later. False: the switch is
 * over before that. A switch of which a node is killed may be called off. */
static bool away_in_switch(unsigned stopped, bool killed, unsigned turns)
{
    struct world *world = stopped_world(STEADY, 3, 7 + turns);
    struct error err = {.code = ADTOPK_OK};
    uint64_t ticket;
    bool within;

    assert_true(world_until(world, all_in_step_one));
    ticket = operator_change(world, 1, 0, "{\"sparsifier\":\"dense\"}", &err);
    assert_true(ticket != 0);
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    within = operator_answer(world, ticket) == NULL;
    go_away(world, stopped, killed);
    while (!killed && operator_answer(world, ticket) == NULL) {
        assert_true(world_turn(world));
    }
    assert_true(killed || operator_answer(world, ticket)->code == ADTOPK_OK);
    expect_steps(world, stopped, turns);
    return within;
}

static void at_moments_of_switches(bool killed)
{
    for (unsigned stopped = 0; stopped < 3; stopped++) {
        unsigned turns = stopped;
        while (away_in_switch(stopped, killed, turns)) {
            turns += TURNS;
        }
        assert_true(turns > stopped);
    }
}

static void test_stops_in_switch(void **state)
{
    (void)state;
    at_moments_of_switches(false);
}

static void test_killed_in_switch(void **state)
{
    (void)state;
    at_moments_of_switches(true);
}

/* ------------------------------------------------------------------ halves */

static uint64_t halves_until_us;

static bool halves_waited(const struct world *world)
{
    return world->now_us >= halves_until_us;
}

/* Nodes 0 to 2 and nodes 3 and 4 lose each other. */
static void cut_in_two(struct world *world)
{
    for (unsigned from = 0; from < 5; from++) {
        for (unsigned to = 0; to < 5; to++) {
            flow_of(world, from, to)->cuts += (from < 3) != (to < 3) ? 1 : 0;
        }
    }
}

static void heal(struct world *world)
{
    for (unsigned from = 0; from < 5; from++) {
        for (unsigned to = 0; to < 5; to++) {
            flow_of(world, from, to)->cuts -= (from < 3) != (to < 3) ? 1 : 0;
        }
    }
}

static uint64_t steps_of_all(const struct world *world)
{
    uint64_t steps = 0;

    for (unsigned i = 0; i < world->trainers; i++) {
        steps += world->trainer[i].step;
    }
    return steps;
}

static struct world *world_in_two(const char *policy, unsigned turns)
{
    struct world *world = stopped_world(policy, 5, 7 + turns);

    assert_true(world_until(world, all_in_step_one));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    cut_in_two(world);
    return world;
}

/* Neither half takes a step while they are apart. */
static void test_halves_that_meet_again(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 200; turns += TURNS) {
        struct world *world = world_in_two(STEADY, turns);
        uint64_t steps;
        halves_until_us = world->now_us + 1000000;
        assert_true(world_until(world, halves_waited));
        steps = steps_of_all(world);
        assert_true(steps < (uint64_t)world->trainers * world->scenario.steps);
        halves_until_us += STOPPED_US;
        assert_true(world_until(world, halves_waited));
        assert_int_equal(steps_of_all(world), steps);
        heal(world);
        expect_steps(world, 5, turns);
    }
}

/* Ranks of both halves hear which node their own node does not reach, and of how many more. */
static void test_halves_that_stay_apart(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 200; turns += TURNS) {
        struct world *world = world_in_two(POLICY, turns);
        world->job[0].may_fail = true;
        assert_true(world_run(world));
        for (unsigned i = 0; i < world->trainers; i++) {
            const char *text = world->trainer[i].error.text;
            bool lower = strstr(text, "node 0") != NULL || strstr(text, "node 1") != NULL ||
                         strstr(text, "node 2") != NULL;
            bool upper = strstr(text, "node 3") != NULL || strstr(text, "node 4") != NULL;
            assert_int_equal(world->trainer[i].state, TRAINER_FAILED);
            assert_int_equal(world->trainer[i].error.code, ADTOPK_ERR_TIMEOUT);
            assert_true(world->trainer[i].node < 3 ? upper : lower);
            assert_non_null(
                strstr(text, world->trainer[i].node < 3 ? "like 1 more of the job's 5 nodes"
                                                        : "like 2 more of the job's 5 nodes"));
        }
        world_destroy(world);
    }
}

const struct CMUnitTest suite_stopped[] = {
    cmocka_unit_test(test_stops_in_view_change),
    cmocka_unit_test(test_killed_in_view_change),
    cmocka_unit_test(test_stops_in_switch),
    cmocka_unit_test(test_killed_in_switch),
    cmocka_unit_test(test_halves_that_meet_again),
    cmocka_unit_test(test_halves_that_stay_apart),
    {0},
};
