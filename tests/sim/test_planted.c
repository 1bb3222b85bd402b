/* Every planted bug is found by the checks within a few seeds, and without it the same seeds pass:
 * the checks can fail, and fail for the bug. */
#include <stdio.h>

#include "tests/sim/suites.h"
#include "tests/sim/world.h"

#define SEEDS 200u

/* Non-finite gradients in every run and crashes in most: where some bugs live. */
static struct scenario scenario_for(uint64_t seed)
{
    struct scenario scenario = scenario_of(seed);

    scenario.refuses = MEMORY_ALL;
    scenario.nonfinite = 0.05;
    if (seed % 4 != 0) {
        scenario.crash_every_us = 5000;
        scenario.max_crashes = 10;
    }
    scenario.max_us = 600000000;
    return scenario;
}

/* The first seed in which the bug is found; 0: none. */
static uint64_t hunt(enum planted bug)
{
    uint64_t found = 0;

    planted_bug = bug;
    coverage_count(false);
    for (uint64_t seed = 1; found == 0 && seed <= SEEDS; seed++) {
        struct scenario scenario = scenario_for(seed);
        found = scenario_run(&scenario, false) ? 0 : seed;
    }
    coverage_count(true);
    planted_bug = PLANTED_NONE;
    return found;
}

static void find(enum planted bug, const char *name)
{
    uint64_t found = hunt(bug);
    struct scenario scenario = scenario_for(found);

    (void)printf("# planted %s: found in seed %llu\n", name, (unsigned long long)found);
    assert_int_not_equal(found, 0);
    assert_true(scenario_run(&scenario, true));
}

static void test_dropped_residual(void **state)
{
    (void)state;
    find(PLANTED_RESIDUAL, "dropped residual");
}

static void test_doubled_message(void **state)
{
    (void)state;
    find(PLANTED_DOUBLE, "doubled message");
}

static void test_stale_view(void **state)
{
    (void)state;
    find(PLANTED_VIEW, "stale view");
}

static void test_repeated_gradient(void **state)
{
    (void)state;
    find(PLANTED_GRADIENT, "repeated gradient");
}

static void test_lost_flag(void **state)
{
    (void)state;
    find(PLANTED_NONFINITE, "lost non-finite flag");
}

static void test_unsettled_copy(void **state)
{
    (void)state;
    find(PLANTED_SETTLE, "unsettled copy");
}

static void test_other_rounding(void **state)
{
    (void)state;
    find(PLANTED_ROUNDING, "rounding with another seed");
}

static void test_wrong_mean(void **state)
{
    (void)state;
    find(PLANTED_MEAN, "mean over nodes x local ranks");
}

static void test_ignored_credit(void **state)
{
    (void)state;
    find(PLANTED_CREDIT, "ignored credit");
}

static void test_leave_storm(void **state)
{
    (void)state;
    find(PLANTED_STORM, "leave storm");
}

static void test_delivered_twice(void **state)
{
    (void)state;
    find(PLANTED_TWICE, "frame delivered twice");
}

const struct CMUnitTest suite_planted[] = {
    cmocka_unit_test(test_dropped_residual),
    cmocka_unit_test(test_doubled_message),
    cmocka_unit_test(test_stale_view),
    cmocka_unit_test(test_repeated_gradient),
    cmocka_unit_test(test_lost_flag),
    cmocka_unit_test(test_unsettled_copy),
    cmocka_unit_test(test_other_rounding),
    cmocka_unit_test(test_wrong_mean),
    cmocka_unit_test(test_ignored_credit),
    cmocka_unit_test(test_leave_storm),
    cmocka_unit_test(test_delivered_twice),
    {0},
};
