/*
 * State that is kept beside residuals from one policy to the next. If a change does not concern
 * selection, the core goes on bit for bit as a core whose policy stays. test_pass.c tests
 * velocities.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lone_core.h"
#include "tests/host/inside.h"

#define ROWS 48u
#define COLUMNS 64u
#define STEPS 24u
#define ASKED 9u /* the step of the request; the change is in force two steps later */

/* One of two cores changes its policy; if `killed`, its daemon is killed afterwards. Returns the
 * number of steps in which the residuals of the two differed. */
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
            residual[i] = inside_residual(lone[i].host.core, lone[i].job, 0, 0);
            assert_non_null(residual[i]);
        }
        apart += memcmp(residual[0], residual[1], ROWS * COLUMNS * sizeof(float)) != 0;
        if (s == ASKED + 3 && killed) {
            lone_restart(&lone[1]);
        }
    }
    assert_int_equal(lone_job(&lone[1]).policy.version, 1);
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

/* Changes back and forth, with and without momentum, by node and by rank. */
static const char *const changes[] = {"{\"scope\":\"rank\"}", "{\"scope\":\"node\"}",
    "{\"momentum\":0.9}", "{\"momentum\":0.5,\"scope\":\"rank\"}", "{\"momentum\":0}",
    "{\"sparsifier\":\"dense\",\"momentum\":0,\"scope\":\"node\"}",
    "{\"sparsifier\":\"dense\",\"momentum\":0.9,\"scope\":\"node\",\"residual\":\"f32\"}",
    "{\"dense_values\":\"bf16\"}", "{\"dense_values\":\"f32\",\"clip\":100}", "{\"clip\":0}",
    "{\"sparsifier\":\"sidco\",\"fit\":\"pareto\"}",
    "{\"sparsifier\":\"adtopk\",\"estimate\":true}",
    "{\"sparsifier\":\"adtopk\",\"adaptive\":true,\"estimate\":false}", "{\"bucket_bytes\":100}",
    "{\"bucket_bytes\":100000}", "{\"residual\":\"bf16\",\"scope\":\"node\",\"momentum\":0}",
    "{\"residual\":\"f32\"}", "{\"density\":0.2}", "{\"density\":0.05}"};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

/* A core whose daemon is killed again and again goes on bit for bit as a core whose daemon lives.
 */
static void test_back_and_forth(void **state)
{
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){ROWS, COLUMNS});
    struct lone_core lone[2];
    uint64_t dice = 1;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        lone_start(&lone[i], 2, POLICY("\"sparsifier\":\"adtopk\""), &spec, 1);
        lone[i].changed = true;
    }
    for (unsigned s = 0; s < 1200; s++) {
        struct tensor_info info[2];
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        if (s % 4 == 0) {
            const char *text = changes[(dice >> 33) % CHANGES];
            assert_int_equal(
                lone_change(&lone[0], s + 1, text), lone_change(&lone[1], s + 1, text));
        } else if (s % 4 == 3 && dice >> 62 != 0) {
            lone_restart(&lone[1]);
        }
        for (unsigned i = 0; i < 2; i++) {
            lone_train(&lone[i], 1);
            info[i] = lone_tensor(&lone[i], 0);
        }
        if (memcmp(info[0].applied, info[1].applied, sizeof(info[0].applied)) != 0) {
            fail_msg("step %u: %s", s, lone_job(&lone[0]).policy.text);
        }
    }
    assert_true(lone_job(&lone[1]).policy.version > 200);
    for (unsigned i = 0; i < 2; i++) {
        lone_free(&lone[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selected_alike),
        cmocka_unit_test(test_back_and_forth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
