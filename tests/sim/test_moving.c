/*
 * Policies that move residuals between a far engine and host memory: nothing changes by that,
 * whoever dies meanwhile. A memory that is full refuses them.
 */
#include <stdio.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"
#include "tests/sim/far.h"

#define BOTH_FAR 5u /* a seed with which both nodes have far engines, as in test_far.c */
#define FAR_SEED 8u /* a seed with which node 0 has one */
#define MOVES 6u
#define RESTART_US 3000u

#define HOST "{\"engine\":\"host\"}"
#define NODE "{\"engine\":\"node\"}"

static const char *wanted; /* what is in the policy for which a test waits */

static bool all_have_it(const struct world *world)
{
    struct job_info info;
    bool all = true;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        all = all && check_find(world, n, 0, &info) && info.policy.version > 0 &&
              info.policy.next_version == 0 && strstr(info.policy.text, wanted) != NULL;
    }
    return all;
}

static bool all_are_there(const struct world *world)
{
    return world->node[0].core != NULL && world->node[1].core != NULL;
}

static bool all_run(const struct world *world)
{
    bool all = all_are_there(world);

    for (unsigned i = 0; i < world->trainers; i++) {
        all = all && world->trainer[i].state == TRAINER_RUNNING && world->trainer[i].step >= 1;
    }
    return all;
}

static struct world *moving_world(const char *policy, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.jobs = 1;
    scenario.steps = 60;
    scenario.max_us = 200000000;
    scenario.changed = strstr(policy, "momentum") != NULL;
    return world_create(&scenario);
}

static void kill_daemon(struct world *world, unsigned node)
{
    node_crash(world, node);
    world_at(world, RESTART_US, (struct sim_event){.type = SIM_RESTART, .node = node});
    (void)world_until(world, all_are_there);
}

/* Asks until a change is in force, and kills a daemon some events after the first time. */
static void move(struct world *world, unsigned number, unsigned turns, bool kills)
{
    struct error err;

    wanted = number % 2 == 0 ? "\"engine\":\"host\"" : "\"engine\":\"node\"";
    for (unsigned asked = 0; !all_have_it(world) && !world->violated && asked < 100; asked++) {
        (void)operator_change(world, number % 2, 0, number % 2 == 0 ? HOST : NODE, &err);
        for (unsigned i = 0; i < (asked == 0 ? turns : 40) && !world->violated; i++) {
            (void)world_turn(world);
        }
        if (asked == 0 && kills) {
            kill_daemon(world, 0);
        }
    }
    (void)world_until(world, all_have_it);
}

static uint64_t moved; /* how often residuals were, on any node */

/* What is not in force has no memory any more. */
static void expect_one_side(const struct world *world, bool in_host)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        for (unsigned part = 0; world->node[n].far && part < CORE_STORE_PARTS; part++) {
            const struct node_job *memory = &world->node[n].memory[0];

            if ((in_host ? (const void *)memory->far[part] : memory->image[part]) != NULL) {
                fail_msg("node %u still has part %u on the other side, in step %llu", n, part,
                    (unsigned long long)world->trainer[0].step);
            }
        }
    }
}

static void moves(const char *policy, uint64_t seed, unsigned turns, bool kills)
{
    struct world *world = moving_world(policy, seed);

    (void)world_until(world, all_run);
    for (unsigned number = 0; number < MOVES && !world->violated; number++) {
        move(world, number, turns, kills);
        expect_one_side(world, number % 2 == 0);
    }
    moved += world->stats.moves;
    if (!world_run(world)) {
        fail_msg("seed %llu, after %u turns, %s: %s", (unsigned long long)seed, turns, policy,
            world->violation);
    }
    world_destroy(world);
}

static void test_back_and_forth(void **state)
{
    static const char *const policies[] = {
        POLICY,
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}",
        "{\"reduce\":\"sum\",\"density\":0.05,\"scope\":\"rank\"}",
        "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"values\":\"f32\","
        "\"momentum\":0.5,\"momentum_masking\":false}",
        "{\"reduce\":\"sum\",\"density\":0.1,\"scope\":\"rank\",\"sparsifier\":\"topk\","
        "\"values\":\"f32\",\"momentum\":0.5,\"momentum_masking\":false}",
        "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"residual\":\"bf16\"}",
    };

    unsigned runs = 0;

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        moves(policies[p], BOTH_FAR, 0, false);
        for (unsigned turns = 0; turns < 300; turns += CASES_OF(5u, 37u, 151u)) {
            moves(policies[p], turns % 2 == 0 ? FAR_SEED : BOTH_FAR, turns, true);
            runs++;
        }
    }
    assert_true(moved >= MOVES * runs); /* of those with two engines twice as often */
}

static uint64_t asked_for; /* the ticket of the last request */

static bool is_answered(const struct world *world)
{
    return operator_answer(world, asked_for) != NULL;
}

/* The change is refused with the node's name, or is in force. */
static void ask(struct world *world, const char *policy, bool granted)
{
    struct error err;
    const struct error *answer;

    asked_for = operator_change(world, 1, 0, policy, &err);
    assert_true(asked_for != 0 && world_until(world, is_answered));
    answer = operator_answer(world, asked_for);
    assert_int_equal(answer->code, granted ? ADTOPK_OK : ADTOPK_ERR_MEMORY);
    assert_true(granted || strstr(answer->text, "node 0: ") == answer->text);
}

static bool wants_host;

static bool is_there(const struct world *world)
{
    struct job_info info;

    return check_find(world, 0, 0, &info) && info.policy.in_host == wants_host;
}

/* Node 0 has no memory there, in either direction: everything stays as it was, and goes on. */
static void test_no_memory(void **state)
{
    struct world *world = moving_world(POLICY, FAR_SEED);

    (void)state;
    (void)world_until(world, all_run);
    for (unsigned number = 0; number < 4; number++) {
        world->node[0].refuses = MEMORY_NO_STORE;
        ask(world, number % 2 == 0 ? HOST : NODE, false);
        assert_true(is_there(world));
        world->node[0].refuses = MEMORY_ALL;
        ask(world, number % 2 == 0 ? HOST : NODE, true);
        wants_host = !wants_host;
        assert_true(world_until(world, is_there));
    }
    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    world_destroy(world);
}

const struct CMUnitTest suite_moving[] = {
    cmocka_unit_test(test_back_and_forth),
    cmocka_unit_test(test_no_memory),
    {0},
};
