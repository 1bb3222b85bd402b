/*
 * Jobs that cannot form: ranks that do not fit together, that are missing, or that get no memory.
 * Every rank that can be told gets a sentence that names the culprit.
 */
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

/* One rank is refused, the others wait for it in vain. */
static void expect_refused(struct world *world, unsigned refused, enum adtopk_status status,
    const char *culprit, const char *missing)
{
    expect_end(world);
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        if (i == refused) {
            expect_rank(&world->trainer[i], status, culprit, "");
        } else {
            expect_rank(&world->trainer[i], ADTOPK_ERR_TIMEOUT, missing, "");
        }
    }
    world_destroy(world);
}

/* Lets all ranks open the job before any goes on: none comes so late that the job is over. */
static void together(struct world *world)
{
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        world->trainer[i].hold = HOLD_OPEN;
    }
    assert_true(world_until(world, later));
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        let_go(&world->trainer[i]);
    }
}

/* Makes sure that the first rank of a node is there before the second. */
static void first_then(struct world *world, unsigned late)
{
    world->trainer[late].hold = HOLD_OUT;
    while (world->trainer[late ^ 1u].state == TRAINER_OUT) {
        (void)world_turn(world);
    }
    let_go(&world->trainer[late]);
}

static void test_world_size_on_one_node(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].says_world_size = 5;
    first_then(world, 1);
    expect_refused(world, 1, ADTOPK_ERR_MISMATCH, "rank 1", "rank 1");
}

static void test_world_size_of_two_nodes(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[2].says_world_size = world->trainer[3].says_world_size = 5;
    together(world);
    expect_all(world, ADTOPK_ERR_MISMATCH, "rank 2 on node 1 ", "rank 0 on node 0 ");
}

static void test_rank_twice_on_one_node(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].says_rank = 0;
    first_then(world, 1);
    expect_refused(world, 1, ADTOPK_ERR_MISMATCH, "rank 0", "rank 1");
}

static void test_rank_on_two_nodes(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[2].says_rank = 1; /* and nobody is rank 2 */
    together(world);
    expect_all(world, ADTOPK_ERR_MISMATCH, "rank 1", "node");
}

static void test_another_user(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].says_owner = 2000;
    expect_end(world);
    for (unsigned i = 0; i < 4; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_TIMEOUT, i == 1 ? "rank 0, 2, 3" : "rank 1", "");
    }
    world_destroy(world);
}

static void test_impossible_rank(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].says_rank = 4;
    expect_refused(world, 3, ADTOPK_ERR_ARGUMENT, "rank 4", "rank 3");
}

static void test_policy_on_one_node(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].says_policy = POLICY_WITH(",\"interleave\":false");
    first_then(world, 1);
    expect_refused(world, 1, ADTOPK_ERR_MISMATCH, "rank 1", "rank 1");
}

static void test_policy_of_two_nodes(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[2].says_policy = world->trainer[3].says_policy =
        POLICY_WITH(",\"interleave\":false");
    together(world);
    expect_all(world, ADTOPK_ERR_MISMATCH, "policy", "node 1");
}

static void test_policy_that_is_none(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].says_policy = "{\"densty\":0.1}";
    expect_refused(world, 3, ADTOPK_ERR_POLICY, "densty", "rank 3");
}

/* Ways in which one rank's tensors differ; the sentence names tensor 1, or the one too many. */
enum difference { OTHER_NAME, OTHER_SHAPE, OTHER_DTYPE, OTHER_FORMS, FEWER, MORE, DIFFERENCES };

static void change(struct trainer *trainer, enum difference difference)
{
    struct tensor_spec *spec = &trainer->tensor[1];

    switch (difference) {
    case OTHER_NAME: spec->name[3] = 'X'; break;
    case OTHER_SHAPE: spec->shape.size[0]++; break;
    case OTHER_DTYPE: spec->dtype = DTYPE_BF16; break;
    case OTHER_FORMS: spec->forms = spec->forms % 3 + 1; break;
    case FEWER: trainer->tensors--; break;
    default:
        trainer->tensor[trainer->tensors] = trainer->tensor[0];
        (void)strcpy(trainer->tensor[trainer->tensors++].name, "too.many");
        break;
    }
}

static void test_tensors_on_one_node(void **state)
{
    static const char *const said[DIFFERENCES] = {"'fc.Xias' has the place of 'fc.bias'",
        "'fc.bias' is f32 [13] and not f32 [12]", "'fc.bias' is bf16 [12] and not f32 [12]",
        "'fc.bias' asks for other forms of its update", "'head.bias' is registered on only one",
        "'too.many' is registered on only one"};

    (void)state;
    for (unsigned d = 0; d < DIFFERENCES; d++) {
        struct world *world = failure_world(POLICY);
        change(&world->trainer[1], (enum difference)d);
        together(world);
        expect_all(world, ADTOPK_ERR_MISMATCH, said[d], "ranks 0 and 1: tensor '");
    }
}

static void test_tensors_of_two_nodes(void **state)
{
    static const char *const named[DIFFERENCES] = {
        "tensor 1", "tensor 1", "tensor 1", "tensor 1", "number 4", "number 5"};

    (void)state;
    for (unsigned d = 0; d < DIFFERENCES; d++) {
        struct world *world = failure_world(POLICY);
        change(&world->trainer[2], (enum difference)d);
        change(&world->trainer[3], (enum difference)d);
        together(world);
        expect_all(world, ADTOPK_ERR_MISMATCH, named[d], "node 1");
    }
}

static void test_tensors_that_are_none(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 5; kind++) {
        struct world *world = failure_world(POLICY);
        struct tensor_spec *spec = &world->trainer[3].tensor[1];
        const char *culprit = "fc.bias";
        switch (kind) {
        case 0: spec->dtype = (enum dtype)99; break;
        case 1: spec->shape.size[0] = 0; break;
        case 2: spec->shape.dims = 1000; break;
        case 3:
            (void)memset(spec->name, 'x', sizeof(spec->name));
            culprit = "tensor 1";
            break;
        default:
            spec->name[0] = '\0';
            culprit = "tensor 1";
            break;
        }
        together(world);
        expect_end(world);
        expect_rank(&world->trainer[3], ADTOPK_ERR_ARGUMENT, culprit, "");
        for (unsigned i = 0; i < 3; i++) { /* its process ends */
            expect_rank(&world->trainer[i], ADTOPK_ERR_PEER, "rank 3", "refused");
        }
        world_destroy(world);
    }
}

static void test_missing_rank(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].hold = HOLD_OUT;
    world->trainer[3].state = TRAINER_FAILED; /* it never comes */
    expect_end(world);
    for (unsigned i = 0; i < 3; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_TIMEOUT, "rank 3", "");
    }
    world_destroy(world);
}

/* Memory */

static void test_no_gradients(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->node[1].refuses = MEMORY_NO_GRADIENTS;
    expect_end(world);
    assert_true(world->trainer[2].error.code == ADTOPK_ERR_MEMORY ||
                world->trainer[3].error.code == ADTOPK_ERR_MEMORY);
    world_destroy(world);
}

static void test_no_store(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->node[1].refuses = MEMORY_NO_STORE;
    together(world);
    expect_all(world, ADTOPK_ERR_MEMORY, "node 1", "");
}

static void test_no_results(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->node[1].refuses = MEMORY_NO_RESULTS;
    together(world);
    expect_all(world, ADTOPK_ERR_MEMORY, "node 1", "");
}

/* Many nodes, of whose packets every third is lost, form, train and end; bounds.c counts what they
 * say. */
static void test_many_nodes(void **state)
{
    struct scenario scenario = failure_scenario(POLICY);

    (void)state;
    scenario.policy = "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}";
    scenario.nodes = CASES_OF(64, 32, 24);
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 2;
    scenario.tensors = 0x060;
    scenario.loss = 0.3;
    scenario.linger_us = 300000;
    scenario.max_us = 600000000;
    assert_true(scenario_run(&scenario, true));
}

/* At once and later: the world's seed says which. */
static void test_no_updates(void **state)
{
    (void)state;
    for (unsigned skipped = 0; skipped < 8; skipped++) {
        struct world *world = failure_world(POLICY);

        world->node[1].refuses = MEMORY_NO_UPDATES;
        world->node[1].reservations = skipped;
        together(world);
        expect_all(world, ADTOPK_ERR_MEMORY, "node 1", "");
    }
}

const struct CMUnitTest suite_forming[] = {
    cmocka_unit_test(test_many_nodes),
    cmocka_unit_test(test_world_size_on_one_node),
    cmocka_unit_test(test_world_size_of_two_nodes),
    cmocka_unit_test(test_rank_twice_on_one_node),
    cmocka_unit_test(test_rank_on_two_nodes),
    cmocka_unit_test(test_another_user),
    cmocka_unit_test(test_impossible_rank),
    cmocka_unit_test(test_policy_on_one_node),
    cmocka_unit_test(test_policy_of_two_nodes),
    cmocka_unit_test(test_policy_that_is_none),
    cmocka_unit_test(test_tensors_on_one_node),
    cmocka_unit_test(test_tensors_of_two_nodes),
    cmocka_unit_test(test_tensors_that_are_none),
    cmocka_unit_test(test_missing_rank),
    cmocka_unit_test(test_no_gradients),
    cmocka_unit_test(test_no_store),
    cmocka_unit_test(test_no_results),
    cmocka_unit_test(test_no_updates),
    {0},
};
