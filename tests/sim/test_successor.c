/*
 * Processes of ranks end, and others take their places (policy on_rank_loss "wait"). No gradient is
 * lost or counted twice, the others wait, and a process that does not fit harms nobody.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define SEEDS CASES_OF(2000u, 120u, 5u)
#define WAITS_MORE(more)                                                                           \
    "{\"reduce\":\"sum\",\"density\":0.05,\"on_rank_loss\":\"wait\",\"wait_limit\":5" more "}"
#define WAITS WAITS_MORE(",\"values\":\"f32\"")
#define VICTIM 1u /* a rank of node 0, which has another one */
#define STEP 2u   /* in which its process ends */
#define AWAY_US 700000u

static const char *const policies[] = {WAITS, WAITS_MORE(",\"values\":\"f32\",\"scope\":\"rank\""),
    WAITS_MORE(",\"sparsifier\":\"dense\""),
    WAITS_MORE(",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\",\"bucket_bytes\":1"),
    WAITS_MORE(",\"values\":\"f32\",\"sparse_collective\":\"oktopk\"")};

static struct world *successor_world(const char *policy, unsigned pushes)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.jobs = 1;
    scenario.max_us = 60000000;
    world = world_create(&scenario);
    world->trainer[VICTIM].hold = HOLD_STEP;
    world->trainer[VICTIM].hold_step = STEP;
    world->trainer[VICTIM].hold_pushes = pushes;
    return world;
}

/* The victim has stopped, and the others wait for it, or soon do. */
static bool victim_stops(const struct world *world)
{
    const struct trainer *victim = &world->trainer[VICTIM];

    return victim->state == TRAINER_RUNNING && victim->step == STEP &&
           victim->next_push == victim->hold_pushes && world->trainer[0].step == STEP &&
           world->trainer[3].step == STEP;
}

static bool victim_has_ended(const struct world *world)
{
    return world->trainer[VICTIM].step == STEP && world->trainer[VICTIM].ended;
}

static void end_process(struct world *world)
{
    world->trainer[VICTIM].hold = HOLD_NEVER;
    trainer_end(&world->trainer[VICTIM], AWAY_US);
}

static void expect_success(struct world *world, const char *about)
{
    expect_rest(world, about);
    world_destroy(world);
}

/* Its successor has the same parameters, whatever was pushed before. */
static void test_ends_after_each_push(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        for (unsigned pushes = 0; pushes <= 5; pushes++) {
            struct world *world = successor_world(policies[p], pushes);
            assert_true(world_until(world, victim_stops));
            end_process(world);
            expect_success(world, policies[p]);
        }
    }
}

/* The process saved its parameters before the update of the last step. */
static void test_repeats_the_step_before(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        struct world *world = successor_world(policies[p], 0);
        assert_true(world_until(world, victim_stops));
        end_process(world);
        world->trainer[VICTIM].step--;
        expect_success(world, policies[p]);
    }
}

/* It ended the step, and never heard how the step closed. The step closes without it. */
static void test_ends_behind_its_step(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        struct world *world = successor_world(policies[p], 99);
        assert_true(world_until(world, victim_has_ended));
        end_process(world);
        expect_success(world, policies[p]);
    }
}

/* A gradient is not finite: the step is withdrawn, which needs the gradients of the process that
 * ended. */
static void test_withdrawn(void **state)
{
    struct scenario scenario = failure_scenario(WAITS);

    (void)state;
    scenario.jobs = 1;
    scenario.steps = 12;
    scenario.nonfinite = 0.1;
    scenario.ends = 0.05;
    scenario.max_us = 60000000;
    for (scenario.seed = 1; scenario.seed <= 10; scenario.seed++) {
        struct world *world = world_create(&scenario);
        assert_true(world_run(world));
        assert_true(world->stats.withdrawn > 0);
        world_destroy(world);
    }
}

/* Its other node's daemon is killed meanwhile, so there is another view. */
static void test_view_changes_meanwhile(void **state)
{
    (void)state;
    for (unsigned pushes = 0; pushes <= 5; pushes++) {
        struct world *world = successor_world(WAITS, pushes);
        assert_true(world_until(world, victim_stops));
        end_process(world);
        node_crash(world, 1);
        node_start(world, 1);
        expect_success(world, "a view");
    }
}

/* ------------------------------------------------------------------ what the others see */

static void expect_waiting(const struct world *world, unsigned node)
{
    struct job_info info;

    assert_true(core_job_info(world->node[node].core, 0, &info));
    assert_string_equal(info.waiting_for, "rank 1 on node 0, which ended");
    assert_int_equal(info.waiting.kind, WAIT_VACANT);
}

static void test_status(void **state)
{
    struct world *world = successor_world(WAITS, 2);
    struct rank_info rank;

    (void)state;
    assert_true(world_until(world, victim_stops));
    end_process(world);
    expect_waiting(world, 0);
    assert_true(core_rank_info(world->node[0].core, 1, VICTIM, &rank));
    assert_string_equal(rank.state, "vacant");
    world->trainer[VICTIM].hold = HOLD_OUT;
    until_us = world->now_us + 2500000;
    assert_true(world_until(world, waited));
    expect_waiting(world, 1);
    let_go(&world->trainer[VICTIM]);
    expect_success(world, "status");
}

/* Nobody comes back. */
static void expect_patience(const char *policy)
{
    struct world *world = successor_world(policy, 2);

    assert_true(world_until(world, victim_stops));
    world->job[0].may_fail = true;
    end_process(world);
    world->trainer[VICTIM].state = TRAINER_FAILED;
    world->trainer[VICTIM].lost = true;
    (void)world_run(world);
    assert_false(world->violated);
    for (unsigned i = 0; i < 4; i++) {
        if (i != VICTIM) {
            expect_rank(&world->trainer[i], ADTOPK_ERR_TIMEOUT, "rank 1 on node 0, which ended",
                "waited longer than wait_limit");
        }
    }
    assert_in_range(world->now_us, 5000000, 7000000);
    world_destroy(world);
}

/* The wait is as long as the policy says, however long a push may take. */
static void test_nobody_comes(void **state)
{
    (void)state;
    expect_patience(WAITS_MORE(",\"push_timeout\":600"));
    expect_patience(WAITS_MORE(",\"push_timeout\":1"));
}

/* ------------------------------------------------------------------ who is refused */

/* Tries to open the job; the session is not the trainer's. */
static void expect_refused(
    struct world *world, struct event_open open, enum adtopk_status status, const char *words)
{
    struct event event = {.type = EVENT_RANK_OPEN, .session = ++world->next_session, .open = open};
    struct error error;

    assert_int_equal(node_event(world, 0, &event, &error), status);
    if (strstr(error.text, words) == NULL) {
        fail_msg("'%s' is not in: %s", words, error.text);
    }
}

static void test_refusals(void **state)
{
    struct world *world = successor_world(WAITS, 2);
    struct event_open open = {.rank = VICTIM,
        .world_size = 4,
        .policy = NULL,
        .returns = true,
        .here = true,
        .comes_back = true,
        .first_step = STEP};
    struct event_open other;

    (void)state;
    assert_true(world_until(world, victim_stops));
    open.key = world->job[0].key;
    expect_refused(world, open, ADTOPK_ERR_STATE, "no job 'job' waits for it");
    end_process(world);
    other = open;
    other.comes_back = false;
    expect_refused(world, other, ADTOPK_ERR_STATE, "must say with which step it comes back");
    other = open;
    other.here = false;
    expect_refused(world, other, ADTOPK_ERR_STATE, "on the machine of its daemon");
    other = open;
    other.world_size = 5;
    expect_refused(world, other, ADTOPK_ERR_MISMATCH, "has 5 ranks, but it was opened with 4");
    other = open;
    other.first_step = STEP - 1; /* two pushes of the open step count already */
    expect_refused(world, other, ADTOPK_ERR_LOST, "and can repeat only that step");
    other.first_step = STEP + 1;
    expect_refused(world, other, ADTOPK_ERR_LOST, "in step 2");
    other = open;
    other.policy = "{\"density\":0.5}";
    expect_refused(world, other, ADTOPK_ERR_MISMATCH, "another policy than before");
    other = open;
    other.key.owner++;
    expect_refused(world, other, ADTOPK_ERR_STATE, "no job 'job' waits for it");
    other = open;
    other.rank = 0;
    expect_refused(world, other, ADTOPK_ERR_STATE, "no job 'job' waits for it");
    expect_success(world, "refusals");
}

static bool victim_is_back(const struct world *world)
{
    return world->trainer[VICTIM].state == TRAINER_FORMING;
}

static void test_twice_at_once(void **state)
{
    struct world *world = successor_world(WAITS, 2);
    struct event_open open = {.rank = VICTIM,
        .world_size = 4,
        .returns = true,
        .here = true,
        .comes_back = true,
        .first_step = STEP};

    (void)state;
    assert_true(world_until(world, victim_stops));
    open.key = world->job[0].key;
    end_process(world);
    world->trainer[VICTIM].hold = HOLD_COMMITTED;
    assert_true(world_until(world, victim_is_back));
    expect_refused(world, open, ADTOPK_ERR_MISMATCH, "is about to come back as rank 1");
    let_go(&world->trainer[VICTIM]);
    expect_success(world, "twice");
}

/* A process that fails on its way leaves the place for the next one. */
static void test_other_tensors(void **state)
{
    struct world *world = successor_world(WAITS, 2);
    struct event event = {.type = EVENT_RANK_OPEN, .session = UINT64_C(1) << 40};
    struct tensor_spec spec;
    struct error error;

    (void)state;
    assert_true(world_until(world, victim_stops));
    end_process(world);
    event.open = (struct event_open){.rank = VICTIM,
        .world_size = 4,
        .returns = true,
        .here = true,
        .comes_back = true,
        .first_step = STEP};
    event.open.key = world->job[0].key;
    for (unsigned fault = 0; fault < 3; fault++) {
        struct event request = {.session = ++event.session};
        assert_int_equal(node_event(world, 0, &event, &error), ADTOPK_OK);
        request.type = EVENT_RANK_REGISTER;
        request.spec = &spec;
        spec = world->trainer[VICTIM].tensor[0];
        spec.shape.size[0] += fault == 0 ? 1 : 0;
        assert_int_equal(
            node_event(world, 0, &request, &error), fault == 0 ? ADTOPK_ERR_MISMATCH : ADTOPK_OK);
        request.type = EVENT_RANK_COMMIT;
        assert_int_equal(node_event(world, 0, &request, &error), ADTOPK_ERR_MISMATCH);
        assert_non_null(strstr(error.text, "comes back to job 'job' with other tensors"));
        request.type = EVENT_RANK_PUSH;
        assert_int_equal(node_event(world, 0, &request, &error), ADTOPK_ERR_STATE);
        request.type = fault == 1 ? EVENT_RANK_LEAVE : EVENT_RANK_LOST;
        request.reason = "it was killed";
        assert_int_equal(node_event(world, 0, &request, &error), ADTOPK_OK);
    }
    expect_success(world, "other tensors");
}

/* Nobody has what it would have to repeat. */
static void test_cannot_wait(void **state)
{
    struct scenario scenario = failure_scenario(WAITS);
    struct world *world;

    (void)state;
    scenario.operations = 1;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    for (unsigned i = 1; i < 4; i++) {
        world->trainer[i].hold = HOLD_COMMITTED;
    }
    until_us = 500000;
    assert_true(world_until(world, waited));
    for (unsigned i = 1; i < 4; i++) {
        let_go(&world->trainer[i]);
    }
    while (!world->trainer[VICTIM].op_pending) {
        assert_true(world_turn(world));
    }
    lose(&world->trainer[VICTIM]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 1 is gone", "it was killed");
}

/* ------------------------------------------------------------------ at random */

static uint64_t deaths; /* in all runs */

static bool run_random(uint64_t seed, char found[SIM_TEXT])
{
    struct scenario scenario = failure_scenario(policies[seed % 5]);
    struct world *world;
    bool right;

    scenario.seed = seed;
    scenario.nodes = 1 + (unsigned)(seed % 4);
    scenario.ranks_per_node = 1 + (unsigned)(seed / 4 % 3);
    scenario.jobs = 1 + (unsigned)(seed % 2);
    scenario.steps = 6 + (unsigned)(seed % 7);
    scenario.ends = 0.02;
    scenario.skip = seed % 3 == 0 ? 0.2 : 0;
    scenario.wait = seed % 3 == 1 ? 0.5 : 0; /* who skips tensors would keep others waiting */
    scenario.loss = seed % 4 == 1 ? 0.05 : 0;
    scenario.cut_every_us = seed % 3 == 1 ? 400000 : 0;
    scenario.pause_every_us = seed % 4 == 1 ? 500000 : 0;
    scenario.nonfinite = seed % 6 == 2 ? 0.02 : 0;
    scenario.operator_every_us = seed % 3 == 2 ? 20000 : 0;
    scenario.compute_us = seed % 2 == 0 ? 20000 : 0;
    scenario.max_us = 200000000;
    world = world_create(&scenario);
    right = world_run(world);
    for (unsigned i = 0; i < world->trainers; i++) {
        deaths += world->trainer[i].back > 0 ? 1 : 0;
    }
    (void)snprintf(found, SIM_TEXT, "%s", world->violation);
    world_destroy(world);
    return right;
}

static void test_random(void **state)
{
    const uint64_t seeds = SEEDS;
    char found[SIM_TEXT];

    (void)state;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        if (!run_random(seed, found)) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, found);
        }
    }
    (void)printf("# %llu ranks came back\n", (unsigned long long)deaths);
    assert_true(deaths > seeds);
}

static void test_planted_arena(void **state)
{
    (void)state;
    losses_find(PLANTED_SUCCESSOR, "gradients of a process that ended", run_random);
}

const struct CMUnitTest suite_successor[] = {
    cmocka_unit_test(test_ends_after_each_push),
    cmocka_unit_test(test_repeats_the_step_before),
    cmocka_unit_test(test_ends_behind_its_step),
    cmocka_unit_test(test_withdrawn),
    cmocka_unit_test(test_view_changes_meanwhile),
    cmocka_unit_test(test_status),
    cmocka_unit_test(test_nobody_comes),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_twice_at_once),
    cmocka_unit_test(test_other_tensors),
    cmocka_unit_test(test_cannot_wait),
    cmocka_unit_test(test_random),
    cmocka_unit_test(test_planted_arena),
    {0},
};
