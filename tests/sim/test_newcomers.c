/*
 * Nodes that want to join a job while it trains, and what becomes of those that wait: they are
 * refused with a reason, or they are taken in, whatever happens to the others meanwhile.
 */
#include <stdio.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/growing.h"

static const struct trainer *refused_one;

static bool is_refused(const struct world *world)
{
    (void)world;
    return refused_one->state == TRAINER_FAILED;
}

/* Its rank has come, and is told why the job does not take it. The others take all of their steps.
 */
static void expect_refusal(
    struct world *world, struct trainer *trainer, enum adtopk_status status, const char *sentence)
{
    refused_one = trainer;
    assert_true(world_until(world, is_refused));
    expect_rank(trainer, status, sentence, "");
    trainer->lost = true;
    grow_release(world);
    expect_rest(world, sentence);
    world_destroy(world);
}

/* A node of four is lost, and all others wait for it before their last steps. */
static struct world *without_node(unsigned node, bool later)
{
    struct scenario scenario = growing_scenario(MEAN, 4, 1, 15);
    struct world *world;

    scenario.later = later;
    world = world_create(&scenario);
    world->job[0].may_fail = world->job[0].bent = true;
    assert_true(world_until(world, grow_in_step_four));
    grow_hold_others(world, node, STEPS - 1);
    lose_node(world, node);
    assert_true(world_until(world, grow_is_smaller));
    return world;
}

static void test_refusals(void **state)
{
    struct world *world = without_node(2, false);

    (void)state;
    world->trainer[2].says_rank = 1;
    grow_come_back(world, 2);
    expect_refusal(world, &world->trainer[2], ADTOPK_ERR_MISMATCH,
        "rank 1 of job 'job' trains on another node than 2");

    world = without_node(2, true);
    grow_come_back(world, 2);
    expect_refusal(world, &world->trainer[2], ADTOPK_ERR_STATE, "committed more tensors");
}

static bool is_four(const struct world *world)
{
    return grow_nodes(world) == 4;
}

/* Nodes 3 and 4 are lost. Node 3 comes back, and the others wait for node 4 before they take it. */
static struct world *one_waits(void)
{
    struct world *world = growing_world(MEAN, 5, 1, 15);

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, 3, STEPS - 2);
    lose_node(world, 3);
    lose_node(world, 4);
    world->trainer[4].hold = HOLD_NEVER;
    assert_true(world_until(world, grow_is_three));
    grow_come_back(world, 3);
    until_us = world->now_us + 300000;
    assert_true(world_until(world, waited));
    return world;
}

/* Node 4 comes back with rank 3, too. The first that came is taken. */
static void test_rank_of_two_newcomers(void **state)
{
    struct world *world = one_waits();

    (void)state;
    world->trainer[4].says_rank = 3;
    grow_come_back(world, 4);
    assert_true(world_until(world, is_four));
    expect_refusal(world, &world->trainer[4], ADTOPK_ERR_MISMATCH,
        "rank 3 of job 'job' trains on another node than 4");
}

static bool others_hold(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->hold == HOLD_STEP && trainer->step != trainer->hold_step) {
            return false;
        }
    }
    return true;
}

/* Nodes 3 and 4 are lost, and come back at the same time. prepare: what is wrong with node 4. The
 * others hold in `step`. coordinator_us: so long before that node 0 is lost; 0: it is not. */
static struct world *come_at_once(
    uint64_t seed, void (*prepare)(struct trainer *fourth), uint64_t step, uint64_t coordinator_us)
{
    struct world *world = growing_world(MEAN, 5, 1, seed);

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, 3, step);
    world->trainer[4].hold = HOLD_NEVER;
    lose_node(world, 3);
    lose_node(world, 4);
    assert_true(world_until(world, grow_is_three));
    prepare(&world->trainer[4]);
    if (coordinator_us != 0) {
        assert_true(world_until(world, others_hold));
        lose_node(world, 0);
        until_us = world->now_us + coordinator_us;
        assert_true(world_until(world, waited));
    }
    grow_come_back(world, 3 + seed % 2);
    grow_come_back(world, 4 - seed % 2);
    return world;
}

static void says_rank_three(struct trainer *fourth)
{
    fourth->says_rank = 3;
}

static void says_another_tensor(struct trainer *fourth)
{
    (void)strcpy(fourth->tensor[0].name, "another");
}

static bool one_is_refused(const struct world *world)
{
    return world->trainer[3].state == TRAINER_FAILED || world->trainer[4].state == TRAINER_FAILED;
}

static bool one_is_taken(const struct world *world)
{
    for (unsigned n = 3; n <= 4; n++) {
        struct job_info info;
        if (check_find(world, n, 0, &info) && strcmp(info.state, "active") == 0) {
            assert_string_equal(info.reason, "");
            return true;
        }
    }
    return false;
}

/* One of the two is refused, and the other one is taken. Returns the one that was refused. */
static const struct trainer *expect_one(struct world *world, const char *sentence)
{
    struct trainer *refused;

    assert_true(world_until(world, one_is_refused));
    refused = &world->trainer[world->trainer[3].state == TRAINER_FAILED ? 3 : 4];
    expect_rank(refused, ADTOPK_ERR_MISMATCH, sentence, "");
    refused->lost = true;
    for (unsigned i = 1; i < 3; i++) { /* they end the step in which node 0 may have been lost */
        world->trainer[i].hold_step = STEPS - 2;
        world_wake(world, &world->trainer[i], 1);
    }
    assert_true(world_until(world, one_is_taken));
    grow_release(world);
    expect_rest(world, sentence);
    return refused;
}

/* Both bring rank 3. They and the other nodes hear of them in any order. */
static void test_rank_of_two_at_once(void **state)
{
    unsigned refused[2] = {0, 0};

    (void)state;
    for (uint64_t seed = 1; seed <= CASES(60u, 8u); seed++) {
        struct world *world = come_at_once(seed, says_rank_three, STEPS - 2, 0);
        const struct trainer *one = expect_one(world, "trains on another node");
        refused[one - &world->trainer[3]]++;
        world_destroy(world);
    }
    assert_true(refused[0] > 0 && refused[1] > 0);
}

/* Node 4 brings another tensor. It alone is refused. */
static void test_other_tensors_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CASES(60u, 8u); seed++) {
        struct world *world = come_at_once(seed, says_another_tensor, STEPS - 2, 0);
        assert_ptr_equal(expect_one(world, "tensor 0"), &world->trainer[4]);
        world_destroy(world);
    }
}

/* Both bring rank 3. The coordinator is lost, and the next one has heard of both before it is one.
 */
static void test_coordinator_lost_at_once(void **state)
{
    (void)state;
    for (uint64_t ms = 1; ms <= 1500; ms += CASES(20u, 100u)) {
        struct world *world = come_at_once(1 + ms / 20, says_rank_three, 3, ms * 1000);
        (void)expect_one(world, "trains on another node");
        world_destroy(world);
    }
}

/* A job begins, and node 1 does not fit, or fails. All hear that, although none is a newcomer. */
static void test_nobody_trains(void **state)
{
    struct world *world = growing_world(MEAN, 3, 1, 15);

    (void)state;
    (void)strcpy(world->trainer[1].tensor[0].name, "another");
    (void)world_run(world);
    for (unsigned i = 0; i < 3; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_MISMATCH, "tensor 0", "another name");
    }
    world_destroy(world);

    world = growing_world(MEAN, 3, 1, 15);
    world->trainer[1].hold = HOLD_OPEN;
    until_us = 100000;
    assert_true(world_until(world, waited));
    lose(&world->trainer[1]);
    assert_true(world_run(world));
    assert_true(world->now_us < 10000000); /* long before join_timeout */
    expect_rank(&world->trainer[0], ADTOPK_ERR_PEER, "rank 1", "gone");
    expect_rank(&world->trainer[2], ADTOPK_ERR_PEER, "rank 1", "gone");
    world_destroy(world);
}

/* A rank never comes, so all nodes give up at about the same time. While they doubt whether others
 * train, they do not pass on what each of them says. */
static void test_all_give_up(void **state)
{
    struct world *world = growing_world(MEAN, 24, 1, 15);

    (void)state;
    world->trainer[23].hold = HOLD_OUT;
    until_us = 40000000; /* longer than join_timeout */
    assert_true(world_until(world, waited));
    for (unsigned i = 0; i < 23; i++) {
        expect_rank(&world->trainer[i], ADTOPK_ERR_TIMEOUT, "rank 23", "");
        assert_in_range(flow_of(world, i, (i + 1) % 23)->messages[LINK_CONTROL], 1, 4);
    }
    world_destroy(world);
}

/* Node 4 comes back with another tensor. It is told so, and node 3 waits on until all the others
 * have taken it. */
static void test_other_tensors_beside(void **state)
{
    struct world *world = one_waits();
    struct trainer *stranger = &world->trainer[4];

    (void)state;
    (void)strcpy(stranger->tensor[0].name, "another");
    grow_come_back(world, 4);
    assert_true(world_until(world, is_four));
    expect_refusal(world, stranger, ADTOPK_ERR_MISMATCH, "tensor 0");
}

/* The daemon of a node that trains restarts, and node 4 comes only then. Both are taken. */
static void waits_over_restart(unsigned restarted)
{
    struct world *world = one_waits();

    node_crash(world, restarted);
    world_at(world, 1000, (struct sim_event){.type = SIM_RESTART, .node = restarted});
    until_us = world->now_us + 2000000;
    assert_true(world_until(world, waited));
    grow_come_back(world, 4);
    assert_true(world_until(world, grow_has_joined));
    grow_release(world);
    expect_rest(world, "waits over a restart");
    world_destroy(world);
}

static void test_waits_over_restart(void **state)
{
    (void)state;
    for (unsigned node = 0; node < 3; node++) {
        waits_over_restart(node);
    }
}

/* Meanwhile the ranks of the others leave. */
static void test_ends_before_it_joins(void **state)
{
    struct world *world = one_waits();

    (void)state;
    world->trainer[3].lost = true;
    grow_release(world);
    expect_rest(world, "ends");
    expect_rank(&world->trainer[3], ADTOPK_ERR_PEER, "ended before it took node 3 in", "");
    world_destroy(world);
}

/* The job begins on three nodes. */
static void test_one_node_too_many(void **state)
{
    struct world *world = growing_world(MEAN, 4, 1, 15);

    (void)state;
    world->job[0].trainers = 3;
    for (unsigned i = 0; i < 4; i++) {
        world->trainer[i].says_world_size = 3;
    }
    world->trainer[3].says_rank = 2;
    grow_hold_others(world, 3, STEPS - 2);
    world->trainer[3].hold = HOLD_OUT;
    assert_true(world_until(world, later));
    let_go(&world->trainer[3]);
    expect_refusal(world, &world->trainer[3], ADTOPK_ERR_STATE, "has memory for no more");
}

/* ------------------------------------------------------------------ a step that takes long */

#define LONG_US 45000000u     /* longer than join_timeout, shorter than push_timeout */
#define TOO_LONG_US 90000000u /* longer than push_timeout */

static void expect_wait(const struct world *world, unsigned node, const char *what)
{
    struct job_info info = {.waiting_for = "nothing"};

    (void)check_find(world, node, 0, &info);
    if (strstr(info.waiting_for, what) == NULL) {
        (void)printf("# node %u waits for %s\n", node, info.waiting_for);
        fail();
    }
}

/* Node 2 of four is lost in a step in which the others push nothing for so long, and its rank comes
 * back at once. */
static struct world *comes_in_long_step(uint64_t for_us)
{
    struct world *world = growing_world(MEAN, 4, 1, 15);

    grow_hold_others(world, 2, 3);
    assert_true(world_until(world, others_hold));
    lose_node(world, 2);
    world->job[0].bent = true;
    assert_true(world_until(world, grow_is_smaller));
    grow_come_back(world, 2);
    until_us = world->now_us + for_us;
    assert_true(world_until(world, waited));
    return world;
}

/* It waits until the others close that step, and says so. */
static void test_lost_in_long_step(void **state)
{
    struct world *world = comes_in_long_step(LONG_US);

    (void)state;
    expect_wait(world, 2, "the nodes that train to take node 2 in");
    grow_release(world);
    expect_rest(world, "a long step");
    assert_true(world->trainer[2].since > 0);
    world_destroy(world);

    world = comes_in_long_step(TOO_LONG_US);
    expect_refusal(
        world, &world->trainer[2], ADTOPK_ERR_TIMEOUT, "the nodes that train to take node 2 in");
}

/* Node 2 has joined, and watches a step in which the others push nothing for so long. */
static struct world *watches_long_step(double idle, uint64_t for_us)
{
    struct scenario scenario = growing_scenario(MEAN, 4, 1, 15);
    struct world *world;

    scenario.idle = idle;
    world = world_create(&scenario);
    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, 2, STEPS - 2);
    lose_node(world, 2);
    world->job[0].bent = true;
    assert_true(world_until(world, grow_is_smaller));
    assert_true(world_until(world, others_hold));
    grow_come_back(world, 2);
    assert_true(world_until(world, grow_has_joined));
    until_us = world->now_us + for_us;
    assert_true(world_until(world, waited));
    return world;
}

/* It takes part from the next step on, whenever that begins, and says for whom it waits. */
static void test_watches_long_step(void **state)
{
    struct world *world = watches_long_step(0, LONG_US);

    (void)state;
    expect_wait(world, 2, "rank 0 on node 0 to push tensor");
    grow_release(world);
    expect_rest(world, "a long step that a node watches");
    assert_true(world->trainer[2].since == STEPS - 1);
    world_destroy(world);

    world = watches_long_step(0, TOO_LONG_US);
    expect_refusal(world, &world->trainer[2], ADTOPK_ERR_TIMEOUT, "rank 0 on node 0 to push");
}

/* All ranks end their steps, and none pushes anything. */
static void test_steps_without_pushes(void **state)
{
    struct world *world = watches_long_step(2, 1000000);

    (void)state;
    grow_release(world);
    expect_rest(world, "steps without pushes");
    assert_true(world->trainer[2].since == STEPS - 1);
    world_destroy(world);
}

#define SHORT_PUSH                                                                                 \
    "{\"reduce\":\"mean\",\"sparsifier\":\"dense\",\"join_timeout\":60,\"push_timeout\":5,"        \
    "\"wait_limit\":60,\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"grow\":true}"

/* Its rank commits later than push_timeout, and earlier than join_timeout. */
static void test_commits_late(void **state)
{
    struct world *world = growing_world(SHORT_PUSH, 4, 1, 15);

    (void)state;
    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, 2, STEPS - 2);
    lose_node(world, 2);
    assert_true(world_until(world, grow_is_smaller));
    world->trainer[2].hold = HOLD_OPEN;
    grow_come_back(world, 2);
    until_us = world->now_us + 8000000;
    assert_true(world_until(world, waited));
    let_go(&world->trainer[2]);
    assert_true(world_until(world, grow_has_joined));
    grow_release(world);
    expect_rest(world, "commits late");
    world_destroy(world);
}

/* It has waited longer than join_timeout. The daemons of all that train restart at once. */
static void test_hosts_restart_together(void **state)
{
    struct world *world = comes_in_long_step(LONG_US);

    (void)state;
    for (uint16_t node = 0; node < 4; node++) {
        if (node != 2) {
            node_crash(world, node);
            world_at(world, 1000, (struct sim_event){.type = SIM_RESTART, .node = node});
        }
    }
    until_us = world->now_us + 3000000;
    assert_true(world_until(world, waited));
    assert_int_not_equal(world->trainer[2].state, TRAINER_FAILED);
    grow_release(world);
    expect_rest(world, "all restart");
    assert_true(world->trainer[2].since > 0);
    world_destroy(world);
}

/* ------------------------------------------------------------------ late ranks of a newcomer */

/* Node 2 comes back with one of its two ranks, and is taken in after shrink_after. The other one
 * has come this far by then. */
static void late_rank(unsigned late, enum trainer_hold hold)
{
    struct world *world = growing_world(MEAN, 4, 2, 15);
    struct trainer *trainer = &world->trainer[4 + late];

    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, 2, STEPS - 2);
    lose_node(world, 2);
    world->job[0].bent = true;
    assert_true(world_until(world, grow_is_smaller));
    trainer->hold = hold;
    grow_come_back(world, 2);
    assert_true(world_until(world, grow_has_joined));
    let_go(trainer);
    expect_refusal(world, trainer, ADTOPK_ERR_STATE, "came too late");
}

static void test_late_rank(void **state)
{
    static const enum trainer_hold holds[] = {HOLD_OUT, HOLD_OPEN, HOLD_COMMITTED};

    (void)state;
    for (unsigned i = 0; i < 2 * sizeof(holds) / sizeof(holds[0]); i++) {
        late_rank(i % 2, holds[i / 2]);
    }
}

/* The other one comes as the node is taken in: in time, or too late. */
static unsigned rank_in_between(unsigned late_us)
{
    struct world *world = growing_world(MEAN, 4, 2, 15);
    struct trainer *trainer = &world->trainer[5];
    unsigned took;

    assert_true(world_until(world, all_run_step_one));
    grow_hold_others(world, 2, STEPS - 2);
    lose_node(world, 2);
    world->job[0].bent = true;
    assert_true(world_until(world, grow_is_smaller));
    trainer->hold = HOLD_COMMITTED;
    grow_come_back(world, 2);
    until_us = world->now_us + 998000 + late_us;
    assert_true(world_until(world, waited));
    let_go(trainer);
    assert_true(world_until(world, grow_has_joined));
    grow_release(world);
    if (!world_run(world) || world->trainer[4].state != TRAINER_DONE) {
        (void)printf("# after %u us: %s; %s\n", late_us, world->violation, trainer->error.text);
        fail();
    }
    took = trainer->state == TRAINER_DONE ? 1 : 0;
    if (took == 0) {
        expect_rank(trainer, ADTOPK_ERR_STATE, "came too late", "");
    }
    world_destroy(world);
    return took;
}

static void test_rank_in_between(void **state)
{
    unsigned took = 0, cases = 0;

    (void)state;
    for (unsigned late_us = 0; late_us < 6000; late_us += CASES(200u, 600u), cases++) {
        took += rank_in_between(late_us);
    }
    (void)printf("# %u of %u ranks came in time\n", took, cases);
    assert_true(took > 0 && took < cases);
}

static bool proposes(const struct world *world)
{
    struct job_info info = {.state = "none"};

    return check_find(world, 0, 0, &info) && strcmp(info.state, "active") != 0;
}

/* Nodes 3 and 4 are lost. Node 3 is proposed with one of its two ranks. Then node 4 joins, and the
 * other rank of node 3 comes. */
static void rank_beside_newcomer(uint64_t seed, uint64_t later_us)
{
    struct world *world = growing_world(MEAN, 5, 2, seed);
    struct trainer *late = &world->trainer[7], *other = &world->trainer[8];

    assert_true(world_until(world, all_run_step_one));
    world->job[0].bent = true;
    grow_hold_others(world, 3, STEPS - 2);
    lose_node(world, 3);
    lose_node(world, 4);
    other->hold = world->trainer[9].hold = HOLD_NEVER;
    assert_true(world_until(world, grow_is_three));
    until_us = world->now_us + 500000;
    assert_true(world_until(world, waited));
    late->hold = other->hold = HOLD_COMMITTED;
    world->trainer[9].hold = HOLD_OUT;
    grow_come_back(world, 3);
    grow_come_back(world, 4);
    assert_true(world_until(world, proposes));
    let_go(other);
    until_us = world->now_us + later_us;
    assert_true(world_until(world, waited));
    let_go(late);
    until_us = world->now_us + 20000000;
    assert_true(world_until(world, waited));
    assert_int_equal(grow_nodes(world), 5);
    grow_release(world);
    let_go(&world->trainer[9]);
    assert_true(world_run(world));
    assert_int_equal(world->trainer[0].state, TRAINER_DONE);
    world_destroy(world);
}

static void test_rank_beside_newcomer(void **state)
{
    (void)state;
    for (uint64_t seed = 15; seed < 21; seed += 2) {
        rank_beside_newcomer(seed, 0);
        rank_beside_newcomer(seed, 50);
    }
}

const struct CMUnitTest suite_newcomers[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_rank_of_two_newcomers),
    cmocka_unit_test(test_rank_of_two_at_once),
    cmocka_unit_test(test_other_tensors_at_once),
    cmocka_unit_test(test_coordinator_lost_at_once),
    cmocka_unit_test(test_nobody_trains),
    cmocka_unit_test(test_all_give_up),
    cmocka_unit_test(test_other_tensors_beside),
    cmocka_unit_test(test_waits_over_restart),
    cmocka_unit_test(test_ends_before_it_joins),
    cmocka_unit_test(test_one_node_too_many),
    cmocka_unit_test(test_lost_in_long_step),
    cmocka_unit_test(test_watches_long_step),
    cmocka_unit_test(test_steps_without_pushes),
    cmocka_unit_test(test_commits_late),
    cmocka_unit_test(test_hosts_restart_together),
    cmocka_unit_test(test_late_rank),
    cmocka_unit_test(test_rank_in_between),
    cmocka_unit_test(test_rank_beside_newcomer),
    {0},
};
