/*
 * Several jobs of unequal weights on the same nodes, beside endless traffic of the greatest weight
 * that always goes first. Every round ends, and jobs of a greater weight are done first. If the
 * others got no share, a job would starve, and the test would find that. Traces of an operator
 * leave the lines to steps, too.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/job/model.h"
#include "tests/sim/failure.h"

#define JOBS 3u
#define FLOOD_FRAME 1000u
#define FLOOD_FRAMES 8u

static const char *const policies[JOBS] = {
    "{\"weight\":1,\"rules\":[{\"match\":\"fc.*\",\"priority\":-1000}]}", "{\"weight\":8}",
    "{\"weight\":100,\"rules\":[{\"match\":\"conv*\",\"priority\":7}]}"};

/* Keeps every node's way to every other busy with frames that no job knows. */
static void flood(const struct world *world, uint64_t place)
{
    const struct share_class class = {
        .job = UINT64_MAX, .weight = SHARE_WEIGHT_MAX, .place = place};

    for (unsigned from = 0; from < world->scenario.nodes; from++) {
        struct links *links = world->node[from].core->links;

        for (uint16_t to = 0; to < world->scenario.nodes; to++) {
            struct link_stats stats;

            if (links_stats(links, to, &stats) && stats.queued_bytes < FLOOD_FRAME * FLOOD_FRAMES) {
                struct buffer *frame = buffer_new(FLOOD_FRAME);

                assert_non_null(frame);
                memset(frame->bytes, 0, FLOOD_FRAME);
                for (unsigned i = 0; i < FLOOD_FRAMES; i++) {
                    (void)links_send(links, to, LINK_BULK, &class, frame);
                }
                buffer_unref(frame);
            }
        }
    }
}

static bool is_done(const struct world *world, unsigned job)
{
    for (unsigned i = 0; i < world->job[job].trainers; i++) {
        if (world->trainer[world->job[job].first + i].state != TRAINER_DONE) {
            return false;
        }
    }
    return true;
}

/* Runs the jobs beside the flood; when each was done, 0: not within the scenario's time. */
static void run(uint64_t seed, uint64_t done_us[JOBS])
{
    struct scenario scenario =
        failure_scenario("{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}");
    struct world *world;
    unsigned done = 0;

    scenario.seed = seed;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.jobs = JOBS;
    scenario.loss = 0.01;
    scenario.delay_us = 0; /* no packet overtakes another, which would cost a resend each */
    scenario.compute_us = 20;
    scenario.max_us = 1500000;
    world = world_create(&scenario);
    world->flooded = true;
    for (unsigned i = 0; i < world->trainers; i++) {
        world->trainer[i].says_policy = policies[world->trainer[i].job];
    }
    memset(done_us, 0, JOBS * sizeof(*done_us));
    while (done < JOBS && world->now_us < scenario.max_us && world_turn(world)) {
        flood(world, seed);
        for (unsigned j = 0; j < JOBS; j++) {
            if (done_us[j] == 0 && is_done(world, j)) {
                done_us[j] = world->now_us;
                done++;
            }
        }
    }
    assert_false(world->violated);
    world_destroy(world);
}

static void test_every_job_ends(void **state)
{
    uint64_t done_us[JOBS], sum_us[JOBS] = {0};

    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        run(seed, done_us);
        (void)printf("# done at %llu, %llu and %llu us\n", (unsigned long long)done_us[0],
            (unsigned long long)done_us[1], (unsigned long long)done_us[2]);
        for (unsigned j = 0; j < JOBS; j++) {
            assert_true(done_us[j] > 0);
            sum_us[j] += done_us[j];
        }
    }
    /* Once, lost packets may turn the order. */
    assert_true(sum_us[2] < sum_us[1] && sum_us[1] < sum_us[0]);
}

/* The same with strict priority between jobs and within them. */
static void test_starvation_is_found(void **state)
{
    uint64_t done_us[JOBS];

    (void)state;
    planted_bug = PLANTED_STRICT;
    coverage_count(false);
    run(1, done_us);
    coverage_count(true);
    planted_bug = PLANTED_NONE;
    assert_int_equal(done_us[0], 0);
}

/* When a job on slow lines is done; `traced`: while an operator traces it all the time. */
static uint64_t run_traced(bool traced, struct sim_stats *stats)
{
    struct scenario scenario = failure_scenario("{\"reduce\":\"sum\",\"density\":0.05}");
    struct world *world;
    uint64_t done_us;

    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 150;
    scenario.rate = 20;
    scenario.delay_us = 0;
    scenario.max_us = 200000000;
    world = world_create(&scenario);
    while (!is_done(world, 0) && world->now_us < scenario.max_us && world_turn(world)) {
        for (unsigned node = 0; traced && node < scenario.nodes; node++) {
            operator_look(world, node, 0, EVENT_RECORDS);
        }
    }
    assert_false(world->violated);
    *stats = world->stats;
    done_us = world->now_us;
    world_destroy(world);
    return done_us;
}

/* Records leave the line to steps, and an operator gets the newest of them. */
static void test_traces_yield(void **state)
{
    struct sim_stats alone, beside;
    const uint64_t alone_us = run_traced(false, &alone);
    const uint64_t beside_us = run_traced(true, &beside);

    (void)state;
    (void)printf("# done at %llu us, and at %llu us beside %llu traces, %llu parts late\n",
        (unsigned long long)alone_us, (unsigned long long)beside_us,
        (unsigned long long)beside.recorded, (unsigned long long)beside.recorded_late);
    assert_true(beside.recorded > 0 && beside.recorded_late > 0);
    assert_true(beside_us < alone_us + alone_us / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_job_ends),
        cmocka_unit_test(test_starvation_is_found),
        cmocka_unit_test(test_traces_yield),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
