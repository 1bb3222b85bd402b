/*
 * Calls that a rank may not make, and ranks that ask for different things. The error names the
 * culprit, and nothing else happens.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/failure.h"

static bool rank_three_waits(const struct world *world)
{
    return world->trainer[3].step == 1 && world->trainer[3].next_push == 2 && later(world);
}

static void expect_refusal(struct trainer *trainer, struct event event, enum adtopk_status status,
    const char *culprit, const char *second)
{
    struct error err = {0};

    assert_int_equal(trainer_request(trainer, &event, &err), status);
    assert_int_equal(err.code, status);
    assert_non_null(strstr(err.text, culprit));
    assert_non_null(strstr(err.text, second));
}

static void test_misuse(void **state)
{
    struct world *world = failure_world(POLICY);
    struct trainer *rank = &world->trainer[3];
    struct event push = {.type = EVENT_RANK_PUSH, .step = {.tensor = 0, .number = 1}};
    const struct tensor_spec another = {.name = "another", .shape = {.dims = 1, .size = {4}}};
    struct event event;

    (void)state;
    rank->hold = HOLD_STEP;
    rank->hold_step = 1;
    rank->hold_pushes = 2;
    assert_true(world_until(world, rank_three_waits));
    while (trainer_request(rank, &push, NULL) == ADTOPK_OK) {
        push.step.tensor++; /* finds one that was pushed */
    }
    expect_refusal(
        rank, push, ADTOPK_ERR_STATE, "rank 3", world->job[0].tensor[push.step.tensor].name);
    event = push;
    event.step.number = 2;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "step 2");
    event.step.number = 0;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "step 0");
    event.step = push.step;
    event.step.tensor = 99;
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "rank 3", "99");
    event.type = EVENT_RANK_WAIT;
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "rank 3", "99");
    event.step = push.step;
    event.step.number = 2;
    expect_refusal(
        rank, event, ADTOPK_ERR_STATE, "rank 3", world->job[0].tensor[push.step.tensor].name);
    event.type = EVENT_RANK_STEP_END;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "step 2");
    event.type = EVENT_RANK_COMMIT;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "since its last commit");
    event.type = EVENT_RANK_MAPPED;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "map");
    event = (struct event){.type = EVENT_RANK_REGISTER, .spec = &world->job[0].tensor[0]};
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "registered twice", "");
    event.spec = &another;
    assert_int_equal(trainer_request(rank, &event, NULL), ADTOPK_OK);
    event.type = EVENT_RANK_COMMIT;
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "between two steps");
    event = (struct event){.type = EVENT_RANK_OP, .op = {.number = 5, .kind = OP_BARRIER}};
    expect_refusal(rank, event, ADTOPK_ERR_STATE, "rank 3", "operation 5");
    event.op.number = 0;
    event.op.size = CORE_OP_SIZE + 4;
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "rank 3", "not possible");
    event.op.size = 4;
    event.op.root = 4;
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "rank 3", "root 4");
    event.op.root = 0;
    event.op.kind = (enum op_kind)9;
    expect_refusal(rank, event, ADTOPK_ERR_ARGUMENT, "rank 3", "kind 9");
    leave(rank);
    expect_end(world);
    world_destroy(world);
}

/* Operations that differ */

static void other_operations(unsigned first, unsigned second, const char *culprit)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    scenario.operations = 2;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    world->trainer[first].other_operation = true;
    world->trainer[second].other_operation = true;
    expect_end(world);
    for (unsigned i = 0; i < 4; i++) {
        expect_rank(&world->trainer[i], world->trainer[i].error.code, culprit, "");
        assert_true(world->trainer[i].error.code == ADTOPK_ERR_MISMATCH ||
                    world->trainer[i].error.code == ADTOPK_ERR_PROTOCOL);
    }
    world_destroy(world);
}

static void test_operations_of_one_node(void **state)
{
    (void)state;
    other_operations(3, 3, "ranks ");
}

static void test_operations_of_two_nodes(void **state)
{
    (void)state;
    other_operations(2, 3, "nodes ");
}

/* Loss scales that differ */

static void other_scales(unsigned first, unsigned second)
{
    static const char *const policies[] = {POLICY,
        POLICY_WITH(",\"sparsifier\":\"dense\",\"dense_collective\":\"pairwise\""),
        POLICY_WITH(",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\""),
        POLICY_WITH(",\"sparse_collective\":\"hierarchical\""),
        POLICY_WITH(",\"sparse_collective\":\"oktopk\",\"sparsifier\":\"topk\""),
        POLICY_WITH(",\"sparse_collective\":\"exclusive\",\"sparsifier\":\"topk\"")};

    for (unsigned i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        struct scenario scenario = failure_scenario(policies[i]);
        struct world *world;
        scenario.scales = SCALES_EXACT;
        world = world_create(&scenario);
        world->job[0].may_fail = true;
        world->trainer[first].other_scale = world->trainer[second].other_scale = 4;
        expect_all(world, ADTOPK_ERR_MISMATCH, "loss scales differ in step 0", "rank ");
    }
}

static void test_scales_of_one_node(void **state)
{
    (void)state;
    other_scales(3, 3);
}

static void test_scales_of_two_nodes(void **state)
{
    (void)state;
    other_scales(2, 3);
}

/* Where the policy rejects gradients that are not finite, the rank that pushed one is named. */
static void test_rejected(void **state)
{
    struct scenario scenario = failure_scenario(POLICY_WITH(",\"non_finite\":\"reject\""));
    char rank[32];

    (void)state;
    scenario.jobs = 1;
    for (scenario.nonfinite = 0.2; scenario.seed < 20; scenario.seed++) {
        struct world *world = world_create(&scenario);
        unsigned culprit = world->trainers, bad = 0;
        for (unsigned r = 0; r < world->trainers; r++) {
            for (unsigned t = 0; t < world->job[0].tensors; t++) {
                float last = 0;
                for (uint64_t i = 0; i < world->job[0].numel[t]; i++) {
                    last = isfinite(last) ? trainer_gradient(world, 0, 0, r, t, i) : last;
                }
                culprit = isfinite(last) ? culprit : r;
                bad += isfinite(last) ? 0 : 1;
            }
        }
        world->job[0].may_fail = true;
        if (bad == 1) { /* of several any may be the first */
            (void)snprintf(rank, sizeof(rank), "rank %u pushed ", culprit);
            expect_all(world, ADTOPK_ERR_ARGUMENT, rank, "non_finite");
        } else {
            world_destroy(world);
        }
    }
}

static void test_message_that_is_too_long(void **state)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    (void)state;
    scenario.jobs = 1;
    scenario.max_message = 300;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    assert_true(world_run(world));
    for (unsigned i = 0; i < world->trainers; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_ARGUMENT, "a message of", "the longest has 300");
    }
    world_destroy(world);
}

/* Every node has more to tell the others than fits into a message. */
static void test_control_message_that_is_too_long(void **state)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    (void)state;
    scenario.jobs = 1;
    scenario.max_control = 80;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    assert_true(world_run(world));
    for (unsigned i = 0; i < world->trainers; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_ARGUMENT, "tensors that it takes",
            "the longest message has 80");
    }
    world_destroy(world);
}

const struct CMUnitTest suite_misuse[] = {
    cmocka_unit_test(test_misuse),
    cmocka_unit_test(test_operations_of_one_node),
    cmocka_unit_test(test_operations_of_two_nodes),
    cmocka_unit_test(test_scales_of_one_node),
    cmocka_unit_test(test_scales_of_two_nodes),
    cmocka_unit_test(test_rejected),
    cmocka_unit_test(test_message_that_is_too_long),
    cmocka_unit_test(test_control_message_that_is_too_long),
    {0},
};
