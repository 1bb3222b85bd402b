/*
 * Loss scales on a core of one node: residuals are in units without them. A power of 2 changes no
 * bit of residuals and updates. With other scales both are equal to plain sums in double precision.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lone_core.h"
#include "proto/local.h"
#include "tests/host/inside.h"

#define ELEMENTS 640u
#define STEPS 8u

/* Values that must have the same bits: updates without their scale, and residuals. */
struct bits {
    float update[STEPS][ELEMENTS];
    float residual[STEPS][ELEMENTS];
    double input[STEPS], applied[STEPS];
};

static void read_update(const struct lone_core *lone, float *out)
{
    const uint8_t *results = lone->host.memory.results.bytes;
    const struct local_results *table = (const void *)results;
    const struct local_update *update = (const void *)(results + table->tensor[0].update_offset);
    const float *dense = (const void *)(results + update->dense_offset);

    assert_true((update->forms & LOCAL_FORM_DENSE) != 0);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        out[i] = lone->scale != 0 ? dense[i] / lone->scale : dense[i];
    }
}

static void train(const char *policy, const float *scale, struct bits *bits)
{
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct lone_core lone;

    lone_start(&lone, 2, policy, &spec, 1);
    lone.changed = true;
    for (unsigned s = 0; s < STEPS; s++) {
        struct tensor_info info;
        lone.scale = scale[s];
        if (s == 3) {
            lone_withdraw(&lone);
        } else {
            lone_train(&lone, 1);
            read_update(&lone, bits->update[s]);
        }
        info = lone_tensor(&lone, 0);
        bits->input[s] = info.input[0];
        bits->applied[s] = info.applied[0];
        assert_true(inside_residual_copy(lone.host.core, lone.job, 0, 0, bits->residual[s]));
    }
    lone_free(&lone);
}

static const char *const policies[] = {
    "{" LONE_EXACT "}",
    "{\"values\":\"bf16\",\"scope\":\"rank\"}",
    "{\"values\":\"f16\",\"sparsifier\":\"topk\",\"momentum\":0.9}",
    "{\"values\":\"int8\",\"clip\":100}",
    "{\"clip\":300,\"momentum\":0.5,\"nesterov\":true,\"scope\":\"rank\"}",
    "{\"residual\":\"bf16\",\"density\":0.1}",
    "{\"adaptive\":true,\"density\":0.1}",
    "{\"estimate\":true,\"density\":0.1}",
    "{\"sparsifier\":\"sidco\",\"density\":0.1}",
    "{\"sparsifier\":\"gaussiank\",\"density\":0.1}",
    "{\"sparsifier\":\"randomk\",\"density\":0.1}",
    "{\"sparsifier\":\"threshold\",\"threshold\":1000}",
    "{\"sparsifier\":\"topk\",\"density\":0.1,\"sparse_collective\":\"exclusive\"}",
    "{\"sparsifier\":\"topk\",\"density\":0.1,\"sparse_collective\":\"oktopk\"}",
    "{\"sparse_collective\":\"balanced\",\"density\":0.1}",
    "{\"sparse_collective\":\"hierarchical\",\"density\":0.1}",
    "{\"sparsifier\":\"dense\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"f16\",\"dense_collective\":\"ring\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"dense_collective\":\"pairwise\"}",
    "{\"sparsifier\":\"dense\",\"momentum\":0.9,\"clip\":100}",
};

static void test_powers_of_two(void **state)
{
    static const float none[STEPS] = {0, 1, 0, 1, 0, 0, 1, 0};
    static const float scale[STEPS] = {
        0x1p16f, 0x1p17f, 1, 0x1p30f, 0x1p-10f, 0x1p-20f, 0, 0x1p16f};
    struct bits *plain = calloc(1, sizeof(*plain)), *scaled = calloc(1, sizeof(*scaled));

    (void)state;
    assert_true(plain != NULL && scaled != NULL);
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        train(policies[p], none, plain);
        train(policies[p], scale, scaled);
        if (memcmp(plain, scaled, sizeof(*plain)) != 0) {
            fail_msg("%s: other bits", policies[p]);
        }
    }
    free(plain);
    free(scaled);
}

/* With any scale every pushed gradient is applied or in a residual. The error is that of sums in
 * f32. */
static void test_any_scale(void **state)
{
    static const float scale[] = {1000, 0.3f, 65536, 7, 1e-9f, 3e20f, 0, 12345.678f};

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        struct lone_core lone;
        char policy[256];
        if (strstr(policies[p], "momentum") != NULL || strstr(policies[p], "clip") != NULL) {
            continue; /* these change the pushed gradients */
        }
        (void)snprintf(policy, sizeof(policy), "{\"reduce\":\"sum\",%s",
            policies[p] + (p == 0 ? strlen("{\"reduce\":\"sum\",") : 1));
        lone_begin(&lone, policy);
        lone.tolerance = 0.05;
        lone.rounded = strstr(policy, "\"residual\":\"bf16\"") != NULL;
        for (unsigned s = 0; s < 8; s++) {
            lone.scale = scale[s];
            if (s == 4) {
                lone_withdraw(&lone);
            }
            lone_train(&lone, 1);
            lone_check(&lone);
        }
        lone_leave(&lone);
        lone_free(&lone);
    }
}

/* An invalid scale is refused, and the rank goes on. */
static void test_refused(void **state)
{
    static const float bad[] = {
        -1, NAN, INFINITY, -INFINITY, FLT_TRUE_MIN, 0x1p-127f, 0x1p127f, FLT_MAX};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        lone.scale = bad[i];
        assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_ERR_ARGUMENT);
        lone_assert_refused(&lone, ADTOPK_ERR_ARGUMENT, "rank 0", "loss scale");
    }
    lone.scale = 0x1p126f;
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_OK);
    lone_free(&lone);
}

/* Another scale in the same step, from another rank or the same one, ends the job. */
static void test_different(void **state)
{
    (void)state;
    for (unsigned rank = 0; rank < 2; rank++) {
        struct lone_core lone;
        lone_begin(&lone, "{" LONE_EXACT "}");
        lone.scale = 1024;
        lone_train(&lone, 1);
        lone.scale = 512;
        lone_must(&lone, lone_push(&lone, 0, 0));
        lone.scale = 1024;
        assert_int_equal(lone_push(&lone, rank, 1), ADTOPK_ERR_MISMATCH);
        lone_assert_refused(&lone, ADTOPK_ERR_MISMATCH, rank == 0 ? "rank 0" : "rank 1", "1024");
        assert_int_equal(lone.failed, 2);
        assert_non_null(strstr(lone.failure.text, "step 1"));
        assert_non_null(strstr(lone.failure.text, "rank 0 an earlier one with 512"));
        lone_free(&lone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_powers_of_two),
        cmocka_unit_test(test_any_scale),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
