/*
 * Random scenarios with every kind of fault, a seed each; any of them can be run alone:
 *     test_sim SEED [COUNT]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/sim/world.h"

#define SIM_SEEDS 1000u
#define SIM_SEEDS_LONG 20000u
#define MIN_EVENTS 200000u
#define MIN_FAULTED_ROUNDS 2000u

static const char *const policies[] = {
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"bf16\",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"bucket_bytes\":1}",
    "{\"reduce\":\"sum\",\"density\":0.05,\"scope\":\"rank\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.08,\"scope\":\"rank\",\"values\":\"bf16\",\"interleave\":"
    "false}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"half\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"half\",\"scope\":\"rank\","
    "\"values\":\"bf16\",\"view\":\"longest\"}",
    "{\"reduce\":\"sum\",\"density\":0.06,\"view\":\"row\",\"indices\":\"bitmap\"}",
};

static struct scenario scenario_of(uint64_t seed)
{
    struct world dice = {.random = seed * 77 + 5};
    struct scenario scenario = {
        .seed = seed,
        .nodes = 1 + (unsigned)world_random(&dice, 5),
        .ranks_per_node = 1 + (unsigned)world_random(&dice, 3),
        .steps = 3 + (unsigned)world_random(&dice, 8),
        .operations = (unsigned)world_random(&dice, 4),
        .policy = policies[world_random(&dice, sizeof(policies) / sizeof(policies[0]))],
        .delay_us = 20 + world_random(&dice, 2000),
        .max_us = 60000000,
    };

    if (world_chance(&dice, 0.7)) {
        scenario.loss = (double)world_random(&dice, 20) / 100;
        scenario.duplicate = (double)world_random(&dice, 20) / 100;
        scenario.refuse = (double)world_random(&dice, 10) / 100;
    }
    scenario.crash_every_us = world_chance(&dice, 0.5) ? 3000 + world_random(&dice, 20000) : 0;
    scenario.max_crashes = 2 + (unsigned)world_random(&dice, 8);
    scenario.cut_every_us = world_chance(&dice, 0.2) ? 20000 + world_random(&dice, 40000) : 0;
    scenario.nonfinite = world_chance(&dice, 0.4) ? 0.03 : 0;
    scenario.skip = world_chance(&dice, 0.3) ? 0.1 : 0;
    scenario.wait = scenario.skip == 0 && world_chance(&dice, 0.4) ? 0.2 : 0;
    return scenario;
}

static struct sim_stats total;

static void add_stats(const struct world *world)
{
    const struct sim_stats *s = &world->stats;

    total.runs += s->runs;
    total.events += s->events;
    total.packets += s->packets;
    total.lost += s->lost;
    total.duplicated += s->duplicated;
    total.crashes += s->crashes;
    total.cuts += s->cuts;
    total.rounds += s->rounds;
    total.faulted_rounds += s->faulted_rounds;
    total.steps += s->steps;
    total.withdrawn += s->withdrawn;
}

static bool run_seed(uint64_t seed)
{
    struct scenario scenario = scenario_of(seed);
    struct world *world = world_create(&scenario);
    bool ok = world_run(world);

    if (!ok) {
        (void)printf("# seed %llu: %s (at %llu us; %u nodes x %u ranks, %u steps, %s)\n",
            (unsigned long long)seed, world->violation, (unsigned long long)world->now_us,
            scenario.nodes, scenario.ranks_per_node, scenario.steps, scenario.policy);
    }
    add_stats(world);
    world_destroy(world);
    return ok;
}

static unsigned run_seeds(uint64_t first, uint64_t count)
{
    unsigned failed = 0;

    for (uint64_t seed = first; seed < first + count && failed < 10; seed++) {
        failed += run_seed(seed) ? 0 : 1;
    }
    (void)printf("# %llu runs, %llu events, %llu packets (%llu lost, %llu duplicated), "
                 "%llu crashes, %llu partitions\n",
        (unsigned long long)total.runs, (unsigned long long)total.events,
        (unsigned long long)total.packets, (unsigned long long)total.lost,
        (unsigned long long)total.duplicated, (unsigned long long)total.crashes,
        (unsigned long long)total.cuts);
    (void)printf("# %llu steps (%llu withdrawn), %llu rounds, %llu of them under faults\n",
        (unsigned long long)total.steps, (unsigned long long)total.withdrawn,
        (unsigned long long)total.rounds, (unsigned long long)total.faulted_rounds);
    return failed;
}

static void test_random_scenarios(void **state)
{
    (void)state;
    assert_int_equal(
        run_seeds(1, getenv("ADTOPK_TEST_LONG") != NULL ? SIM_SEEDS_LONG : SIM_SEEDS), 0);
    assert_true(total.events >= MIN_EVENTS);
    assert_true(total.faulted_rounds >= MIN_FAULTED_ROUNDS);
}

static void test_coverage(void **state)
{
    (void)state;
    assert_int_equal(coverage_print(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_scenarios),
        cmocka_unit_test(test_coverage),
    };

    if (argc > 1) {
        return run_seeds(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1) ==
                       0
                   ? 0
                   : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
