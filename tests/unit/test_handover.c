/*
 * What is kept beside residuals, from one policy to the next: a core whose policy changes in what
 * does not concern selection goes on, bit for bit, as one whose policy stays. Velocities are in
 * test_pass.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lone_core.h"

#define ROWS 48u
#define COLUMNS 64u
#define STEPS 24u
#define ASKED 9u /* the change, in this step: it is in force two steps later */

/* Lets one of two cores change, and kills its daemon behind that if `killed`. Returns in how many
 * steps their residuals were other ones. */
static unsigned steps_apart(const char *policy, const char *change, bool killed)
{
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){ROWS, COLUMNS});
    struct lone_core lone[2];
    unsigned apart = 0;

    for (unsigned i = 0; i < 2; i++) {
        lone_start(&lone[i], 2, policy, &spec, 1);
        lone[i].changed = true;
    }
    for (unsigned s = 0; s < STEPS; s++) {
        const float *residual[2];
        if (s == ASKED) {
            assert_int_equal(lone_change(&lone[1], 1, change), ADTOPK_OK);
        }
        for (unsigned i = 0; i < 2; i++) {
            lone_train(&lone[i], 1);
            residual[i] = core_residual(lone[i].core, lone[i].job, 0, 0);
            assert_non_null(residual[i]);
        }
        apart += memcmp(residual[0], residual[1], ROWS * COLUMNS * sizeof(float)) != 0;
        if (s == ASKED + 3 && killed) {
            lone_restart(&lone[1]);
        }
    }
    assert_int_equal(lone_job(&lone[1]).policy_version, 1);
    for (unsigned i = 0; i < 2; i++) {
        lone_free(&lone[i]);
    }
    return apart;
}

#define POLICY(more) "{" LONE_EXACT "," more "}"

static const char *const policies[] = {POLICY("\"sparsifier\":\"sidco\",\"fit\":\"exponential\""),
    POLICY("\"sparsifier\":\"sidco\",\"fit\":\"pareto\",\"scope\":\"rank\""),
    POLICY("\"sparsifier\":\"adtopk\",\"estimate\":true"),
    POLICY("\"sparsifier\":\"adtopk\",\"adaptive\":true"),
    POLICY("\"sparsifier\":\"adtopk\",\"momentum\":0.9,\"momentum_masking\":false"),
    POLICY("\"sparsifier\":\"gaussiank\""), POLICY("\"sparsifier\":\"redsync\""),
    POLICY("\"sparsifier\":\"randomk\""), POLICY("\"sparsifier\":\"dgc\",\"momentum\":0.9")};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

static void test_selected_alike(void **state)
{
    (void)state;
    for (unsigned p = 0; p < POLICIES; p++) {
        assert_int_equal(steps_apart(policies[p], "{\"bucket_bytes\":100}", false), 0);
        assert_int_equal(steps_apart(policies[p], "{\"bucket_bytes\":100}", true), 0);
        assert_int_equal(steps_apart(policies[p], "{\"replan\":false,\"priority\":3}", false), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selected_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
