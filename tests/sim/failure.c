#include "tests/sim/failure.h"

#include <stdio.h>
#include <string.h>

struct scenario failure_scenario(const char *policy)
{
    return (struct scenario){
        .seed = 7,
        .nodes = 2,
        .ranks_per_node = 2,
        .jobs = 2,
        .steps = 4,
        .policy = policy,
        .delay_us = 200,
        .hostile = SIM_MAX_NODES,
        .max_us = 20000000,
    };
}

struct scenario losses_scenario(const char *policy, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.loses = true;
    scenario.nodes = 2 + (unsigned)(seed * 7 % 6);
    scenario.ranks_per_node = 1 + (unsigned)(seed % 2);
    scenario.uneven = seed % 4 == 3;
    scenario.jobs = 1;
    scenario.steps = 6 + (unsigned)(seed % 7);
    scenario.loss = seed % 3 == 0 ? 0.05 : 0;
    scenario.delay_us = 200 + seed * 31 % 3000;
    scenario.crash_every_us = seed % 5 == 0 ? 0 : 300000 + seed * 977 % 1500000;
    scenario.max_crashes = 6;
    scenario.cut_every_us = seed % 3 == 1 ? 0 : 400000 + seed * 331 % 2000000;
    scenario.pause_every_us = seed % 4 == 1 ? 500000 : 0;
    scenario.away_us = 4000000;
    scenario.compute_us = 20000;
    scenario.max_us = 400000000;
    return scenario;
}

bool losses_run(const struct scenario *scenario, struct losses_ends *ends, char found[SIM_TEXT])
{
    struct world *world = world_create(scenario);
    bool right = world_run(world);

    (void)snprintf(found, SIM_TEXT, "%s", world->violation);
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        ends->done += trainer->state == TRAINER_DONE ? 1 : 0;
        ends->left_out += strstr(trainer->error.text, "went on without") != NULL ? 1 : 0;
        ends->joined += trainer->since > 0 ? 1 : 0;
    }
    world_destroy(world);
    return right;
}

struct losses_ends losses_all(
    uint64_t seeds, bool (*run)(uint64_t seed, struct losses_ends *ends, char *found))
{
    struct losses_ends ends = {0};
    char found[SIM_TEXT];

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        if (!run(seed, &ends, found)) {
            (void)printf("# seed %llu: %s\n", (unsigned long long)seed, found);
            fail();
        }
    }
    return ends;
}

void losses_find(enum planted bug, const char *name, bool (*run)(uint64_t seed, char *found))
{
    char found[SIM_TEXT];
    uint64_t seed = 1;

    coverage_count(false);
    planted_bug = bug;
    while (seed <= 200 && run(seed, found)) {
        seed++;
    }
    planted_bug = PLANTED_NONE;
    coverage_count(true);
    (void)printf("# planted %s: found in seed %llu: %s\n", name, (unsigned long long)seed, found);
    assert_true(seed <= 200);
    assert_true(run(seed, found));
}

struct world *failure_world(const char *policy)
{
    struct scenario scenario = failure_scenario(policy);
    struct world *world = world_create(&scenario);

    world->job[0].may_fail = true;
    return world;
}

void expect_rank(const struct trainer *trainer, enum adtopk_status status, const char *culprit,
    const char *second)
{
    const char *text = trainer->error.text;

    if (trainer->state != TRAINER_FAILED || trainer->error.code != status ||
        strstr(text, culprit) == NULL || strstr(text, second) == NULL) {
        (void)printf("# rank %u, state %d: %s: %s\n", trainer->rank, (int)trainer->state,
            adtopk_status_name(trainer->error.code), text);
    }
    assert_int_equal(trainer->state, TRAINER_FAILED);
    assert_int_equal(trainer->error.code, status);
    assert_non_null(strstr(text, culprit));
    assert_non_null(strstr(text, second));
}

void expect_end(struct world *world)
{
    if (!world_run(world)) {
        (void)printf("# %s\n", world->violation);
    }
    assert_false(world->violated);
    for (unsigned i = 0; i < world->job[1].trainers; i++) {
        assert_int_equal(world->trainer[world->job[1].first + i].state, TRAINER_DONE);
    }
}

void expect_all(
    struct world *world, enum adtopk_status status, const char *culprit, const char *second)
{
    expect_end(world);
    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        if (!world->trainer[i].lost) {
            expect_rank(&world->trainer[i], status, culprit, second);
        }
    }
    world_destroy(world);
}

void lose(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_LOST, .reason = "it was killed"};

    trainer->lost = true;
    trainer->state = TRAINER_FAILED;
    assert_int_equal(trainer_request(trainer, &event, NULL), ADTOPK_OK);
    trainer->session = 0;
}

void lose_node(struct world *world, unsigned node)
{
    world->job[0].may_fail = true;
    check_residuals(world, node, 0);
    check_forget_step(world, node, 0, UINT64_C(1) << node);
    node_crash(world, node);
    for (unsigned i = 0; i < world->trainers; i++) {
        struct trainer *trainer = &world->trainer[i];
        if (trainer->node == node && trainer->state < TRAINER_DONE) {
            trainer->lost = true;
            trainer->state = TRAINER_FAILED;
        }
    }
}

void expect_rest(struct world *world, const char *about)
{
    bool held = world_run(world);

    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (!held || (!trainer->lost && trainer->state != TRAINER_DONE)) {
            (void)printf(
                "# %s: %s; rank %u: %s\n", about, world->violation, i, trainer->error.text);
            held = false;
        }
    }
    assert_true(held);
}

void leave(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_LEAVE};

    assert_int_equal(trainer_request(trainer, &event, NULL), ADTOPK_OK);
}

void let_go(struct trainer *trainer)
{
    trainer->hold = HOLD_NEVER;
    world_wake(trainer->world, trainer, 1);
}

bool later(const struct world *world)
{
    return world->now_us > 200000;
}

bool all_in_step(const struct world *world, uint64_t step)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state != TRAINER_RUNNING || world->trainer[i].step < step) {
            return false;
        }
    }
    return true;
}

bool all_run_step_one(const struct world *world)
{
    return all_in_step(world, 1);
}

uint64_t until_us;

bool waited(const struct world *world)
{
    return world->now_us >= until_us;
}

bool others_run(const struct world *world)
{
    return world->trainer[0].state == TRAINER_RUNNING && world->trainer[0].step == 2 &&
           later(world);
}

bool some_node_is_mute(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        if (world->node[n].bulk_packets > world->node[n].bulk_last) {
            return true;
        }
    }
    return false;
}

bool mute_or_over(const struct world *world)
{
    return some_node_is_mute(world) || world->trainer[0].state >= TRAINER_DONE;
}
