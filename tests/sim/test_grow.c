/*
 * Nodes that join a job while it trains, under the policy "grow".
 *
 * Each node of a job is lost and comes back, with every collective. All ranks take all steps from
 * then on, with the same bits on all nodes, and in the step in which the newcomer watches the mean
 * is over the others. At the end, element by element: pushed gradients == updates + residuals + the
 * residual that was lost. Newcomers and members are away in every phase.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/growing.h"

static const char *const policies[] = {
    SPARSE("allgather"),
    SUMS ",\"sparsifier\":\"adtopk\"" GROW,
    SPARSE("balanced"),
    SPARSE("oktopk"),
    SPARSE("hierarchical"),
    SPARSE("exclusive"),
    SPARSE("nccl-allgather"),
    SUMS ",\"sparsifier\":\"randomk\"" GROW,
    DENSE("allreduce"),
    DENSE("one-shot"),
    DENSE("pairwise"),
    DENSE("ring"),
    DENSE("halving-doubling"),
    DENSE("nccl-allreduce"),
};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

/* steps: that the lost node's ranks took part in. sent: their last contribution is in an update. */
static bool is_lost(const struct world *world, const double *lost, unsigned node, uint64_t steps,
    bool sent, unsigned t, uint64_t offset)
{
    for (uint64_t i = 0; i < world->job[0].numel[t]; i++) {
        const double is = grow_missing(world, t, offset + i, i, node, steps);
        if (is != lost[offset + i] && !(sent && is == 0)) {
            return false;
        }
    }
    return true;
}

static void expect_mass(
    const struct world *world, const double *lost, unsigned node, uint64_t steps, const char *about)
{
    const struct sim_job *job = &world->job[0];
    uint64_t offset = 0;

    for (unsigned t = 0; t < job->tensors; t++) {
        if (!is_lost(world, lost, node, steps, false, t, offset) &&
            !is_lost(world, lost, node, steps + 1, true, t, offset)) {
            (void)printf("# %s: tensor %u\n", about, t);
            fail();
        }
        offset += job->numel[t];
    }
}

static void rejoins(const char *policy, unsigned node, unsigned ranks, uint64_t seed)
{
    struct world *world = growing_world(policy, 4, ranks, seed);
    const size_t size = world->job[0].elements * sizeof(double);
    double *lost = sim_alloc(size);
    char about[300];
    uint64_t steps;

    (void)snprintf(about, sizeof(about), "node %u, %u ranks, seed %llu, %s", node, ranks,
        (unsigned long long)seed, policy);
    assert_true(world_until(world, all_run_step_one));
    for (unsigned i = 0; i < seed % 40; i++) {
        assert_true(world_turn(world));
    }
    grow_hold_others(world, node, STEPS - 2);
    steps = world->trainer[node * ranks].step;
    lose_node(world, node);
    (void)memcpy(lost, world->job[0].residual + node * world->job[0].elements, size);
    assert_true(world_until(world, grow_is_smaller));
    grow_come_back(world, node);
    if (!world_until(world, grow_has_joined)) {
        (void)printf("# %s: %s\n", about, world->violation);
        fail();
    }
    grow_release(world);
    expect_rest(world, about);
    expect_mass(world, lost, node, steps, about);
    free(lost);
    world_destroy(world);
}

static void test_rejoins(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        for (unsigned node = 0; node < 4; node += CASES(1u, 3u)) {
            rejoins(policies[p], node, 1 + (unsigned)(p + node) % 2, 31 + p * 4 + node);
        }
    }
}

/* The daemon and the ranks of a node are killed, and others are there before it was dropped. What
 * it had is lost. The lowest node would coordinate, if it came back to the run. */
static void test_comes_back_at_once(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        const unsigned node = i % 2 == 0 ? 0 : 2;
        struct world *world = growing_world(policies[i], 3 + i / 4, 1, 71 + 2 * i);

        assert_true(world_until(world, all_run_step_one));
        for (unsigned turn = 0; turn < 23 * i; turn++) {
            assert_true(world_turn(world));
        }
        grow_hold_others(world, node, STEPS - 2);
        world->job[0].bent = true;
        lose_node(world, node);
        grow_come_back(world, node);
        if (!world_until(world, grow_has_joined)) {
            fail_msg("node %u, %s: %s", node, policies[i], world->violation);
        }
        grow_release(world);
        expect_rest(world, "at once");
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ the mean */

/* With a dense mean every update is known: over the ranks that take part in its step. */
static bool means_fit(const struct world *world, const uint64_t ranks[STEPS])
{
    const struct sim_job *job = &world->job[0];
    uint64_t place = 0;
    bool fit = true;

    for (unsigned t = 0; t < job->tensors; t++) {
        for (uint64_t i = 0; i < job->numel[t]; i++, place++) {
            double sum = 0;
            for (uint64_t s = 0; s < STEPS; s++) {
                for (unsigned r = 0; r < job->trainers; r++) {
                    sum += trainer_takes_part(world, 0, s, r)
                               ? (double)trainer_gradient(world, 0, s, r, t, i) * job->trainers /
                                     (double)ranks[s]
                               : 0;
                }
            }
            fit = fit && fabs(sum - job->applied[place]) < 1e-4 * (1 + fabs(sum));
        }
    }
    return fit;
}

static bool all_hold(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (!trainer->lost && (trainer->state != TRAINER_RUNNING ||
                                  trainer->step != trainer->hold_step || trainer->called == 0)) {
            return false;
        }
    }
    return world->now_us > 1000000;
}

/* Rank 2 is lost at rest before step 3, and comes back at rest before step 5: step 5 is the one in
 * which it watches. */
static bool try_mean(uint64_t seed, char *found)
{
    const uint64_t ranks[STEPS] = {4, 4, 4, 3, 3, 3, 4, 4};
    struct world *world = growing_world(MEAN, 4, 1, 10 + 2 * seed);
    bool right;

    grow_hold_others(world, 4, 3);
    assert_true(world_until(world, all_hold));
    lose_node(world, 2);
    grow_hold_others(world, 2, 5);
    world->trainer[2].step = 2; /* it took part in three steps */
    grow_release(world);
    grow_hold_others(world, 2, 5);
    assert_true(world_until(world, all_hold));
    grow_come_back(world, 2);
    right = world_until(world, grow_has_joined);
    grow_release(world);
    right = right && world_run(world) && world->trainer[2].since == 6 && means_fit(world, ranks);
    (void)snprintf(found, SIM_TEXT, "rank 2 takes part from step %llu, in other means",
        (unsigned long long)world->trainer[2].since);
    world_destroy(world);
    return right;
}

static void test_grown_mean(void **state)
{
    char found[SIM_TEXT];

    (void)state;
    assert_true(try_mean(1, found));
}

static void test_planted_since(void **state)
{
    (void)state;
    losses_find(PLANTED_SINCE, "newcomer that does not watch", try_mean);
}

/* ------------------------------------------------------------------ in every phase */

static bool proposed_anew(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (world->node[n].core != NULL && check_find(world, n, 0, &info) &&
            strcmp(info.state, "prepared") == 0) {
            return true;
        }
    }
    return grow_has_joined(world);
}

enum absence { CRASHES, COMES_BACK, PAUSES, ABSENCES };

static void go_away(struct world *world, unsigned node, enum absence how)
{
    const uint64_t for_us = how == COMES_BACK ? 300000 : 20000000;

    if (how == PAUSES) {
        node_pause(world, node, for_us);
        return;
    }
    node_crash(world, node);
    world_at(world, for_us, (struct sim_event){.type = SIM_RESTART, .node = node});
}

static bool all_over(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state < TRAINER_DONE) {
            return false;
        }
    }
    return true;
}

/* A node of five is lost and joins again. So many events later a node is away for a while: the
 * newcomer itself, or another. All others take all of their steps. False: the newcomer takes part
 * by then. */
static bool away_in_growth(unsigned newcomer, unsigned away, enum absence how, unsigned turns)
{
    struct world *world = growing_world(policies[turns % POLICIES], 5, 1, 3 + turns);
    bool within, right;

    world->scenario.grows = true;
    world->job[0].outcome =
        sim_alloc(world->scenario.nodes * (STEPS + 1) * sizeof(*world->job[0].outcome));
    assert_true(world_until(world, all_run_step_one));
    lose_node(world, newcomer);
    assert_true(world_until(world, grow_is_smaller));
    grow_come_back(world, newcomer);
    assert_true(world_until(world, proposed_anew));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    within = world->trainer[newcomer].newcomer;
    go_away(world, away, how);
    right = world_run(world) && all_over(world);
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        right = right && (trainer->state == TRAINER_DONE || i == away || i == newcomer);
    }
    for (unsigned i = 0; !right && i < world->trainers; i++) {
        (void)printf("# %u joins, %u is away (%u) after %u: %s; rank %u, state %d: %s\n", newcomer,
            away, (unsigned)how, turns, world->violation, i, (int)world->trainer[i].state,
            world->trainer[i].error.text);
    }
    assert_true(right);
    world_destroy(world);
    return within;
}

static void test_away_in_growth(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * 5 * ABSENCES; i += CASES(1u, 31u)) {
        const unsigned newcomer = i % 2 == 0 ? 0 : 4;
        unsigned turns = i % CASES_OF(31u, 263u, 263u);
        while (away_in_growth(newcomer, i / 2 % 5, (enum absence)(i / 10), turns)) {
            turns += CASES_OF(31u, 263u, 263u);
        }
    }
}

/* ------------------------------------------------------------------ two of them, and none */

/* Two nodes of five join, one a little later than the other. */
static void test_two_join(void **state)
{
    static const unsigned pairs[][2] = {{0, 1}, {1, 0}, {3, 4}, {4, 3}};

    (void)state;
    for (unsigned p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        struct world *world = growing_world(policies[p], 5, 1, 31 + 2 * p);
        assert_true(world_until(world, all_run_step_one));
        grow_hold_others(world, pairs[p][0], STEPS - 2);
        world->trainer[pairs[p][1]].hold = HOLD_NEVER;
        lose_node(world, pairs[p][0]);
        lose_node(world, pairs[p][1]);
        world->job[0].bent = true; /* what the two had in their residuals is lost */
        assert_true(world_until(world, grow_is_three));
        grow_come_back(world, pairs[p][0]);
        until_us = world->now_us + 300000;
        assert_true(world_until(world, waited));
        grow_come_back(world, pairs[p][1]);
        if (!world_until(world, grow_has_joined)) {
            (void)printf("# nodes %u and %u: %s\n", pairs[p][0], pairs[p][1], world->violation);
            fail();
        }
        grow_release(world);
        expect_rest(world, "two");
        world_destroy(world);
    }
}

static bool is_one(const struct world *world)
{
    return grow_nodes(world) == 1;
}

/* Node 0 alone trains, and two others watch, when it is lost. They have neither parameters nor
 * contributions, although they are more than half of the view. */
static void test_all_others_watch(void **state)
{
    struct world *world = growing_world(MEAN, 3, 1, 15);

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, 2, STEPS - 2);
    world->trainer[1].hold = HOLD_NEVER;
    world->job[0].bent = true;
    lose_node(world, 2);
    assert_true(world_until(world, grow_is_smaller));
    lose_node(world, 1);
    assert_true(world_until(world, is_one));
    grow_come_back(world, 1);
    grow_come_back(world, 2);
    assert_true(world_until(world, grow_has_joined));
    node_crash(world, 0);
    world->trainer[0].lost = true;
    world->trainer[0].state = TRAINER_FAILED;
    assert_true(world_run(world));
    expect_rank(&world->trainer[1], ADTOPK_ERR_TIMEOUT, "node 0, which does not answer", "");
    expect_rank(&world->trainer[2], ADTOPK_ERR_TIMEOUT, "node 0, which does not answer", "");
    world_destroy(world);
}

/* The newcomer's rank leaves while it watches. The others do not notice. */
static void test_newcomer_leaves(void **state)
{
    struct world *world = growing_world(MEAN, 4, 1, 13);

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, 2, STEPS - 2);
    lose_node(world, 2);
    world->job[0].bent = true;
    assert_true(world_until(world, grow_is_smaller));
    grow_come_back(world, 2);
    assert_true(world_until(world, grow_has_joined));
    assert_true(world->trainer[2].newcomer);
    leave(&world->trainer[2]);
    world->trainer[2].lost = true;
    grow_release(world);
    expect_rest(world, "leaves");
    world_destroy(world);
}

static bool at_end(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (!trainer->lost && (trainer->state != TRAINER_RUNNING || trainer->step < STEPS)) {
            return false;
        }
    }
    return true;
}

/* A newcomer comes after the last step. The others leave in order, and it is told. */
static void test_comes_too_late(void **state)
{
    (void)state;
    for (uint64_t seed = 2; seed < 20; seed += 4) {
        struct world *world = growing_world(MEAN, 4, 1, seed);
        world->scenario.linger_us = 20000000;
        assert_true(world_until(world, all_run_step_one));
        lose_node(world, 2);
        world->job[0].bent = true;
        if (world_until(world, at_end)) {
            grow_come_back(world, 2);
            world->trainer[2].lost = true;
            expect_rest(world, "late");
            expect_rank(&world->trainer[2], ADTOPK_ERR_PEER, "", "");
        }
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ at random */

#define SEEDS CASES_OF(600u, 20u, 3u)

static bool random_run(uint64_t seed, struct losses_ends *ends, char *found)
{
    struct scenario scenario = losses_scenario(policies[seed % POLICIES], seed);

    scenario.nodes = 3 + (unsigned)(seed * 7 % 5);
    scenario.grows = true;
    scenario.calls = seed % 3 == 0;
    scenario.steps = 20 + (unsigned)(seed % 20);
    scenario.pace_us = 2000000;
    scenario.crash_every_us = seed % 5 == 0 ? 0 : 2000000 + seed * 977777 % 8000000;
    scenario.max_crashes = 8;
    scenario.cut_every_us = seed % 3 == 1 ? 0 : 2000000 + seed * 331331 % 9000000;
    scenario.pause_every_us = seed % 4 == 1 ? 4000000 : 0;
    scenario.max_us = 900000000;
    return losses_run(&scenario, ends, found);
}

/* Nodes crash and come back, are cut off and stop, and ranks that were left out join again. */
static void test_random_growth(void **state)
{
    const struct losses_ends ends = losses_all(SEEDS, random_run);

    (void)state;
    (void)printf("# %u ranks took all steps, %u joined\n", ends.done, ends.joined);
    assert_true(ends.done > SEEDS);
    assert_true(ends.joined > SEEDS / 4);
}

const struct CMUnitTest suite_grow[] = {
    cmocka_unit_test(test_rejoins),
    cmocka_unit_test(test_comes_back_at_once),
    cmocka_unit_test(test_grown_mean),
    cmocka_unit_test(test_planted_since),
    cmocka_unit_test(test_away_in_growth),
    cmocka_unit_test(test_two_join),
    cmocka_unit_test(test_all_others_watch),
    cmocka_unit_test(test_newcomer_leaves),
    cmocka_unit_test(test_comes_too_late),
    cmocka_unit_test(test_random_growth),
    {0},
};
