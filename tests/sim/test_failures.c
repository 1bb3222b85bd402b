/*
 * Single failures of a job that forms or runs: ranks that are lost, leave, or make forbidden calls;
 * nodes that come back without their store, or not at all. Every rank of the job on every node gets
 * an error that names the culprit, nothing hangs, and another job is not disturbed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/failure.h"

/* Ranks that are lost, or leave */

static void lost_while(enum trainer_hold hold, uint64_t step, unsigned pushes)
{
    struct world *world = failure_world(POLICY);

    world->trainer[3].hold = hold;
    world->trainer[3].hold_step = step;
    world->trainer[3].hold_pushes = pushes;
    assert_true(world_until(world, hold == HOLD_STEP && step == 2 ? others_run : later));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static void test_lost_when_open(void **state)
{
    (void)state;
    lost_while(HOLD_OPEN, 0, 0);
}

static void test_lost_when_committed(void **state)
{
    (void)state;
    lost_while(HOLD_COMMITTED, 0, 0);
}

static void test_lost_when_ready(void **state)
{
    (void)state;
    lost_while(HOLD_STEP, 0, 0);
}

static void test_lost_in_mid_step(void **state)
{
    (void)state;
    lost_while(HOLD_STEP, 2, 3);
}

/* All local ranks are there, but not those of node 0. */
static void test_lost_when_mapped(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[1].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static bool node_computes(const struct world *world)
{
    return world->node[1].computing > 0 && world->trainer[3].state == TRAINER_RUNNING &&
           world->trainer[3].step >= 1;
}

static void test_lost_while_computing(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, node_computes));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

static bool in_step_one(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 1 &&
           world->trainer[0].next_push > 0;
}

static bool view_changes(const struct world *world)
{
    struct job_info info;

    return check_find(world, 1, 0, &info) && info.view > 0 && strcmp(info.state, "prepared") == 0;
}

static void test_lost_in_a_view_change(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, in_step_one));
    node_crash(world, 0);
    node_start(world, 0);
    assert_true(world_until(world, view_changes));
    lose(&world->trainer[3]);
    expect_all(world, ADTOPK_ERR_PEER, "rank 3", "it was killed");
}

/* Rank 3 leaves; the others get an error that names it, or its node. */
static void expect_left(struct world *world, const char *culprit)
{
    expect_end(world);
    assert_int_equal(world->trainer[3].state, TRAINER_DONE);
    for (unsigned i = 0; i < 3; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_PEER, culprit, "left the job");
    }
    world_destroy(world);
}

static void test_leaves_in_mid_step(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].hold = HOLD_STEP;
    world->trainer[3].hold_step = 2;
    world->trainer[3].hold_pushes = 3;
    assert_true(world_until(world, others_run));
    leave(&world->trainer[3]);
    expect_left(world, "rank 3");
}

static void leaves_before(enum trainer_hold hold)
{
    struct world *world = failure_world(POLICY);

    world->trainer[3].hold = hold;
    assert_true(world_until(world, later));
    leave(&world->trainer[3]);
    expect_left(world, "rank 3");
}

static void test_leaves_before_it_began(void **state)
{
    (void)state;
    leaves_before(HOLD_OPEN);
    leaves_before(HOLD_COMMITTED);
}

/* A node's only rank leaves while another node's is not ready yet. */
static struct world *one_rank_a_node(void)
{
    struct scenario scenario = failure_scenario(POLICY);
    struct world *world;

    scenario.ranks_per_node = 1;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    return world;
}

static void test_leaves_alone_when_open(void **state)
{
    struct world *world = one_rank_a_node();

    (void)state;
    world->trainer[1].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    leave(&world->trainer[1]);
    expect_end(world);
    expect_rank(&world->trainer[0], ADTOPK_ERR_TIMEOUT, "rank 1", "");
    assert_int_equal(world->trainer[1].state, TRAINER_DONE);
    world_destroy(world);
}

static void test_leaves_alone_when_mapped(void **state)
{
    struct world *world = one_rank_a_node();

    (void)state;
    world->trainer[0].hold = HOLD_OPEN;
    assert_true(world_until(world, later));
    leave(&world->trainer[1]);
    let_go(&world->trainer[0]);
    expect_end(world);
    expect_rank(&world->trainer[0],
        world->trainer[0].error.code == ADTOPK_ERR_PEER ? ADTOPK_ERR_PEER : ADTOPK_ERR_TIMEOUT,
        "rank 1", "");
    assert_int_equal(world->trainer[1].state, TRAINER_DONE);
    world_destroy(world);
}

static bool steps_wait(const struct world *world)
{
    return world->trainer[3].step == 2 && world->trainer[0].step == 2 && world->now_us > 200000;
}

/* Between two steps a rank may go; whoever begins another step is told. */
static void test_leaves_between_steps(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = 2;
    }
    assert_true(world_until(world, steps_wait));
    leave(&world->trainer[3]);
    leave(&world->trainer[2]);
    for (unsigned i = 0; i < 2; i++) {
        world->trainer[i].hold = HOLD_NEVER;
        world_wake(world, &world->trainer[i], 100000);
    }
    expect_end(world);
    for (unsigned i = 0; i < 2; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_PEER, "node 1", "left the job");
        assert_int_equal(world->trainer[2 + i].state, TRAINER_DONE);
    }
    world_destroy(world);
}

/* What a rank may not do: it is refused, the sentence says why, and nothing else happens. */

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

/* Nodes */

static bool in_step_two(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 2 &&
           world->trainer[0].next_push > 0;
}

static void test_node_without_its_store(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    assert_true(world_until(world, in_step_two));
    node_crash(world, 1);
    node_forget(world, 1, 0);
    node_start(world, 1);
    expect_all(world, ADTOPK_ERR_LOST, "node 1", "residuals");
}

/* All of job 1 is done, and rank 0 waits in mid-step. */
static bool bystander_done(const struct world *world)
{
    for (unsigned i = 0; i < world->job[1].trainers; i++) {
        if (world->trainer[world->job[1].first + i].state != TRAINER_DONE) {
            return false;
        }
    }
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step == 2;
}

static void node_stays_away(const char *policy, enum adtopk_status status, bool lost)
{
    struct world *world = failure_world(policy);

    world->trainer[0].hold = HOLD_STEP;
    world->trainer[0].hold_step = 2;
    world->trainer[0].hold_pushes = 1;
    assert_true(world_until(world, bystander_done));
    world->node[1].cut = true;
    if (lost) {
        node_crash(world, 1);
        world->trainer[2].lost = world->trainer[3].lost = true;
        world->trainer[2].state = world->trainer[3].state = TRAINER_FAILED;
    }
    let_go(&world->trainer[0]);
    expect_end(world);
    for (unsigned i = 0; i < 4; i++) {
        if (!world->trainer[i].lost) {
            expect_rank(&world->trainer[i], status, i < 2 ? "node 1" : "node 0", "");
        }
    }
    world_destroy(world);
}

static void test_node_stays_away(void **state)
{
    (void)state;
    node_stays_away(POLICY, ADTOPK_ERR_TIMEOUT, true);
    node_stays_away(POLICY, ADTOPK_ERR_TIMEOUT, false);
}

static void test_node_lost_with_policy_fail(void **state)
{
    (void)state;
    node_stays_away(POLICY_WITH(",\"on_peer_loss\":\"fail\""), ADTOPK_ERR_PEER, true);
    node_stays_away(POLICY_WITH(",\"on_peer_loss\":\"fail\""), ADTOPK_ERR_PEER, false);
}

static void test_rank_that_never_pushes(void **state)
{
    struct world *world = failure_world(POLICY);

    (void)state;
    world->trainer[3].hold = HOLD_STEP;
    world->trainer[3].hold_step = 2;
    world->trainer[3].hold_pushes = 4;
    expect_all(world, ADTOPK_ERR_TIMEOUT, "rank 3", "push tensor");
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

/* ------------------------------------------------ nobody is to blame */

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
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
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
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
    assert_false(world->violated);
    assert_true(world->now_us > scenario.steps * 600000);
    world_destroy(world);
}

const struct CMUnitTest suite_failures[] = {
    cmocka_unit_test(test_lost_when_open),
    cmocka_unit_test(test_lost_when_committed),
    cmocka_unit_test(test_lost_when_mapped),
    cmocka_unit_test(test_lost_when_ready),
    cmocka_unit_test(test_lost_in_mid_step),
    cmocka_unit_test(test_lost_while_computing),
    cmocka_unit_test(test_lost_in_a_view_change),
    cmocka_unit_test(test_leaves_in_mid_step),
    cmocka_unit_test(test_leaves_before_it_began),
    cmocka_unit_test(test_leaves_alone_when_open),
    cmocka_unit_test(test_leaves_alone_when_mapped),
    cmocka_unit_test(test_leaves_between_steps),
    cmocka_unit_test(test_misuse),
    cmocka_unit_test(test_operations_of_one_node),
    cmocka_unit_test(test_operations_of_two_nodes),
    cmocka_unit_test(test_scales_of_one_node),
    cmocka_unit_test(test_scales_of_two_nodes),
    cmocka_unit_test(test_rejected),
    cmocka_unit_test(test_node_without_its_store),
    cmocka_unit_test(test_node_stays_away),
    cmocka_unit_test(test_node_lost_with_policy_fail),
    cmocka_unit_test(test_rank_that_never_pushes),
    cmocka_unit_test(test_who_is_waited_for),
    cmocka_unit_test(test_message_that_is_too_long),
    cmocka_unit_test(test_link_that_was_cut),
    cmocka_unit_test(test_node_that_was_stopped),
    cmocka_unit_test(test_rank_that_is_slow),
    cmocka_unit_test(test_line_that_is_slow),
    {0},
};
