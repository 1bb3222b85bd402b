/*
 * Verifying and stopping jobs, on one node driven by hand: in every state of a step, and of a
 * change of the policy.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "lone_core.h"
#include "tests/host/inside.h"

/* ------------------------------------------------------------------ verifying */

static void expect_verified(const struct lone_core *lone, uint64_t ticket, uint64_t step)
{
    assert_int_equal(lone->verified.ticket, ticket);
    assert_int_equal(lone->verified.status, ADTOPK_OK);
    const struct residual_info job = core_residual_info(lone->host.core, lone->job);
    uint64_t elements = 0;
    double whole = 0;

    assert_int_equal(lone->verified.step, step);
    for (uint32_t t = 0; t < lone->tensors; t++) {
        struct tensor_info info = lone_tensor(lone, t);
        double sum = 0, magnitude = 0;
        float *residual = calloc(lone->numel[t], sizeof(*residual));
        assert_non_null(residual);
        for (unsigned slot = 0; inside_residual_copy(lone->host.core, lone->job, t, slot, residual);
             slot++) {
            for (uint64_t i = 0; i < lone->numel[t]; i++) {
                sum += (double)residual[i];
                magnitude += residual[i] < 0 ? -(double)residual[i] : (double)residual[i];
            }
        }
        assert_int_equal(info.verified.step, step);
        for (unsigned k = 0; k < 2; k++) {
            assert_true(info.verified.input[k] == info.verified.applied[k] + info.verified.lost[k] +
                                                      info.verified.residual[k]);
        }
        assert_true(info.verified.residual[0] == sum);
        /* A copy of bf16 also has the rounding errors: less of each chain than of an element. */
        assert_true(
            fabs(info.verified.magnitude - magnitude) <= (lone->rounded ? magnitude / 16 : 0));
        free(residual);
        if (strcmp(info.sparsifier, "dense") != 0) {
            whole += info.verified.magnitude;
            elements += lone->numel[t];
        }
    }
    assert_true(job.verified && job.read == (elements > 0));
    assert_true(job.magnitude == whole);
    assert_int_equal(job.elements, elements);
    assert_true(job.step == (elements > 0 ? step : UINT64_MAX));
    assert_int_equal(job.unbalanced, 0);
}

static void verify_with(const char *policy)
{
    struct lone_core lone;

    lone_begin(&lone, policy);
    assert_true(lone_tensor(&lone, 0).verified.step == UINT64_MAX);
    assert_int_equal(lone_verify(&lone, 1), ADTOPK_OK);
    expect_verified(&lone, 1, 0);
    lone_train(&lone, 3);
    assert_int_equal(lone_verify(&lone, 2), ADTOPK_OK);
    expect_verified(&lone, 2, 3);
    lone_push_all(&lone); /* in the middle of step 3: the gradients are in the residuals */
    assert_int_equal(lone_verify(&lone, 3), ADTOPK_OK);
    expect_verified(&lone, 3, 3);
    assert_int_equal(lone_verify(&lone, 4), ADTOPK_OK);
    expect_verified(&lone, 4, 3);
    assert_int_equal(lone.verified.count, 4);
    lone_end_all(&lone);
    lone_close(&lone);
    lone.changed = strstr(policy, "beta") != NULL;
    lone_check(&lone);
    lone_free(&lone);
}

static void test_verify(void **state)
{
    (void)state;
    verify_with("{" LONE_EXACT ",\"beta\":0.5}"); /* few halvings are exact */
    verify_with("{" LONE_EXACT ",\"beta\":0,\"gamma\":4,\"scope\":\"rank\"}");
    verify_with("{" LONE_EXACT "}");
    verify_with("{" LONE_EXACT ",\"scope\":\"rank\"}");
    verify_with("{" LONE_EXACT ",\"sparsifier\":\"dense\"}");
    verify_with("{" LONE_EXACT ",\"residual\":\"bf16\"}");
    verify_with("{\"reduce\":\"sum\",\"residual\":\"bf16\",\"sparsifier\":\"topk\"}");
}

/* While a verification runs no step may change a residual. A second request has to wait. */
static void test_verify_holds_the_step(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone.host.hold = true;
    assert_int_equal(lone_verify(&lone, 6), ADTOPK_OK);
    assert_int_equal(lone.host.helds, 1);
    assert_int_equal(lone_verify(&lone, 7), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "just being verified", "lone");
    lone_push_all(&lone);
    lone_end_all(&lone);
    assert_int_equal(lone.host.helds, 1); /* no other compute runs */
    assert_int_equal(lone.verified.count, 0);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.verified.count, 1);
    assert_int_equal(lone.verified.ticket, 6);
    assert_int_equal(lone.verified.step, 2);
    lone_close(&lone); /* requests of the meantime went on by themselves */
    lone_check(&lone);
    assert_int_equal(lone_verify(&lone, 7), ADTOPK_OK);
    expect_verified(&lone, 7, 3);
    lone_free(&lone);
}

/* If a compute runs at the time of the request, the verification follows it. */
static void test_verify_waits(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone.host.hold = true;
    lone_push_all(&lone);
    assert_true(lone.host.helds > 0);
    assert_int_equal(lone_verify(&lone, 6), ADTOPK_OK);
    assert_int_equal(lone.verified.count, 0);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.verified.count, 1);
    lone_end_all(&lone);
    lone_close(&lone);
    lone_check(&lone);
    lone_free(&lone);
}

static void test_verify_a_job_that_ends(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone.host.hold = true;
    assert_int_equal(lone_verify(&lone, 6), ADTOPK_OK);
    lone_leave(&lone);
    assert_int_equal(lone.verified.count, 1);
    assert_int_equal(lone.verified.ticket, 6);
    assert_int_equal(lone.verified.status, ADTOPK_ERR_STATE);
    assert_non_null(strstr(lone.verified.error.text, "ended"));
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.verified.count, 1); /* once */
    assert_int_equal(core_job_count(lone.host.core), 0);
    lone_free(&lone);

    lone_begin(&lone, "{" LONE_EXACT "}");
    lone.host.hold = true;
    lone_push_all(&lone);
    assert_int_equal(lone_verify(&lone, 7), ADTOPK_OK); /* a compute runs first */
    assert_int_equal(
        host_event(&lone.host, (struct event){.type = EVENT_RANK_LOST, .session = 1}), ADTOPK_OK);
    assert_int_equal(lone.verified.status, ADTOPK_ERR_PEER);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.verified.count, 1);
    lone_free(&lone);
}

/* A change and a verification at the same time: both get answers. */
static void test_verify_in_a_change(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\"}");
    for (unsigned when = 0; when < 3; when++) {
        assert_int_equal(
            lone_change(&lone, 1, when % 2 == 0 ? "{\"scope\":\"node\"}" : "{\"scope\":\"rank\"}"),
            ADTOPK_OK);
        lone_train(&lone, 1);
        lone_push_all(&lone);
        assert_int_equal(lone_end(&lone, 0), ADTOPK_OK);
        lone.host.hold = true;
        assert_int_equal(lone_end(&lone, 1), ADTOPK_OK);
        for (unsigned i = 0; i < when; i++) { /* before, at, and after the switch */
            lone_compute_one(&lone);
        }
        assert_int_equal(lone_verify(&lone, 2), ADTOPK_OK);
        lone.host.hold = false;
        host_compute(&lone.host);
        lone_close(&lone);
        assert_int_equal(lone.policy.count, when + 1);
        assert_int_equal(lone.verified.count, when + 1);
        expect_verified(&lone, 2, lone.step);
        lone_train(&lone, 2);
        lone_check(&lone);
    }
    lone_free(&lone);
}

/* ------------------------------------------------------------------ stopping */

static enum adtopk_status stop(struct lone_core *lone)
{
    return host_event(&lone->host, (struct event){.type = EVENT_STOP});
}

static void expect_stopped(struct lone_core *lone)
{
    struct event open = {.type = EVENT_RANK_OPEN,
        .session = 9,
        .open = {.key = {.name = "other", .run_id = "1"}, .world_size = 1}};

    assert_int_equal(lone->failed, lone->ranks);
    assert_int_equal(lone->failure.code, ADTOPK_ERR_PEER);
    assert_non_null(strstr(lone->failure.text, "node 3"));
    assert_non_null(strstr(lone->failure.text, "stopping"));
    assert_int_equal(host_event(&lone->host, open), ADTOPK_ERR_STATE);
    lone_assert_refused(lone, ADTOPK_ERR_STATE, "stopping", "node 3");
    assert_int_equal(core_job_count(lone->host.core), 0);
    lone_free(lone);
}

static void test_stop_between_steps(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    assert_int_equal(stop(&lone), ADTOPK_OK);
    expect_stopped(&lone);
}

static void test_stop_before_the_job_runs(void **state)
{
    const struct tensor_spec spec = lone_spec("a", 2, (const uint64_t[]){8, 8});
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 2, "{" LONE_EXACT "}", &spec, 1);
    assert_int_equal(stop(&lone), ADTOPK_OK);
    expect_stopped(&lone);
}

/* A step that has begun comes to its end, with its updates, before the job ends. */
static void test_stop_in_mid_step(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_OK);
    assert_int_equal(stop(&lone), ADTOPK_OK);
    assert_int_equal(lone.failed, 0);
    for (uint32_t t = 0; t < 3; t++) {
        assert_int_equal(t > 0 ? lone_push(&lone, 0, t) : ADTOPK_OK, ADTOPK_OK);
        assert_int_equal(lone_push(&lone, 1, t), ADTOPK_OK);
    }
    assert_int_equal(lone_end(&lone, 0), ADTOPK_OK);
    assert_int_equal(lone.failed, 0);
    assert_int_equal(lone_end(&lone, 1), ADTOPK_OK);
    lone_close(&lone);
    expect_stopped(&lone);
}

/* A plain operation that is under way ends too, before the daemon stops. */
static void test_stop_in_an_operation(void **state)
{
    struct event op = {.type = EVENT_RANK_OP, .session = 1, .op = {.kind = OP_BARRIER}};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_int_equal(host_event(&lone.host, op), ADTOPK_OK);
    assert_int_equal(stop(&lone), ADTOPK_OK);
    assert_int_equal(lone.failed, 0);
    op.session = 2;
    assert_int_equal(host_event(&lone.host, op), ADTOPK_OK);
    expect_stopped(&lone);
}

/* Clients that wait for a change or a verification get answers. */
static void test_stop_answers_tickets(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    assert_int_equal(lone_change(&lone, 1, "{\"density\":0.5}"), ADTOPK_OK);
    lone.host.hold = true;
    assert_int_equal(lone_verify(&lone, 2), ADTOPK_OK);
    assert_int_equal(stop(&lone), ADTOPK_OK);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_PEER);
    assert_non_null(strstr(lone.policy.error.text, "stopping"));
    assert_int_equal(lone.verified.count, 1);
    assert_int_equal(lone.verified.status, ADTOPK_ERR_PEER);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.verified.count, 1);
    expect_stopped(&lone);
}

/* Asks for a part of a residual as the first rank. */
static enum adtopk_status read_part(
    struct lone_core *lone, uint32_t tensor, uint64_t first, uint32_t count, float *values)
{
    struct event event = {
        .type = EVENT_RANK_READ, .session = 1, .read = {tensor, first, count, values}};

    return host_event(&lone->host, event);
}

/* A rank reads a residual between its steps, whole or in parts, and not in mid-step. */
static void test_reading(void **state)
{
    struct lone_core lone;
    float values[CORE_READ_STEP], expected[CORE_READ_STEP];
    uint32_t numel;

    (void)state;
    lone_begin(&lone, "{\"sparsifier\":\"topk\"," LONE_EXACT "}");
    numel = (uint32_t)lone.numel[0];
    lone_train(&lone, 3);
    assert_true(numel <= CORE_READ_STEP);
    assert_true(inside_residual_copy(lone.host.core, lone.job, 0, 0, expected));
    assert_int_equal(read_part(&lone, 0, 0, numel, values), ADTOPK_OK);
    assert_memory_equal(values, expected, numel * sizeof *values);
    assert_int_equal(read_part(&lone, 0, 0, numel + 1, values), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(read_part(&lone, 0, 1, 1, values), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(read_part(&lone, 0, CORE_READ_STEP, 1, values), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(read_part(&lone, 0, UINT64_MAX / CORE_READ_STEP * CORE_READ_STEP, 1, values),
        ADTOPK_ERR_ARGUMENT);
    assert_int_equal(read_part(&lone, lone.tensors, 0, 1, values), ADTOPK_ERR_ARGUMENT);
    lone_push_all(&lone);
    assert_int_equal(read_part(&lone, 0, 0, numel, values), ADTOPK_ERR_STATE);
    lone_end_all(&lone);
    lone_close(&lone);
    assert_int_equal(read_part(&lone, 0, 0, numel, values), ADTOPK_OK);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_verify_holds_the_step),
        cmocka_unit_test(test_verify_waits),
        cmocka_unit_test(test_verify_a_job_that_ends),
        cmocka_unit_test(test_verify_in_a_change),
        cmocka_unit_test(test_stop_between_steps),
        cmocka_unit_test(test_stop_before_the_job_runs),
        cmocka_unit_test(test_stop_in_mid_step),
        cmocka_unit_test(test_stop_in_an_operation),
        cmocka_unit_test(test_stop_answers_tickets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
