/*
 * Nodes that were lost and come back with their residuals, under the policy "grow".
 *
 * A node is cut off at any moment of a step. The others go on without it. It meets them again, its
 * ranks start anew, and it joins. At the end, element by element: pushed gradients == updates +
 * residuals. So nothing was lost, and nothing counts twice, whatever was complete when the node was
 * lost. Where it cannot know that it begins without residuals. Then what it had is missing, and the
 * others say so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/growing.h"
#include "tests/sim/suites.h"

#define STRIDE CASES_OF(7u, 61u, 211u)
#define VICTIM 2u
#define TURNS 420u        /* more than two steps take */
#define RETURN_US 100000u /* a process starts */

static const char *const policies[] = {
    SPARSE("allgather"),
    SUMS ",\"sparsifier\":\"adtopk\"" GROW,
    SPARSE("balanced"),
    SPARSE("oktopk"),
    SPARSE("hierarchical"),
    SPARSE("exclusive"),
    SPARSE("nccl-allgather"),
    SUMS ",\"sparsifier\":\"topk\",\"scope\":\"rank\"" GROW,
    SUMS ",\"sparsifier\":\"randomk\"" GROW,
    DENSE("allreduce"),
    DENSE("ring"),
};

#define POLICIES (sizeof(policies) / sizeof(policies[0]))

/* The steps that the node had done, against the open step of the others. */
enum state { BEHIND, EVEN, AHEAD, STATES };

struct ends {
    unsigned kept[STATES], begun_anew[STATES];
};

static struct job_info info_of(const struct world *world, unsigned node)
{
    struct job_info info = {.steps_done = 0};

    (void)check_find(world, node, 0, &info);
    return info;
}

/* What the node has declared as lost; one node if its part of the job is over. */
static struct lost_info lost_at(const struct world *world, unsigned node)
{
    struct job_info info;

    return check_find(world, node, 0, &info)
               ? core_residual_info(world->node[node].core, info.id).lost_nodes
               : (struct lost_info){.nodes = 1};
}

static struct lost_info lost_of(const struct world *world)
{
    return lost_at(world, 0);
}

static uint64_t lost_nodes(const struct world *world)
{
    return lost_of(world).nodes;
}

static bool others_are(const struct world *world, unsigned nodes)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const struct job_info info = info_of(world, n);
        const bool away = n == VICTIM || world->node[n].core == NULL;
        if (!away && (info.nodes != nodes || strcmp(info.state, "active") != 0)) {
            return false;
        }
    }
    return true;
}

static bool others_are_three(const struct world *world)
{
    return others_are(world, 3);
}

static bool others_are_four(const struct world *world)
{
    return others_are(world, 4);
}

static bool is_told(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == VICTIM && world->trainer[i].state != TRAINER_FAILED) {
            return false;
        }
    }
    return true;
}

/* The others know that nothing is lost any more, or it is too late for that. */
static bool is_withdrawn_or_over(const struct world *world)
{
    return lost_nodes(world) == 0 || world->trainer[0].state >= TRAINER_LEAVING;
}

/* The step that is open on the furthest of the others. */
static uint64_t others_step(const struct world *world)
{
    uint64_t others = 0;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const uint64_t steps = n != VICTIM ? info_of(world, n).steps_done : 0;
        others = steps > others ? steps : others;
    }
    return others;
}

/* Whether nothing is missing of a tensor of which the node took in so many steps. */
static bool tensor_fits(const struct world *world, unsigned t, uint64_t offset, uint64_t steps)
{
    for (uint64_t i = 0; i < world->job[0].numel[t]; i++) {
        if (grow_missing(world, t, offset + i, i, VICTIM, steps) != 0) {
            return false;
        }
    }
    return true;
}

/* The gradients of the step in which it was lost are in, or are not, for each tensor. */
static bool mass_fits(const struct world *world, uint64_t steps)
{
    const struct sim_job *job = &world->job[0];
    uint64_t offset = 0;

    for (unsigned t = 0; t < job->tensors; t++) {
        if (!tensor_fits(world, t, offset, steps) && !tensor_fits(world, t, offset, steps + 1)) {
            return false;
        }
        offset += job->numel[t];
    }
    return true;
}

/* Cuts the node off, and heals when the others go on without it. What was on its way then still
 * comes, and may be all that it lacked. False: the job was over. */
static bool lose_and_meet(struct world *world, enum state *state)
{
    const struct node_job *memory = &world->node[VICTIM].memory[0];
    uint64_t others;

    world->node[VICTIM].cut = true;
    world->job[0].astray = UINT64_C(1) << VICTIM;
    if (!world_until(world, others_are_three)) {
        return false;
    }
    others = others_step(world);
    check_forget_step(world, VICTIM, 0, UINT64_C(1) << VICTIM);
    world->node[VICTIM].cut = false;
    if (!world_until(world, is_told)) {
        return false;
    }
    world->job[0].astray = 0;
    *state = memory->step_mark < others ? BEHIND : memory->step_mark == others ? EVEN : AHEAD;
    return true;
}

/* The node is lost so many events after step 1 began, and comes back. */
static bool comes_back(
    const char *policy, unsigned ranks, unsigned turns, struct ends *ends, char *found)
{
    struct world *world = growing_world(policy, 4, ranks, 301 + 2 * turns);
    const struct trainer *first = &world->trainer[VICTIM * ranks];
    enum state state = EVEN;
    uint64_t steps = 0, lost = 0;
    bool right;

    assert_true(world_until(world, all_run_step_one));
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    grow_hold_others(world, VICTIM, STEPS - 2);
    right = lose_and_meet(world, &state);
    steps = first->step;
    for (unsigned r = 0; r < ranks; r++) {
        trainer_come_back(&world->trainer[VICTIM * ranks + r], RETURN_US + r);
    }
    right = right && world_until(world, grow_has_joined);
    grow_release(world);
    right = right && world_until(world, is_withdrawn_or_over);
    lost = lost_nodes(world);
    right = right && world_run(world) && (lost > 0 || mass_fits(world, steps));
    ends->kept[state] += lost == 0;
    ends->begun_anew[state] += lost > 0 && !world->node[VICTIM].far;
    (void)snprintf(found, SIM_TEXT, "after %u events, state %u, %llu lost: %.90s; %.90s", turns,
        (unsigned)state, (unsigned long long)lost, world->violation, first->error.text);
    world_destroy(world);
    return right;
}

/* The sums of all cases of a policy are in *ends. */
static void at_every_moment(const char *policy, unsigned ranks, unsigned first, struct ends *ends)
{
    char found[SIM_TEXT];

    for (unsigned turns = first; turns < TURNS; turns += STRIDE) {
        if (!comes_back(policy, ranks, turns, ends, found)) {
            (void)printf("# %s: %s\n", policy, found);
            fail();
        }
    }
}

static void test_comes_back_with_residuals(void **state)
{
    struct ends ends = {0};

    (void)state;
    for (unsigned p = 0; p < POLICIES; p++) {
        at_every_moment(policies[p], 1 + p % 2, 3 + p, &ends);
    }
    (void)printf(
        "# kept by %u nodes that were behind, %u even, %u ahead; begun anew by %u, %u, %u\n",
        ends.kept[BEHIND], ends.kept[EVEN], ends.kept[AHEAD], ends.begun_anew[BEHIND],
        ends.begun_anew[EVEN], ends.begun_anew[AHEAD]);
    assert_true(ends.kept[BEHIND] > ends.begun_anew[BEHIND]);
    assert_true(ends.kept[EVEN] > ends.begun_anew[EVEN]);
}

/* The victim has taken part in a step, which is over. */
static bool has_taken_part(const struct world *world)
{
    return info_of(world, 0).steps_done > STEPS - 1;
}

/* It is lost again before the others hear how much it has. What was declared the first time counts
 * once. */
static void lost_again(bool watches)
{
    struct world *world = growing_world(policies[0], 4, 1, 501);
    enum state state = EVEN;
    struct lost_info first, again;

    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, VICTIM, STEPS - 2);
    assert_true(lose_and_meet(world, &state));
    first = lost_of(world);
    assert_true(first.nodes == 1 && first.unknown == 0 && first.sums[0] != 0);
    trainer_come_back(&world->trainer[VICTIM], RETURN_US);
    assert_true(world_until(world, grow_has_joined));
    assert_int_equal(lost_nodes(world), 0);
    world->node[VICTIM].quiet = true;
    if (!watches) {
        grow_release(world);
        grow_hold_others(world, VICTIM, STEPS);
        assert_true(world_until(world, has_taken_part));
    }
    lose_node(world, VICTIM);
    world->job[0].bent = true;
    assert_true(world_until(world, others_are_three));
    again = lost_of(world);
    assert_int_equal(again.nodes, 1);
    assert_int_equal(again.unknown, 0);
    assert_true(again.sums[0] == first.sums[0] && again.sums[1] == first.sums[1]);
    assert_int_equal(again.unmeasured, 0);
    assert_true(again.magnitude == first.magnitude);
    grow_release(world);
    expect_rest(world, "lost again");
    world_destroy(world);
}

static void test_lost_again(void **state)
{
    (void)state;
    lost_again(true);
    lost_again(false);
}

/* Node 4 was away when the victim was lost the first time, and has no note of it. */
static void test_lost_without_note(void **state)
{
    struct world *world = growing_world(policies[0], 5, 1, 501);
    enum state even = EVEN;

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, VICTIM, 4);
    lose_node(world, 4);
    assert_true(world_until(world, others_are_four));
    assert_true(lose_and_meet(world, &even));
    world->trainer[4].hold = HOLD_NEVER;
    grow_come_back(world, 4);
    assert_true(world_until(world, others_are_four));
    trainer_come_back(&world->trainer[VICTIM], 1000);
    assert_true(world_until(world, grow_has_joined));
    assert_int_equal(lost_at(world, 4).nodes, 0);
    lose_node(world, VICTIM);
    assert_true(world_until(world, others_are_four));
    assert_int_equal(lost_at(world, 4).nodes, 1);
    assert_int_equal(lost_at(world, 4).unknown, 1); /* it heard nothing of the victim */
    world_destroy(world);
}

/* Node 1 is killed after the victim was lost. Its next daemon withdraws the loss with the others.
 */
static void test_withdrawn_by_restarted(void **state)
{
    struct world *world = growing_world(policies[0], 4, 1, 501);
    enum state even = EVEN;

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, VICTIM, STEPS - 2);
    assert_true(lose_and_meet(world, &even));
    node_crash(world, 1);
    node_start(world, 1);
    assert_true(world_until(world, others_are_three));
    assert_int_equal(lost_at(world, 1).nodes, 1);
    trainer_come_back(&world->trainer[VICTIM], RETURN_US);
    assert_true(world_until(world, grow_has_joined));
    assert_int_equal(lost_of(world).nodes, 0);
    assert_int_equal(lost_at(world, 1).nodes, 0);
    grow_release(world);
    expect_rest(world, "withdrawn");
    world_destroy(world);
}

/* Node 1 restarts before the view without the victim. It knows of the loss, and not how much it
 * was.
 */
static void test_declared_by_restarted(void **state)
{
    struct world *world = growing_world(policies[0], 4, 1, 501);

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, VICTIM, STEPS - 2);
    lose_node(world, VICTIM);
    node_crash(world, 1);
    node_start(world, 1);
    assert_true(world_until(world, others_are_three));
    assert_int_equal(lost_of(world).nodes, 1);
    assert_int_equal(lost_of(world).unknown, 0);
    assert_int_equal(lost_at(world, 1).nodes, 1);
    assert_int_equal(lost_at(world, 1).unknown, 1);
    world_destroy(world);
}

/* ------------------------------------------------------------------ a commit that is missed */

static void wait_us(struct world *world, uint64_t us)
{
    until_us = world->now_us + us;
    (void)world_until(world, waited);
}

static bool others_are_done(const struct world *world)
{
    bool done = true;

    for (unsigned i = 0; i < world->trainers; i++) {
        done = done && (i == VICTIM || world->trainer[i].state == TRAINER_DONE);
    }
    return done;
}

/* The victim comes back. So long after, its coordinator alone has taken it in, and restarts. */
static void misses_commit(unsigned turns, uint64_t step, uint64_t at_us)
{
    struct world *world = growing_world(policies[0], 4, 1, 301 + 2 * turns);
    enum state state = EVEN;
    bool ran;

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    for (unsigned i = 0; i < turns; i++) {
        assert_true(world_turn(world));
    }
    grow_hold_others(world, VICTIM, step);
    assert_true(lose_and_meet(world, &state));
    wait_us(world, 300000);
    trainer_come_back(&world->trainer[VICTIM], 1000);
    wait_us(world, 1000 + at_us);
    world->node[0].quiet = true;
    wait_us(world, 30000);
    node_crash(world, 0);
    world_at(world, 500, (struct sim_event){.type = SIM_RESTART, .node = 0});
    wait_us(world, 30000);
    world->node[0].quiet = false;
    wait_us(world, 5000000);
    if (world->trainer[VICTIM].state == TRAINER_FAILED) {
        trainer_come_back(&world->trainer[VICTIM], 1000);
        wait_us(world, 5000000);
    }
    grow_release(world);
    ran = world_run(world);
    if (!ran || !others_are_done(world)) {
        fail_msg("%u, %u: %s; %s", turns, (unsigned)at_us, world->violation,
            world->trainer[0].error.text);
    }
    world_destroy(world);
}

/* The coordinator's store says that the victim is a member. It has an old store, and was told
 * nothing. */
static void test_misses_commit(void **state)
{
    (void)state;
    misses_commit(3, STEPS - 2, 300);
    misses_commit(142, STEPS - 2, 600);
    misses_commit(256, 3, 1500);
    misses_commit(3, 3, 4500);
}

/* ------------------------------------------------------------------ reasons */

static bool is_reaped(const struct world *world)
{
    return core_job_count(world->node[VICTIM].core) == 0;
}

enum fate { STORE_GONE, DAEMON_KILLED, COORDINATOR_RESTARTED, FATES };

/* The victim comes back, and begins without residuals. */
static void begins_anew(enum fate fate, const char *why)
{
    struct world *world = growing_world(policies[0], 4, 1, 501);
    enum state state = EVEN;

    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, VICTIM, STEPS - 2);
    world->job[0].bent = true;
    if (fate == DAEMON_KILLED) {
        lose_node(world, VICTIM);
        assert_true(world_until(world, others_are_three));
        node_start(world, VICTIM);
    } else {
        assert_true(lose_and_meet(world, &state));
    }
    if (fate == STORE_GONE) {
        assert_true(world_until(world, is_reaped));
        node_forget(world, VICTIM, 0);
    } else if (fate == COORDINATOR_RESTARTED) {
        node_crash(world, 0);
        node_start(world, 0);
        assert_true(world_until(world, others_are_three));
    }
    trainer_come_back(&world->trainer[VICTIM], RETURN_US);
    assert_true(world_until(world, grow_has_joined));
    if (strstr(world->node[VICTIM].warning, why) == NULL) {
        fail_msg("\"%s\" and not \"%s\"", world->node[VICTIM].warning, why);
    }
    grow_release(world);
    expect_rest(world, why);
    world_destroy(world);
}

static void test_begins_anew(void **state)
{
    static const char *const whys[FATES] = {[STORE_GONE] = "that it had: their store is gone",
        [DAEMON_KILLED] = "that it had: its part of the job did not end in order",
        [COORDINATOR_RESTARTED] = "that it had: the others do not know what of them was applied"};

    (void)state;
    for (unsigned fate = 0; fate < FATES; fate++) {
        begins_anew((enum fate)fate, whys[fate]);
    }
}

static bool try_comeback(uint64_t seed, char *found)
{
    struct ends ends = {0};

    return comes_back(policies[0], 1, (unsigned)seed, &ends, found);
}

static void test_planted_comeback(void **state)
{
    (void)state;
    losses_find(PLANTED_COMEBACK, "comeback that does not settle", try_comeback);
}

/* From this moment on node 1 hears nothing of node 0, while the victim joins. Then a daemon
 * restarts, and node 1 learns from the next view that the victim is a member. */
static void try_missed_join(uint64_t at_us, unsigned restarts)
{
    struct world *world = growing_world(policies[0], 4, 1, 307);
    enum state state = EVEN;

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(world_turn(world));
    }
    grow_hold_others(world, VICTIM, STEPS - 2);
    assert_true(lose_and_meet(world, &state));
    wait_us(world, 300000);
    trainer_come_back(&world->trainer[VICTIM], 1000);
    wait_us(world, 1000 + at_us);
    flow_of(world, 0, 1)->cuts++;
    wait_us(world, 30000);
    node_crash(world, restarts);
    world_at(world, 500, (struct sim_event){.type = SIM_RESTART, .node = (uint16_t)restarts});
    wait_us(world, 30000);
    flow_of(world, 0, 1)->cuts--;
    wait_us(world, 5000000);
    if (world->trainer[VICTIM].state == TRAINER_FAILED) {
        trainer_come_back(&world->trainer[VICTIM], 1000);
        wait_us(world, 5000000);
    }
    for (unsigned n = 0; n < 4; n++) {
        if (lost_at(world, n).nodes > 0) {
            fail_msg("cut at %u us, node %u restarts: node %u declares a loss", (unsigned)at_us,
                restarts, n);
        }
    }
    grow_release(world);
    if (!world_run(world)) {
        fail_msg("%u us, node %u: %s", (unsigned)at_us, restarts, world->violation);
    }
    world_destroy(world);
}

static void test_a_member_misses_the_join(void **state)
{
    (void)state;
    for (uint64_t at_us = 0; at_us < 750; at_us += 150) {
        try_missed_join(at_us, 0);
        try_missed_join(at_us, 1);
    }
}

const struct CMUnitTest suite_comeback[] = {
    cmocka_unit_test(test_comes_back_with_residuals),
    cmocka_unit_test(test_lost_again),
    cmocka_unit_test(test_lost_without_note),
    cmocka_unit_test(test_withdrawn_by_restarted),
    cmocka_unit_test(test_declared_by_restarted),
    cmocka_unit_test(test_misses_commit),
    cmocka_unit_test(test_a_member_misses_the_join),
    cmocka_unit_test(test_begins_anew),
    cmocka_unit_test(test_planted_comeback),
    {0},
};
