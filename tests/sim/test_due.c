/*
 * Checkpoints that operators ask for. All ranks hear of one before the same step, which every run
 * checks (operator_check_due()). Here operators ask several nodes at once, while the policy
 * changes, while nodes are lost, and a node that is about to die.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/job/due.h"
#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"
#include "tests/sim/suites.h"

#define SEEDS CASES_OF(24u, 12u, 5u)
#define SHRINK POLICY_WITH(",\"on_peer_loss\":\"shrink\",\"shrink_after\":1")

static struct scenario due_scenario(uint64_t seed)
{
    struct scenario scenario = failure_scenario(POLICY);

    scenario.seed = seed;
    scenario.nodes = 1 + (unsigned)(seed % 4);
    scenario.jobs = 1;
    scenario.steps = 14;
    scenario.delay_us = 1500;
    return scenario;
}

static bool due_trains(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING || world->trainer[i].step < 1) {
            return false;
        }
    }
    return true;
}

static struct world *due_world(const struct scenario *scenario)
{
    struct world *world = world_create(scenario);

    if (!world_until(world, due_trains)) {
        fail_msg("seed %llu: %s", (unsigned long long)scenario->seed, world->violation);
    }
    return world;
}

static uint64_t due_ask(struct world *world, unsigned node)
{
    struct error err = {.code = ADTOPK_OK};
    const uint64_t ticket = operator_checkpoint(world, node, 0, &err);

    if (ticket == 0) {
        fail_msg("seed %llu: %s", (unsigned long long)world->scenario.seed, err.text);
    }
    return ticket;
}

/* Before how many steps the ranks heard that they save. */
static unsigned due_count(const struct world *world)
{
    unsigned count = 0;

    for (unsigned step = 0; step <= world->scenario.steps; step++) {
        count += world->job[0].due[step] == 2 ? 1 : 0;
    }
    return count;
}

static void due_run(struct world *world)
{
    if (!world_run(world)) {
        fail_msg("seed %llu: %s", (unsigned long long)world->scenario.seed, world->violation);
    }
}

static bool due_was_answered(const struct world *world, uint64_t ticket)
{
    const struct error *answer = operator_answer(world, ticket);

    return answer != NULL && answer->code == ADTOPK_OK;
}

static void due_expect(const struct world *world, uint64_t ticket)
{
    const struct error *answer = operator_answer(world, ticket);

    if (!due_was_answered(world, ticket)) {
        fail_msg("seed %llu: %s", (unsigned long long)world->scenario.seed,
            answer != NULL ? answer->text : "no answer");
    }
}

/* Two nodes are asked at the same moment, and one of them again when it has answered: the ranks
 * save once for the first two, and once more. */
static void test_asked_of_every_node(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const struct scenario scenario = due_scenario(seed);
        struct world *world = due_world(&scenario);
        const unsigned one = (unsigned)(seed / 4 % scenario.nodes);
        const uint64_t first = due_ask(world, one);
        const uint64_t second = due_ask(world, scenario.nodes - 1);
        uint64_t again;

        while (operator_answer(world, first) == NULL) {
            assert_true(world_turn(world));
        }
        for (uint64_t step = world->trainer[0].step; world->trainer[0].step < step + 3;) {
            assert_true(world_turn(world));
        }
        again = due_ask(world, one);
        due_run(world);
        due_expect(world, first);
        due_expect(world, second);
        due_expect(world, again);
        assert_int_equal(due_count(world), 2);
        world_destroy(world);
    }
}

/* The checkpoint is not lost, whichever was asked for first, and neither is a change of the policy
 * that was proposed before it. A request for a change that meets the view of the checkpoint may be
 * refused. */
static void test_while_the_policy_changes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const struct scenario scenario = due_scenario(seed);
        const bool change_first = seed / 4 % 2 == 0;
        const unsigned other = scenario.nodes - 1;
        struct world *world = due_world(&scenario);
        struct error err = {.code = ADTOPK_OK};
        uint64_t change = 0, ticket = 0;

        for (unsigned i = 0; i < 2; i++) {
            if ((i == 0) == change_first) {
                change = operator_change(
                    world, change_first ? 0 : other, 0, "{\"sparsifier\":\"dense\"}", &err);
                assert_int_not_equal(change, 0);
            } else {
                ticket = due_ask(world, change_first ? other : 0);
            }
            for (uint64_t turns = seed % 3 * 5; turns > 0; turns--) {
                assert_true(world_turn(world));
            }
        }
        due_run(world);
        due_expect(world, ticket);
        assert_int_equal(due_count(world), 1);
        if (change_first) {
            due_expect(world, change);
        } else if (!due_was_answered(world, change)) {
            assert_int_equal(operator_answer(world, change)->code, ADTOPK_ERR_PEER);
        }
        world_destroy(world);
    }
}

/* Nodes crash, one after the other, and links lose packets. An answer that came is kept. If the
 * node that was asked died before it answered, nobody may have heard; nobody heard anything else.
 */
static void test_while_nodes_die(void **state)
{
    unsigned heard = 0, died = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 3u * SEEDS; seed++) {
        struct scenario scenario = due_scenario(seed);
        struct world *world;
        uint64_t ticket;

        scenario.loss = 0.05;
        scenario.duplicate = 0.05;
        scenario.away_us = 3000;
        scenario.max_crashes = 12;
        scenario.max_us = 60000000;
        world = due_world(&scenario);
        ticket = due_ask(world, (unsigned)(seed / 4 % scenario.nodes));
        for (unsigned n = 0; n < scenario.nodes; n++) {
            world_at(world, 1 + world_random(world, 4000),
                (struct sim_event){.type = SIM_CRASH, .node = n});
        }
        due_run(world);
        assert_true(due_count(world) <= 1);
        assert_true(!due_was_answered(world, ticket) || due_count(world) == 1);
        heard += due_count(world);
        died += due_was_answered(world, ticket) ? 0 : 1;
        world_destroy(world);
    }
    assert_true(heard > SEEDS && died > 0);
}

/* Under `shrink` a node is lost for good when another one has been asked: the others still hear. */
static void test_while_a_node_is_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct scenario scenario = due_scenario(seed);
        const unsigned asked = (unsigned)(seed % 3);
        const unsigned lost = (asked + 1 + (unsigned)(seed / 3 % 2)) % 3;
        struct world *world;
        uint64_t ticket;

        scenario.nodes = 3;
        scenario.policy = SHRINK;
        scenario.loses = true;
        scenario.max_us = 60000000;
        world = due_world(&scenario);
        ticket = due_ask(world, asked);
        for (uint64_t turns = seed / 2 % 12; turns > 0; turns--) {
            assert_true(world_turn(world));
        }
        lose_node(world, lost);
        due_run(world);
        due_expect(world, ticket);
        assert_int_equal(due_count(world), 1);
        world_destroy(world);
    }
}

static void test_refused(void **state)
{
    const struct scenario scenario = due_scenario(1);
    struct world *world = world_create(&scenario);
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_int_equal(operator_checkpoint(world, 0, 0, &err), 0); /* no rank has come yet */
    assert_int_equal(err.code, ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "not running"));
    if (!world_until(world, due_trains)) {
        fail_msg("%s", world->violation);
    }
    for (unsigned i = 0; i < DUE_ASKING_MAX; i++) {
        (void)due_ask(world, 0);
    }
    assert_int_equal(operator_checkpoint(world, 0, 0, &err), 0);
    assert_int_equal(err.code, ADTOPK_ERR_STATE);
    due_run(world);
    assert_int_equal(due_count(world), 1);
    world_destroy(world);
}

const struct CMUnitTest suite_due[] = {
    cmocka_unit_test(test_asked_of_every_node),
    cmocka_unit_test(test_while_the_policy_changes),
    cmocka_unit_test(test_while_nodes_die),
    cmocka_unit_test(test_while_a_node_is_lost),
    cmocka_unit_test(test_refused),
    {.name = NULL},
};
