/*
 * Random scenarios with every kind of fault, single failures and planted bugs; at the end, every
 * declared move of the core's state machines must have been made. A seed can be run alone:
 *     test_sim SEED [COUNT], or test_sim many SEED [COUNT]
 * and so can a test, or some: ADTOPK_SIM_TEST='*leave*' test_sim
 */
#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/host/sanitized.h"
#include "tests/sim/suites.h"
#include "tests/sim/world.h"

#define SIM_SEEDS CASES(1000u, 60u)
#define MIN_EVENTS CASES(5000000u, 200000u)
#define MIN_FAULTED_ROUNDS CASES(20000u, 1000u)
#define DENSE_SEEDS CASES(20u, 6u)
#define TESTS_MAX 240u
#define SIM_SEEDS_LONG 20000u
#define MIN_FAULTED_ROUNDS_LONG 500000u
#define MANY_SEEDS_LONG 24u

static void print_total(void)
{
    const struct sim_stats *total = &scenario_total;

    (void)printf("# %llu runs, %llu without kept stores, %llu events, %llu packets (%llu lost, "
                 "%llu duplicated), "
                 "%llu crashes, %llu cuts, %llu pauses, %llu storms, %llu deaths of engines, "
                 "%llu moves of residuals between engines\n",
        (unsigned long long)total->runs, (unsigned long long)total->fleeting,
        (unsigned long long)total->events, (unsigned long long)total->packets,
        (unsigned long long)total->lost, (unsigned long long)total->duplicated,
        (unsigned long long)total->crashes, (unsigned long long)total->cuts,
        (unsigned long long)total->pauses, (unsigned long long)total->storms,
        (unsigned long long)total->deaths, (unsigned long long)total->moves);
    (void)printf("# %llu steps (%llu withdrawn), %llu rounds, %llu of them under faults\n",
        (unsigned long long)total->steps, (unsigned long long)total->withdrawn,
        (unsigned long long)total->rounds, (unsigned long long)total->faulted_rounds);
    (void)printf(
        "# %llu switches that were asked for, %llu refused or called off, %llu "
        "verifications, %llu traces, %llu ranks told, %llu checkpoints, %llu plans proposed, %llu "
        "selections compared, %llu "
        "updates of "
        "unpushed tensors, %llu residuals that stayed\n",
        (unsigned long long)total->switched, (unsigned long long)total->called_off,
        (unsigned long long)total->verified, (unsigned long long)total->recorded,
        (unsigned long long)total->listed, (unsigned long long)total->due,
        (unsigned long long)total->replanned, (unsigned long long)total->selections,
        (unsigned long long)total->unpushed, (unsigned long long)total->unmoved);
    (void)printf(
        "# %llu ranks whose node the others lost, %llu taken in again; %llu and %llu of them "
        "in runs of more than %u nodes; the largest run had %llu\n",
        (unsigned long long)total->left_out, (unsigned long long)total->taken_in,
        (unsigned long long)total->many_left_out, (unsigned long long)total->many_taken_in,
        MANY_NODES, (unsigned long long)total->nodes);
    (void)printf("# %llu.%06llu s of virtual time\n",
        (unsigned long long)(total->virtual_us / 1000000),
        (unsigned long long)(total->virtual_us % 1000000));
}

static unsigned run_seeds(struct scenario (*draw)(uint64_t seed), uint64_t first, uint64_t count)
{
    unsigned failed = 0;

    for (uint64_t seed = first; seed < first + count && failed < 10; seed++) {
        struct scenario scenario = draw(seed);
        failed += scenario_run(&scenario, true) ? 0 : 1;
    }
    print_total();
    return failed;
}

static uint64_t seeds_wanted(void)
{
    const char *seeds = getenv("ADTOPK_SIM_SEEDS");

    if (seeds != NULL) {
        return strtoull(seeds, NULL, 10);
    }
    return CASES_OF(SIM_SEEDS_LONG, SIM_SEEDS, SIM_SEEDS);
}

static void assert_every_fault(const struct sim_stats *total)
{
    assert_true(total->lost > 0 && total->duplicated > 0);
    assert_true(total->crashes > 0 && total->cuts > 0 && total->pauses > 0 && total->storms > 0);
    assert_true(total->left_out > 0 && total->taken_in > 0 && total->spoiled > 0);
}

static void test_random_scenarios(void **state)
{
    (void)state;
    assert_int_equal(run_seeds(scenario_of, 1, seeds_wanted()), 0);
    if (seeds_wanted() >= SIM_SEEDS) {
        assert_true(scenario_total.events >= MIN_EVENTS);
        assert_true(scenario_total.faulted_rounds >= MIN_FAULTED_ROUNDS);
        assert_true(scenario_total.switched > 0 && scenario_total.called_off > 0);
        assert_true(scenario_total.verified > 0 && scenario_total.recorded > 0);
        assert_true(scenario_total.listed > 0);
        assert_true(scenario_total.due > 0);
        assert_true(scenario_total.fleeting > 0);
        assert_true(scenario_total.selections > 0);
        assert_true(scenario_total.deaths > 0 && scenario_total.moves > 0);
        assert_true(scenario_total.unpushed > 0 && scenario_total.unmoved > 0);
    }
    if (!SANITIZED && seeds_wanted() >= SIM_SEEDS) {
        assert_every_fault(&scenario_total);
    }
    if (seeds_wanted() >= SIM_SEEDS_LONG) {
        assert_true(scenario_total.faulted_rounds >= MIN_FAULTED_ROUNDS_LONG);
        assert_int_equal(scenario_total.nodes, SIM_MAX_NODES);
    }
}

/* Jobs of more than MANY_NODES lose nodes, and take nodes in again. In a long run. */
static void test_many_are_lost(void **state)
{
    const struct sim_stats *total = &scenario_total;

    (void)state;
    if (CASES_OF(MANY_SEEDS_LONG, 0, 0) == 0) {
        return; /* skip() prints "not ok", which meson takes for a failure */
    }
    assert_int_equal(run_seeds(scenario_of_many, 1, MANY_SEEDS_LONG), 0);
    assert_true(total->many_left_out > 0 && total->many_taken_in > 0);
}

/* Two phases, slow computes and many crashes: views that change while something is computed. */
static void test_dense_crashes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= DENSE_SEEDS; seed++) {
        struct scenario scenario = {
            .seed = seed,
            .nodes = 3,
            .ranks_per_node = 1,
            .steps = 8,
            .policy = "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"bucket_bytes\":1}",
            .compute_us = 10000,
            .delay_us = 500,
            .crash_every_us = 20000,
            .max_crashes = 12,
            .hostile = SIM_MAX_NODES,
            .max_us = 600000000,
        };
        assert_true(scenario_run(&scenario, true));
    }
}

static void test_coverage(void **state)
{
    (void)state;
    assert_int_equal(coverage_print(), 0);
}

/* The checks of the simulator find planted bugs. Sanitizers add nothing to that but minutes. */
static bool looks_for_planted(const struct CMUnitTest *suite, const char *name)
{
    return suite == suite_planted || strncmp(name, "test_planted_", 13) == 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest random[] = {cmocka_unit_test(test_random_scenarios),
        cmocka_unit_test(test_many_are_lost), cmocka_unit_test(test_dense_crashes), {0}};
    const struct CMUnitTest last[] = {cmocka_unit_test(test_coverage), {0}};
    const struct CMUnitTest *const suites[] = {random, suite_forming, suite_failures, suite_misuse,
        suite_patience, suite_stopped, suite_switching, suite_splits, suite_vanish, suite_leaving,
        suite_saving, suite_due, suite_loss, suite_far, suite_moving, suite_carried, suite_shrink,
        suite_forms, suite_rests, suite_restarting, suite_grow, suite_newcomers, suite_comeback,
        suite_successor, suite_planted, last};
    struct CMUnitTest tests[TESTS_MAX];
    size_t count = 0;

    const bool many = argc > 2 && strcmp(argv[1], "many") == 0;
    if (argc > 1) {
        char **numbers = argv + (many ? 2 : 1);
        uint64_t seeds = numbers[1] != NULL ? strtoull(numbers[1], NULL, 10) : 1;
        return run_seeds(many ? scenario_of_many : scenario_of, strtoull(numbers[0], NULL, 10),
                   seeds) == 0
                   ? 0
                   : 1;
    }
    for (size_t i = 0; i < sizeof(suites) / sizeof(suites[0]); i++) {
        for (const struct CMUnitTest *test = suites[i]; test->name != NULL; test++) {
            assert(count < TESTS_MAX);
            if (!SANITIZED || !looks_for_planted(suites[i], test->name)) {
                tests[count++] = *test;
            }
        }
    }
    cmocka_set_test_filter(getenv("ADTOPK_SIM_TEST"));
    return _cmocka_run_group_tests("sim", tests, count, NULL, NULL);
}
