/*
 * Nodes that are lost for good, under the policy on_peer_loss "shrink": the others go on without
 * them.
 *
 * A node vanishes at every message of every collective and never comes back. All other ranks take
 * all of their steps. After every event the invariants hold on every node. At the end, element by
 * element: pushed gradients == updates + residuals + the residual that the lost node had. Networks
 * are cut into parts: at most one part goes on. Nodes are away for a while in every phase of the
 * view change without another node.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define STRIDE CASES_OF(1u, 7u, 97u)
#define AWAY_US 20000000u
#define SHRINK                                                                                     \
    ",\"join_timeout\":30,\"push_timeout\":60,\"wait_limit\":60,\"on_peer_loss\":\"shrink\","      \
    "\"shrink_after\":1}"
#define SUMS "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"bucket_bytes\":2000"
#define SPARSE(name) SUMS ",\"sparsifier\":\"topk\",\"sparse_collective\":\"" name "\"" SHRINK
#define DENSE(name) SUMS ",\"sparsifier\":\"dense\",\"dense_collective\":\"" name "\"" SHRINK
#define MEAN "{\"reduce\":\"mean\",\"sparsifier\":\"dense\"" SHRINK

#define TIED SUMS ",\"tie_breaker\":2" SHRINK

static const char *const policies[] = {
    SPARSE("allgather"),
    SUMS ",\"sparsifier\":\"adtopk\"" SHRINK,
    SPARSE("balanced"),
    SPARSE("oktopk"),
    SPARSE("hierarchical"),
    SPARSE("exclusive"),
    SPARSE("nccl-allgather"),
    DENSE("allreduce"),
    DENSE("one-shot"),
    DENSE("pairwise"),
    DENSE("ring"),
    DENSE("halving-doubling"),
    DENSE("nccl-allreduce"),
};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

static struct world *new_world(const char *policy, unsigned nodes, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.nodes = nodes;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 3;
    scenario.whole = true;
    scenario.max_us = 200000000;
    return world_create(&scenario);
}

static uint64_t steps_done(const struct world *world, unsigned node)
{
    struct job_info info;

    return check_find(world, node, 0, &info) ? info.steps_done : 0;
}

/* ------------------------------------------------------------------ at every message */

struct victim {
    unsigned node;
    uint64_t step; /* in which it was lost */
};

/* What the ranks pushed of an element, and neither updates nor the other nodes' residuals have.
 * steps: that the lost node's rank took part in. */
static double missing(const struct world *world, const struct victim *victim, unsigned t,
    uint64_t place, uint64_t element, uint64_t steps)
{
    const struct sim_job *job = &world->job[0];
    double missing = -job->applied[place];

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const uint64_t end = n == victim->node ? steps : world->scenario.steps;
        for (uint64_t s = 0; s < end; s++) {
            missing += (double)trainer_gradient(world, 0, s, n, t, element);
        }
        missing -= n == victim->node ? 0 : job->residual[n * job->elements + place];
    }
    return missing;
}

/* Whether the difference is what the lost node had in its residual; sent: or nothing, as it had
 * sent the entry. */
static bool is_residual(const struct world *world, const struct victim *victim, unsigned t,
    uint64_t offset, uint64_t steps, bool sent)
{
    const struct sim_job *job = &world->job[0];
    const double *residual = job->residual + victim->node * job->elements + offset;

    for (uint64_t i = 0; i < job->numel[t]; i++) {
        double lost = missing(world, victim, t, offset + i, i, steps);
        if (lost != residual[i] && !(sent && lost == 0)) {
            return false;
        }
    }
    return true;
}

/* The lost node's part of its last step is in an update, or it is not. */
static void expect_declared(const struct world *world, const struct victim *victim)
{
    const struct sim_job *job = &world->job[0];
    uint64_t offset = 0;

    for (unsigned t = 0; t < job->tensors; t++) {
        assert_true(is_residual(world, victim, t, offset, victim->step, false) ||
                    is_residual(world, victim, t, offset, victim->step + 1, true));
        offset += job->numel[t];
    }
}

/* The node's first packets leave, and it is lost with the next. False: it sent no more. */
static bool vanishes(const char *policy, unsigned nodes, unsigned node, uint64_t last)
{
    struct world *world = new_world(policy, nodes, 199 + last);
    struct victim victim = {.node = node};
    bool mute, ahead;
    char about[300];

    world->node[node].bulk_last = last;
    mute = world_until(world, mute_or_over) && some_node_is_mute(world);
    world->node[node].bulk_last = UINT64_MAX;
    victim.step = steps_done(world, node);
    ahead = victim.step > steps_done(world, node == 0 ? 1 : 0);
    if (mute) {
        lose_node(world, node);
    }
    (void)snprintf(about, sizeof(about), "%u nodes without %u after %llu packets, %s", nodes, node,
        (unsigned long long)last, policy);
    expect_rest(world, about);
    if (mute && !ahead && victim.step < world->scenario.steps) {
        expect_declared(world, &victim);
    }
    world_destroy(world);
    return mute;
}

static void at_every_message(unsigned nodes)
{
    const unsigned stride = STRIDE;

    for (size_t p = 0; p < POLICIES; p++) {
        uint64_t last = (p * 5 + nodes) % stride, first = last;
        while (vanishes(policies[p], nodes, (unsigned)p % nodes, last)) {
            last += stride;
        }
        assert_true(stride > 3 || last > first);
    }
}

static void test_vanishes(void **state)
{
    (void)state;
    at_every_message(3);
    at_every_message(5);
}

/* ------------------------------------------------------------------ the mean */

/* Whether the sum of an element's updates is that of means over all nodes in the first `with`
 * steps, and over those that are left in the others. */
static bool mean_fits(const struct world *world, unsigned node, uint64_t with, unsigned t,
    uint64_t element, double applied)
{
    const unsigned nodes = world->scenario.nodes;
    double sum = 0;

    for (uint64_t s = 0; s < world->scenario.steps; s++) {
        for (unsigned n = 0; n < nodes; n++) {
            const double share = s < with ? 1 : n == node ? 0 : nodes / (nodes - 1.0);
            sum += share * (double)trainer_gradient(world, 0, s, n, t, element);
        }
    }
    return fabs(sum - applied) < 1e-4 * (1 + fabs(sum));
}

/* With a dense mean every update is known: over all ranks at first, then over those that are left.
 */
static bool means_fit(const struct world *world, unsigned node)
{
    const struct sim_job *job = &world->job[0];
    uint64_t place = 0;
    bool all = true, changed = false;

    for (unsigned t = 0; t < job->tensors; t++) {
        for (uint64_t i = 0; i < job->numel[t]; i++, place++) {
            bool fits = false;
            for (uint64_t with = 0; !fits && with <= world->scenario.steps; with++) {
                fits = mean_fits(world, node, with, t, i, job->applied[place]);
                changed |= fits && with > 0 && with < world->scenario.steps;
            }
            all = all && fits;
        }
    }
    return all && changed;
}

static struct world *lose_in_step_one(
    const char *policy, unsigned nodes, unsigned node, uint64_t seed)
{
    struct world *world = new_world(policy, nodes, seed);

    assert_true(world_until(world, all_run_step_one));
    lose_node(world, node);
    return world;
}

static void test_mean(void **state)
{
    (void)state;
    for (unsigned node = 0; node < 4; node++) {
        struct world *world = lose_in_step_one(MEAN, 4, node, 11 + node);
        expect_rest(world, "mean");
        assert_true(means_fit(world, node));
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ cut networks */

/* Nodes below `border` and the others lose each other (1), or meet again (-1). */
static void cut(struct world *world, unsigned border, int by)
{
    for (unsigned from = 0; from < world->scenario.nodes; from++) {
        for (unsigned to = 0; to < world->scenario.nodes; to++) {
            flow_of(world, from, to)->cuts += (from < border) != (to < border) ? (unsigned)by : 0;
        }
    }
}

static bool smaller_view(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (check_find(world, n, 0, &info) && info.nodes < world->scenario.nodes &&
            strcmp(info.state, "active") == 0) {
            return true;
        }
    }
    return false;
}

static bool smaller_or_done(const struct world *world)
{
    bool done = true;

    for (unsigned i = 0; i < world->trainers; i++) {
        done = done && world->trainer[i].state >= TRAINER_DONE;
    }
    return done || smaller_view(world);
}

static void expect_parts(const struct world *world, unsigned border, bool lower)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        const bool goes_on = (trainer->node < border) == lower;
        if (goes_on != (trainer->state == TRAINER_DONE)) {
            (void)printf("# rank %u, state %d: %s\n", i, (int)trainer->state, trainer->error.text);
        }
        assert_int_equal(trainer->state, goes_on ? TRAINER_DONE : TRAINER_FAILED);
        if (!goes_on && strstr(trainer->error.text, "went on without") == NULL &&
            strstr(trainer->error.text, "does not answer") == NULL) {
            (void)printf("# rank %u: %s\n", i, trainer->error.text);
            fail();
        }
    }
}

/* The nodes from `first` on may have closed a step that the others could not. */
static void forget_part(struct world *world, unsigned first, unsigned end)
{
    const uint64_t lost = (UINT64_C(1) << end) - (UINT64_C(1) << first);

    for (unsigned n = first; n < end; n++) {
        check_forget_step(world, n, 0, lost);
    }
}

/* heal: the parts meet again after a while. */
static void in_parts_of(
    const char *policy, unsigned nodes, unsigned border, bool lower, unsigned turns, bool heal)
{
    struct world *world = new_world(policy, nodes, 7 + turns);

    world->job[0].may_fail = true;
    assert_true(world_until(world, all_run_step_one));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    cut(world, border, 1);
    if (!world_until(world, smaller_or_done) || !smaller_view(world)) {
        assert_false(world->violated); /* the job had ended before */
        world_destroy(world);
        return;
    }
    forget_part(world, lower ? border : 0, lower ? nodes : border);
    if (heal) {
        until_us = world->now_us + AWAY_US;
        assert_true(world_until(world, waited));
        cut(world, border, -1);
    }
    if (!world_run(world)) {
        (void)printf("# %u nodes cut at %u after %u: %s\n", nodes, border, turns, world->violation);
    }
    assert_false(world->violated);
    expect_parts(world, border, lower);
    world_destroy(world);
}

static void in_parts(unsigned nodes, unsigned border, bool lower, unsigned turns, bool heal)
{
    in_parts_of(policies[turns % POLICIES], nodes, border, lower, turns, heal);
}

static void test_parts(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 200; turns += CASES_OF(7u, 29u, 101u)) {
        for (unsigned heal = 0; heal < 2; heal++) {
            in_parts(5, 3, true, turns, heal != 0);
            in_parts(5, 2, false, turns, heal != 0);
            in_parts(4, 2, true, turns, heal != 0); /* half, with the lowest */
            in_parts(2, 1, true, turns, heal != 0);
            in_parts_of(TIED, 4, 2, false, turns, heal != 0); /* half, with node 2 */
        }
    }
}

/* Only nodes 0 and `other` lose each other. All but one of the five go on, without one of these. */
static void pair_cut(uint64_t seed, unsigned other)
{
    struct scenario scenario = failure_scenario(policies[seed % POLICIES]);
    struct world *world;
    unsigned done = 0;

    scenario.seed = seed;
    scenario.nodes = 5;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.delay_us = 20000;
    scenario.max_us = 200000000;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    world->job[0].outcome = sim_alloc(5 * (scenario.steps + 1) * sizeof(*world->job[0].outcome));
    assert_true(world_until(world, all_run_step_one));
    for (unsigned i = 0; i < seed % 50; i++) {
        assert_true(world_turn(world));
    }
    flow_of(world, 0, other)->cuts++;
    flow_of(world, other, 0)->cuts++;
    if (!world_run(world)) {
        (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        done += world->trainer[i].state == TRAINER_DONE ? 1 : 0;
    }
    assert_true(done >= 4);
    world_destroy(world);
}

static void test_pairs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CASES_OF(150u, 40u, 7u); seed++) {
        pair_cut(seed, 1 + (unsigned)(seed % 2));
    }
}

/* ------------------------------------------------------------------ nothing under way */

static bool all_rest(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->state != TRAINER_RUNNING || trainer->step != 1 || trainer->ended) {
            return false;
        }
    }
    return world->now_us > 5000000;
}

/* A carrier makes another group for the nodes that are left, although no operation failed. */
static void test_rest(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 6; seed++) {
        struct world *world = new_world(DENSE("nccl-allreduce"), 4, seed);
        for (unsigned i = 0; i < world->trainers; i++) {
            world->trainer[i].hold = HOLD_STEP;
            world->trainer[i].hold_step = 1;
        }
        assert_true(world_until(world, all_rest));
        lose_node(world, 3);
        assert_true(world_until(world, smaller_view));
        for (unsigned i = 0; i < world->trainers; i++) {
            if (!world->trainer[i].lost) {
                let_go(&world->trainer[i]);
            }
        }
        expect_rest(world, "rest");
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ the loss as a number */

static bool all_hold(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->state != TRAINER_RUNNING || trainer->step != trainer->hold_step ||
            trainer->ended) {
            return false;
        }
    }
    return world->now_us > until_us;
}

static bool declares(const struct world *world, unsigned node, uint64_t steps, const double sums[3])
{
    struct residual_info residual;
    struct job_info info;

    if (!check_find(world, node, 0, &info)) {
        return false;
    }
    residual = core_residual_info(world->node[node].core, info.id);
    return residual.lost_nodes.nodes == 1 && residual.lost_nodes.unknown == (steps == 0 ? 1 : 0) &&
           residual.lost_nodes.step == steps &&
           fabs(residual.lost_nodes.sums[0] - sums[0]) < 1e-9 &&
           fabs(residual.lost_nodes.sums[1] - sums[1]) < 1e-9 &&
           residual.lost_nodes.unmeasured == 0 &&
           fabs(residual.lost_nodes.magnitude - sums[2]) < 1e-9;
}

static bool is_declared(const struct world *world, unsigned lost, uint64_t steps)
{
    const struct sim_job *job = &world->job[0];
    double sums[3] = {0};
    uint64_t place = 0;

    for (unsigned t = 0; t < job->tensors; t++) {
        for (uint64_t i = 0; i < job->numel[t]; i++, place++) {
            sums[0] += job->residual[lost * job->elements + place];
            sums[1] += job->residual[lost * job->elements + place] * ledger_sign(i);
            sums[2] += fabs(job->residual[lost * job->elements + place]);
        }
    }
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        if (n != lost && !declares(world, n, steps, sums)) {
            return false;
        }
    }
    return (sums[0] != 0) == (steps > 0) && (sums[1] != 0) == (steps > 0);
}

/* Its daemon is killed and started again, and the job goes on. */
static void restart_node(struct world *world, unsigned node)
{
    node_crash(world, node);
    node_start(world, node);
    until_us = world->now_us + 3000000;
    assert_true(world_until(world, waited));
}

/* Steps take longer than nodes take to tell their sums again. All hold after the second one. So
 * what the lost node told last is what it had. Or all hold in the first step: then it told nothing,
 * and it counts all the same. A node that is restarted knows what it declared. */
static void test_declared(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 7; p++) {
        const uint64_t steps = p < 6 ? 2 : 0;
        struct world *world = new_world(policies[p], 4, 21 + p);
        world->scenario.compute_us = 1500000;
        for (unsigned i = 0; i < world->trainers; i++) {
            world->trainer[i].hold = HOLD_STEP;
            world->trainer[i].hold_step = steps;
        }
        until_us = 0;
        assert_true(world_until(world, all_hold));
        lose_node(world, p % 4);
        assert_true(world_until(world, smaller_view));
        until_us = world->now_us + 1000000;
        assert_true(world_until(world, waited));
        assert_true(is_declared(world, p % 4, steps));
        restart_node(world, (p + 1) % 4);
        assert_true(is_declared(world, p % 4, steps));
        world_destroy(world);
    }
}

/* ------------------------------------------------------------------ in every phase */

static bool proposed(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (check_find(world, n, 0, &info) && strcmp(info.state, "prepared") == 0) {
            return true;
        }
    }
    return smaller_view(world);
}

static bool done_or_left_out(const struct trainer *trainer)
{
    return trainer->lost || trainer->state == TRAINER_DONE ||
           (trainer->state == TRAINER_FAILED &&
               (strstr(trainer->error.text, "went on without") != NULL ||
                   strstr(trainer->error.text, "runs without ranks") != NULL ||
                   strstr(trainer->error.text, "no part in this run") != NULL));
}

/* Node 4 of five is lost. When the view without it is proposed, and so many events later, another
 * node is away for a while. False: the view is in force everywhere before that. */
static bool away_in_shrink(unsigned node, bool killed, unsigned turns)
{
    struct world *world = new_world(policies[turns % POLICIES], 5, 7 + turns);
    bool within = true;
    unsigned done = 0;

    world->job[0].may_fail = true;
    world->scenario.steps = 3;
    assert_true(world_until(world, all_run_step_one));
    lose_node(world, 4);
    assert_true(world_until(world, proposed));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    for (unsigned n = 0; n < 4; n++) {
        struct job_info info;
        within = !(check_find(world, n, 0, &info) && info.nodes < 5) && within;
    }
    if (killed) {
        node_crash(world, node);
        world_at(world, AWAY_US, (struct sim_event){.type = SIM_RESTART, .node = node});
    } else {
        node_pause(world, node, AWAY_US);
    }
    if (!world_run(world)) {
        (void)printf("# node %u away after %u: %s\n", node, turns, world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        if (!done_or_left_out(&world->trainer[i])) {
            (void)printf("# node %u away after %u, rank %u, state %d: %s\n", node, turns, i,
                (int)world->trainer[i].state, world->trainer[i].error.text);
        }
        assert_true(done_or_left_out(&world->trainer[i]));
        done += world->trainer[i].state == TRAINER_DONE ? 1 : 0;
    }
    assert_true(done >= 3);
    world_destroy(world);
    return within;
}

static void test_away_in_shrink(void **state)
{
    (void)state;
    for (unsigned killed = 0; killed < 2; killed++) {
        for (unsigned node = 0; node < 4; node++) {
            unsigned turns = node;
            while (away_in_shrink(node, killed != 0, turns)) {
                turns += CASES(3u, 17u);
            }
        }
    }
}

/* ------------------------------------------------------------------ at random */

#define SEEDS CASES_OF(1000u, 60u, 10u)

static bool random_run(uint64_t seed, struct losses_ends *ends, char *found)
{
    const char *policy = seed % 4 == 1 ? TIED : policies[seed % POLICIES];
    const struct scenario scenario = losses_scenario(policy, seed);

    return losses_run(&scenario, ends, found);
}

/* Nodes crash and come back, are cut off and stop. Whatever happens, at most one part goes on. */
static void test_random_losses(void **state)
{
    const struct losses_ends ends = losses_all(SEEDS, random_run);

    (void)state;
    (void)printf("# %u ranks took all steps, %u were left out\n", ends.done, ends.left_out);
    assert_true(ends.done > SEEDS);
    assert_true(ends.left_out > SEEDS / 20);
}

/* ------------------------------------------------------------------ planted bugs */

static bool try_losses(uint64_t seed, char *found)
{
    struct losses_ends ignored = {0};

    return random_run(seed, &ignored, found);
}

static void test_planted_halves(void **state)
{
    (void)state;
    losses_find(PLANTED_HALVES, "view of any nodes", try_losses);
}

static bool node_two_promised(const struct world *world)
{
    struct job_info info;

    return check_find(world, 2, 0, &info) && strcmp(info.state, "prepared") == 0;
}

/* Nodes 3 and 4 of five are cut off, and node 2 promises to go on without them. It does not hear
 * that nodes 0 and 1 did: from then on it can reach nodes 3 and 4, and not the others. */
static bool try_promise(uint64_t seed, char *found)
{
    struct world *world = new_world(policies[seed % POLICIES], 5, seed);
    bool right;

    world->job[0].may_fail = true;
    world->job[0].outcome = sim_alloc(5 * 4 * sizeof(*world->job[0].outcome));
    assert_true(world_until(world, all_run_step_one));
    cut(world, 3, 1);
    assert_true(world_until(world, node_two_promised));
    for (unsigned i = 0; i < seed % 20; i++) {
        assert_true(world_turn(world));
    }
    flow_of(world, 0, 2)->cuts++;
    if (!world_until(world, smaller_or_done) || !smaller_view(world)) {
        world_destroy(world);
        return true; /* node 0 did not hear of the promise */
    }
    cut(world, 3, -1);
    cut(world, 2, 1);
    right = world_run(world);
    for (unsigned i = 2; i < 5; i++) {
        right = right && world->trainer[i].state == TRAINER_FAILED;
    }
    (void)snprintf(found, SIM_TEXT, "two parts go on");
    world_destroy(world);
    return right;
}

static void test_planted_promise(void **state)
{
    (void)state;
    losses_find(PLANTED_PROMISE, "promise that is forgotten", try_promise);
}

static bool try_mean(uint64_t seed, char *found)
{
    struct world *world = lose_in_step_one(MEAN, 4, (unsigned)(seed % 4), seed);
    const bool right = world_run(world) && means_fit(world, (unsigned)(seed % 4));

    (void)snprintf(found, SIM_TEXT, "the mean is not over the ranks that are left");
    world_destroy(world);
    return right;
}

static void test_planted_divisor(void **state)
{
    (void)state;
    losses_find(PLANTED_DIVISOR, "divisor of the first view", try_mean);
}

const struct CMUnitTest suite_shrink[] = {
    cmocka_unit_test(test_vanishes),
    cmocka_unit_test(test_mean),
    cmocka_unit_test(test_parts),
    cmocka_unit_test(test_pairs),
    cmocka_unit_test(test_rest),
    cmocka_unit_test(test_declared),
    cmocka_unit_test(test_away_in_shrink),
    cmocka_unit_test(test_random_losses),
    cmocka_unit_test(test_planted_halves),
    cmocka_unit_test(test_planted_promise),
    cmocka_unit_test(test_planted_divisor),
    {0},
};
