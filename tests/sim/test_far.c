/*
 * Far engines: what random scenarios do not show, because their jobs shall end well. An engine
 * loses its memory, or is never heard of again; a residual is read past it, or taken from its
 * owner.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/job/model.h"
#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"
#include "tests/sim/far.h"

#define SEEDS 40u
#define FAR_SEED 8u /* node 0 has a far engine, and node 1 the host's */

#define DENSE_POLICY "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}"
#define RANKS_POLICY "{\"reduce\":\"sum\",\"density\":0.05,\"scope\":\"rank\"}"
#define HASTY "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"round_timeout\":2}"

static struct world *far_world(const char *policy, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.seed = seed;
    scenario.jobs = 1;
    scenario.steps = 8;
    scenario.changed = strstr(policy, "momentum") != NULL || strstr(policy, "beta") != NULL;
    world = world_create(&scenario);
    world->job[0].may_fail = true;
    return world;
}

static bool in_step_two(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step >= 2;
}

/* All ranks hear it, those of the other node too; the key can be used again. */
static void expect_failed(struct world *world, enum adtopk_status status, const char *words)
{
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->trainers; i++) {
        expect_rank(&world->trainer[i], status, words, "node 0");
    }
    world_destroy(world);
}

static void test_lost_memory(void **state)
{
    struct world *world = far_world(POLICY, FAR_SEED);

    (void)state;
    assert_true(world->node[0].far && !world->node[1].far);
    assert_true(world_until(world, in_step_two));
    far_lose(&world->node[0]);
    expect_failed(world, ADTOPK_ERR_LOST, "lost the residuals");
}

/* The engine comes back again and again without the content of its memory. The job goes on: both
 * nodes have the same updates, and from the end of each step on every ledger has what was lost. */
static void forgets(const char *policy, uint64_t seed, uint64_t *losses)
{
    struct world *world = far_world(policy, seed);

    world->job[0].may_fail = false;
    world->node[0].far_forgets = true;
    if (!world_run(world)) {
        (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
    }
    assert_false(world->violated);
    *losses += world->node[0].memory[0].forgot;
    world_destroy(world);
}

static void test_forgets(void **state)
{
    static const char *const policies[] = {POLICY, DENSE_POLICY, RANKS_POLICY};
    uint64_t losses = 0;

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        for (uint64_t seed = 8; seed < 8 + 9 * 8; seed += 9) {
            forgets(policies[p], seed, &losses);
        }
    }
    assert_true(losses > 12);
}

/* ------------------------------------------------------------------ daemons that leave */

#define BOTH_FAR 5u /* a seed with which both nodes have far engines */
#define STOPS 3u
#define RESTART_US 3000u

static bool all_stay(const struct world *world)
{
    bool all = true;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const struct core *core = world->node[n].core;
        all = all && (core == NULL || core->stopping == CORE_GOES_ON ||
                         core_staying_count(core) == core_job_count(core));
    }
    return all;
}

/* An engine has lost its memory and has yet to say so, or the run will soon be over. */
static bool has_forgotten(const struct world *world)
{
    return far_has_untold(&world->node[0].memory[0]) || world->trainer[0].step >= 6;
}

static bool all_up(const struct world *world)
{
    return world->node[0].core != NULL && world->node[1].core != NULL;
}

/* These nodes' daemons are told to stop. When they have saved what they had, they leave, and their
 * engines' memory goes with them. Others take their places. */
static void restart_in_order(struct world *world, unsigned nodes)
{
    for (unsigned n = 0; n < nodes && !world->violated; n++) {
        world->node[n].leaves = true;
        (void)node_event(world, n, &(struct event){.type = EVENT_STOP, .stay = true}, NULL);
    }
    if (!world_until(world, all_stay)) {
        return;
    }
    for (unsigned n = 0; n < nodes; n++) {
        node_crash(world, n);
        far_clear(&world->node[n]);
        world_at(world, RESTART_US, (struct sim_event){.type = SIM_RESTART, .node = n});
    }
    (void)world_until(world, all_up);
}

/* Wherever a step is when its daemon is told to stop, it goes on as if nothing had happened. */
static void leaves(const char *policy, uint64_t seed, unsigned turns, unsigned nodes)
{
    struct world *world = far_world(policy, seed);

    world->job[0].may_fail = false;
    assert_true(world->node[0].far);
    (void)world_until(world, all_run_step_one);
    for (unsigned stop = 0; stop < STOPS && !world->violated; stop++) {
        for (unsigned i = 0; i < turns * (stop + 1); i++) {
            (void)world_turn(world);
        }
        restart_in_order(world, nodes);
    }
    if (!world_run(world)) {
        (void)printf("# seed %llu, after %u turns, %u nodes, %s: %s\n", (unsigned long long)seed,
            turns, nodes, policy, world->violation);
    }
    assert_false(world->violated);
    assert_false(world->node[0].memory[0].forgot);
    world_destroy(world);
}

static void test_stops_in_mid_step(void **state)
{
    static const char *const policies[] = {
        POLICY,
        DENSE_POLICY,
        RANKS_POLICY,
        POLICY_WITH(",\"momentum\":0.5"),
        POLICY_WITH(",\"sparsifier\":\"dgc\",\"beta\":0.5"),
        POLICY_WITH(",\"sparse_collective\":\"oktopk\",\"residual\":\"bf16\""),
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}",
    };

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        for (unsigned turns = 0; turns < 120; turns += CASES(7u, 23u)) {
            leaves(policies[p], FAR_SEED + 9 * turns, turns, 1);
            leaves(policies[p], BOTH_FAR + 9 * turns, turns, 1 + turns % 2);
        }
    }
}

/* The engine loses its memory, and the daemon ends before the step's end declares what that was: in
 * order, so that the residuals are saved, or it is killed, and they stay. */
static void forgets_and_ends(const char *policy, uint64_t seed, unsigned turns, bool killed)
{
    struct world *world = far_world(policy, seed);

    world->job[0].may_fail = false;
    world->node[0].far_forgets = true;
    (void)world_until(world, all_run_step_one);
    for (unsigned end = 0; end < STOPS && !world->violated; end++) {
        (void)world_until(world, has_forgotten);
        if (!far_has_untold(&world->node[0].memory[0])) {
            break;
        }
        for (unsigned i = 0; i < turns && !world->violated; i++) {
            (void)world_turn(world);
        }
        if (killed) {
            node_crash(world, 0);
            world_at(world, RESTART_US, (struct sim_event){.type = SIM_RESTART, .node = 0});
            (void)world_until(world, all_up);
        } else {
            restart_in_order(world, 1);
        }
    }
    if (!world_run(world)) {
        (void)printf("# seed %llu, %u turns after a loss, %s, %s: %s\n", (unsigned long long)seed,
            turns, killed ? "killed" : "in order", policy, world->violation);
    }
    assert_false(world->violated);
    world_destroy(world);
}

static void test_ends_before_it_declares(void **state)
{
    static const char *const policies[] = {POLICY, DENSE_POLICY, RANKS_POLICY};

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        for (unsigned turns = 0; turns < 60; turns += CASES(1u, 5u)) {
            forgets_and_ends(policies[p], FAR_SEED + 9 * turns, turns, false);
            forgets_and_ends(policies[p], FAR_SEED + 9 * turns, turns, true);
        }
    }
}

static bool has_images(const struct world *world)
{
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        if (world->node[0].memory[0].image[part] != NULL) {
            return true;
        }
    }
    return false;
}

/* What cannot be saved leaves nothing behind: the folder may be full. */
static void test_no_room_to_leave(void **state)
{
    struct world *world = far_world(POLICY, FAR_SEED);

    (void)state;
    assert_true(world_until(world, in_step_two));
    world->node[0].refuses = MEMORY_NO_UPDATES;
    (void)node_event(world, 0, &(struct event){.type = EVENT_STOP, .stay = true}, NULL);
    assert_true(world_until(world, all_stay));
    assert_false(has_images(world));
    world_destroy(world);
}

/* A daemon is killed while it saves, and the engine's memory is still there for the next one. */
static void test_killed_while_it_saves(void **state)
{
    struct world *world = far_world(POLICY_WITH(",\"momentum\":0.5"), FAR_SEED);

    (void)state;
    world->job[0].may_fail = false;
    assert_true(world_until(world, in_step_two));
    (void)node_event(world, 0, &(struct event){.type = EVENT_STOP, .stay = true}, NULL);
    assert_true(world_until(world, has_images));
    node_crash(world, 0);
    world_at(world, RESTART_US, (struct sim_event){.type = SIM_RESTART, .node = 0});
    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    assert_false(has_images(world));
    world_destroy(world);
}

static void test_silent_engine(void **state)
{
    struct world *world = far_world(HASTY, FAR_SEED);

    (void)state;
    assert_true(world_until(world, in_step_two));
    world->node[0].far_deaf = true;
    expect_failed(world, ADTOPK_ERR_TIMEOUT, "has not carried out its orders");
}

/* Mixed nodes agree to the bit, whichever have far engines: world_run() compares their updates. */
static bool try_dense(uint64_t seed)
{
    struct world *world = far_world(DENSE_POLICY, seed);
    bool ok;

    world->job[0].may_fail = false;
    ok = world_run(world);
    world_destroy(world);
    return ok;
}

static void test_past_the_engine(void **state)
{
    uint64_t found = 0;

    (void)state;
    planted_bug = PLANTED_PAST;
    for (uint64_t seed = 1; found == 0 && seed <= SEEDS; seed++) {
        found = try_dense(seed) ? 0 : seed;
    }
    planted_bug = PLANTED_NONE;
    (void)printf(
        "# planted reading past the engine: found in seed %llu\n", (unsigned long long)found);
    assert_int_not_equal(found, 0);
    assert_true(try_dense(found));
}

/* The rule's assert aborts; in a process of its own, without a core file. */
static void test_stolen(void **state)
{
    int status = 0;
    pid_t child = fork();

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)freopen("/dev/null", "w", stderr);
        planted_bug = PLANTED_STOLEN;
        (void)world_run(far_world(POLICY, FAR_SEED));
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* This node has answered the prepare of a policy's view, and waits for the commit. */
static bool has_answered(const struct world *world)
{
    const struct core *core = world->node[0].core;
    const struct job *job = core != NULL ? core->jobs : NULL;

    return job != NULL && job->machine.state == JOB_PREPARED && !job->agreement.owes_state &&
           job->switching.machine.state == SWITCH_HELD && job->advance.computing == 0;
}

/* The view takes the residuals for the switch at once, so nobody else may have them then. */
static void test_read_in_a_view(void **state)
{
    struct world *world = far_world(POLICY, FAR_SEED);
    float values[8];
    struct event read = {.type = EVENT_RANK_READ, .read = {0, 0, 4, values}};
    struct error err;

    (void)state;
    world->job[0].may_fail = false;
    for (unsigned i = 0; i < world->trainers; i++) { /* outside a step, where ranks may read */
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = 4;
        world->trainer[i].hold_pushes = 0;
    }
    assert_true(world_until(world, in_step_two));
    assert_true(operator_change(world, 0, 0, "{\"density\":0.1}", &err) != 0);
    assert_true(world_until(world, has_answered));
    assert_int_equal(trainer_request(&world->trainer[0], &read, &err), ADTOPK_PENDING);
    for (unsigned i = 0; i < world->trainers; i++) {
        let_go(&world->trainer[i]);
    }
    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    world_destroy(world);
}

const struct CMUnitTest suite_far[] = {
    cmocka_unit_test(test_read_in_a_view),
    cmocka_unit_test(test_lost_memory),
    cmocka_unit_test(test_forgets),
    cmocka_unit_test(test_stops_in_mid_step),
    cmocka_unit_test(test_ends_before_it_declares),
    cmocka_unit_test(test_no_room_to_leave),
    cmocka_unit_test(test_killed_while_it_saves),
    cmocka_unit_test(test_silent_engine),
    cmocka_unit_test(test_past_the_engine),
    cmocka_unit_test(test_stolen),
    {0},
};
