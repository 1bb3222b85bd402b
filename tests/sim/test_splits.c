/*
 * A rank blocks on one tensor of a bucket while its daemon and others restart. Its node may have
 * contributed the whole bucket before, and others may have delivered it. No rank hangs.
 */
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define HELD_STEP 1u

/* Nodes 0 to 2, a rank each; rank 1 pushes all of step 1 and does not end it. */
static struct world *split_world(uint64_t seed)
{
    struct scenario scenario =
        failure_scenario("{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}");
    struct world *world;

    scenario.seed = seed;
    scenario.max_us = 600000000;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.loss = 0.3;
    scenario.delay_us = 1000;
    world = world_create(&scenario);
    world->trainer[1].hold = HOLD_STEP;
    world->trainer[1].hold_step = HELD_STEP;
    world->trainer[1].hold_pushes = world->job[0].tensors;
    return world;
}

static bool has_delivered(const struct trainer *trainer)
{
    for (unsigned t = 0; t < trainer->tensors; t++) {
        if (trainer->delivered[t] != HELD_STEP + 1) {
            return false;
        }
    }
    return true;
}

static bool first_delivered(const struct world *world)
{
    return has_delivered(&world->trainer[0]);
}

static bool pushed_again(const struct world *world)
{
    return world->trainer[1].state == TRAINER_RUNNING && world->trainer[1].next_push == 1;
}

static bool node_1_holds(const struct world *world)
{
    const struct trainer *trainer = &world->trainer[1];

    return trainer->state == TRAINER_RUNNING && trainer->step == HELD_STEP &&
           trainer->next_push == trainer->hold_pushes;
}

static bool view_changes(const struct world *world)
{
    struct job_info info;

    return check_find(world, 1, 0, &info) && strcmp(info.state, "prepared") == 0;
}

/* Blocks on the tensor that it has pushed. True if it was not delivered. */
static bool block(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_WAIT, .step.number = trainer->step};
    bool blocked = false;

    for (event.step.tensor = 0; event.step.tensor < trainer->tensors; event.step.tensor++) {
        bool delivered = trainer->delivered[event.step.tensor] == trainer->step + 1;
        if (trainer_request(trainer, &event, NULL) == ADTOPK_OK) {
            blocked = blocked || !delivered;
        }
    }
    return blocked;
}

/* Node 1 restarts when its contribution is in the sums of others; its rank then pushes one tensor.
 */
static void restart_node_1(struct world *world)
{
    struct trainer *trainer = &world->trainer[1];

    assert_true(world_until(world, first_delivered));
    node_crash(world, 1);
    trainer->hold_pushes = 1;
    (void)memset(trainer->delivered, 0, sizeof(trainer->delivered));
    node_start(world, 1);
    assert_true(world_until(world, pushed_again));
}

static void run_to_its_end(struct world *world, uint64_t seed)
{
    let_go(&world->trainer[1]);
    if (!world_run(world)) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, world->violation);
    }
    world_destroy(world);
}

/* Node 1 restarts when its contribution is in the sums of others, and node 2 when node 1 is about
 * to get copies of those. Returns whether rank 1 blocked while the view changed. */
static bool blocks_in_a_view_change(uint64_t seed)
{
    struct world *world = split_world(seed);
    bool blocked;

    restart_node_1(world);
    node_crash(world, 2);
    node_start(world, 2);
    assert_true(world_until(world, view_changes));
    blocked = block(&world->trainer[1]);
    run_to_its_end(world, seed);
    return blocked;
}

static void test_block_in_a_view_change(void **state)
{
    unsigned blocked = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        blocked += blocks_in_a_view_change(seed) ? 1 : 0;
    }
    assert_true(blocked > 5);
}

/* Node 1 restarts when its contribution is in the sums of others. It is about to get copies of
 * these when its rank blocks; node 2 may not know yet that there are copies. Returns whether rank 1
 * blocked before its copy came. */
static bool blocks_before_the_copy(uint64_t seed)
{
    struct world *world = split_world(seed);
    bool blocked;

    restart_node_1(world);
    blocked = !view_changes(world) && block(&world->trainer[1]);
    run_to_its_end(world, seed);
    return blocked;
}

static void test_block_before_the_copy(void **state)
{
    unsigned blocked = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= CASES(200, 60); seed++) {
        blocked += blocks_before_the_copy(seed) ? 1 : 0;
    }
    assert_true(blocked > 5);
}

/* ---- streams block on many tensors at once ---- */

static bool blocked_on[SIM_MAX_TENSORS];

/* Every tensor on which rank 1 blocks has its update. */
static bool unblocked(const struct world *world)
{
    const struct trainer *trainer = &world->trainer[1];

    for (unsigned t = 0; t < trainer->tensors; t++) {
        if (blocked_on[t] && trainer->delivered[t] != trainer->step + 1) {
            return false;
        }
    }
    return true;
}

/* Blocks on every tensor that it has pushed. Returns how many these are. */
static unsigned block_on_all(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_WAIT, .step.number = trainer->step};
    unsigned count = 0;

    for (event.step.tensor = 0; event.step.tensor < trainer->tensors; event.step.tensor++) {
        blocked_on[event.step.tensor] = trainer_request(trainer, &event, NULL) == ADTOPK_OK;
        count += blocked_on[event.step.tensor];
    }
    return count;
}

/* The view changes because of node 2, in mid-step. Rank 1 has pushed some tensors of each bucket,
 * blocks on them, and pushes no others until it has their updates. */
static void test_block_on_many_in_a_view_change(void **state)
{
    struct scenario scenario = failure_scenario(
        "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"bucket_bytes\":3000}");
    unsigned blocked = 0;

    (void)state;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.max_us = 600000000;
    for (scenario.seed = 1; scenario.seed <= 40; scenario.seed++) {
        struct world *world = world_create(&scenario);
        struct trainer *trainer = &world->trainer[1];

        trainer->hold = HOLD_STEP;
        trainer->hold_step = HELD_STEP;
        trainer->hold_pushes = world->job[0].tensors / 2 + 1;
        assert_true(world_until(world, node_1_holds));
        node_crash(world, 2);
        node_start(world, 2);
        assert_true(world_until(world, view_changes));
        blocked += block_on_all(trainer) > 1 ? 1 : 0;
        assert_true(world_until(world, unblocked));
        run_to_its_end(world, scenario.seed);
    }
    assert_true(blocked > 5);
}

/* Node 1 has sent its part of the only bucket, and works on that of node 0. */
static bool node_1_combines(const struct world *world)
{
    struct job_info info;

    return check_find(world, 1, 0, &info) && info.payload_bytes > 0 &&
           world->node[1].computing > 0 && world->trainer[2].next_push == 1;
}

/* In a ring, node 1 combines the frames of node 0 while rank 2 has pushed only one tensor, and
 * blocks on that. The split comes while the compute runs, which test_coverage() sees. */
static void test_split_while_combining(void **state)
{
    struct scenario scenario =
        failure_scenario(POLICY_WITH(",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\""));

    (void)state;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.compute_us = 10000;
    for (scenario.seed = 1; scenario.seed <= 10; scenario.seed++) {
        struct world *world = world_create(&scenario);
        world->trainer[2].hold = HOLD_STEP;
        world->trainer[2].hold_pushes = 1;
        assert_true(world_until(world, node_1_combines));
        assert_true(block(&world->trainer[2]));
        let_go(&world->trainer[2]);
        assert_true(world_run(world));
        world_destroy(world);
    }
}

const struct CMUnitTest suite_splits[] = {
    cmocka_unit_test(test_block_in_a_view_change),
    cmocka_unit_test(test_block_before_the_copy),
    cmocka_unit_test(test_block_on_many_in_a_view_change),
    cmocka_unit_test(test_split_while_combining),
    {0},
};
