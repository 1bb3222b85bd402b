/*
 * Ranks that see updates as lists apply the bits that ranks apply which see all elements. What
 * faults do to lists is for the random scenarios, in which the seed chooses the form of each
 * tensor.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/local.h"
#include "tests/host/sanitized.h"
#include "tests/sim/suites.h"
#include "tests/sim/world.h"

#define FORMS_POLICIES CASES(160u, 40u)

/* One run in which no node fails: tensors that no rank pushes, NaN and loss scales, half of the
 * tensors later than the others. */
static struct scenario forms_scenario(const struct world *dice, unsigned number)
{
    struct scenario scenario = dice->scenario;

    scenario.policy = scenario_policy(dice, number);
    scenario.seed = 1 + number;
    scenario.nodes = 1 + number % 5;
    scenario.ranks_per_node = 1 + number % 2;
    scenario.steps = 7;
    scenario.tensors = number % 3 == 0 ? 0xf80 : 0x1f;
    scenario.later = number % 4 == 1;
    scenario.idle = number % 4 == 2 ? 0.2 : 0;
    scenario.nonfinite = number % 4 == 3 ? 0.03 : 0;
    return scenario;
}

/* The sums of all updates; NULL: the run broke a rule. */
static double *forms_applied(const struct scenario *scenario, uint64_t *elements)
{
    struct world *world = world_create(scenario);
    double *applied = NULL;

    if (world_run(world)) {
        *elements = world->job[0].elements;
        applied = world->job[0].applied;
        world->job[0].applied = NULL;
    } else {
        print_message("# policy %s: %s\n", scenario->policy, world->violation);
    }
    world_destroy(world);
    return applied;
}

static void forms_compare(struct scenario scenario)
{
    uint64_t elements = 0, listed = 0;
    double *dense, *list;

    scenario.forms = LOCAL_FORM_DENSE;
    dense = forms_applied(&scenario, &elements);
    scenario.forms = LOCAL_FORM_LIST;
    list = forms_applied(&scenario, &listed);
    assert_non_null(dense);
    assert_non_null(list);
    assert_int_equal(elements, listed);
    if (memcmp(dense, list, elements * sizeof(*dense)) != 0) {
        fail_msg(
            "seed %u, policy %s: lists have other bits", (unsigned)scenario.seed, scenario.policy);
    }
    free(dense);
    free(list);
}

static void test_lists_have_the_bits_of_the_dense_form(void **state)
{
    (void)state;
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned i = 0; i < FORMS_POLICIES; i++) {
            const struct world dice = {.scenario = {.changed = i % 2 == 0,
                                           .scales = i % 3 == 0 ? SCALES_EXACT : SCALES_NONE,
                                           .half = half * 0xfff,
                                           .hostile = SIM_MAX_NODES,
                                           .max_us = 600000000}};

            forms_compare(forms_scenario(&dice, i));
        }
    }
}

const struct CMUnitTest suite_forms[] = {
    cmocka_unit_test(test_lists_have_the_bits_of_the_dense_form),
    {0},
};
