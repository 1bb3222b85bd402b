/*
 * The effects of a change of the policy on residuals and updates: nothing is lost, and memory fits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/job/store.h"
#include "lone_core.h"
#include "proto/local.h"
#include "tests/host/inside.h"

/* Changes from each of these to each other lose no element of a residual. */
static void test_residuals_stay(void **state)
{
    static const char *const policies[] = {
        "{\"sparsifier\":\"adtopk\",\"scope\":\"node\",\"residual\":\"f32\",\"rules\":[]}",
        "{\"residual\":\"f32\",\"sparsifier\":\"adtopk\",\"scope\":\"rank\",\"rules\":[]}",
        "{\"residual\":\"f32\",\"sparsifier\":\"topk\",\"scope\":\"rank\",\"density\":0.2,"
        "\"rules\":[]}",
        "{\"residual\":\"f32\",\"sparsifier\":\"dense\",\"scope\":\"node\",\"rules\":[]}",
        "{\"residual\":\"f32\",\"scope\":\"node\",\"sparsifier\":\"topk\",\"rules\":[{\"match\":"
        "\"conv*\",\"scope\":"
        "\"rank\"},{\"match\":\"fc.weight\",\"sparsifier\":\"dense\"}]}",
        "{\"residual\":\"f32\",\"scope\":\"rank\",\"sparsifier\":\"adtopk\",\"rules\":[{\"match\":"
        "\"fc*\",\"scope\":"
        "\"node\",\"values\":\"bf16\"}],\"bucket_bytes\":1}",
        "{\"scope\":\"node\",\"sparsifier\":\"topk\",\"residual\":\"bf16\",\"rules\":[]}",
        "{\"scope\":\"node\",\"sparsifier\":\"adtopk\",\"residual\":\"bf16\",\"rules\":[{\"match\":"
        "\"conv*\",\"residual\":\"f32\"}]}",
    };
    unsigned count = sizeof(policies) / sizeof(policies[0]);
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    for (unsigned from = 0; from < count; from++) {
        for (unsigned to = 0; to < count; to++) {
            bool by_rank;
            lone_must_change(&lone, policies[from]);
            lone_must_change(&lone, policies[to]);
            by_rank = to == 1 || to == 2 || to == 4 || to == 5;
            assert_int_equal(lone.host.memory.store[1].bytes != NULL, by_rank);
            /* One of the two parts is there, whatever types it has. */
            assert_true((lone.host.memory.store[STORE_RESIDUALS].bytes != NULL) !=
                        (lone.host.memory.store[STORE_RESIDUALS + 1].bytes != NULL));
            lone_restart(&lone);
            lone_train(&lone, 1);
            lone_check(&lone);
        }
    }
    lone_free(&lone);
}

/* Residuals in bf16 take half the memory, and the memory of the others is given back. */
static void test_memory_of_residuals(void **state)
{
    struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){100, 400});
    struct lone_core lone;
    uint64_t f32, bf16;

    (void)state;
    lone_start(&lone, 2, "{" LONE_EXACT "}", &spec, 1);
    f32 = lone.host.memory.store[STORE_RESIDUALS].size;
    assert_in_range(f32, 160000, 160200);
    lone_must_change(&lone, "{\"residual\":\"bf16\"}");
    assert_null(lone.host.memory.store[STORE_RESIDUALS].bytes);
    assert_non_null(lone.host.memory.store[STORE_RESIDUALS + 1].bytes);
    bf16 = lone.host.memory.store[STORE_RESIDUALS + 1].size;
    assert_in_range(bf16, f32 / 2, f32 * 52 / 100);
    lone_must_change(&lone, "{\"density\":0.1}"); /* the same ones */
    assert_null(lone.host.memory.store[STORE_RESIDUALS].bytes);
    lone_must_change(&lone, "{\"residual\":\"f32\"}");
    assert_null(lone.host.memory.store[STORE_RESIDUALS + 1].bytes);
    assert_int_equal(lone.host.memory.store[STORE_RESIDUALS].size, f32);
    lone_free(&lone);
}

/* The form and length of the update of a tensor for which ranks want a list only. */
static uint32_t form_of(const struct lone_core *lone, uint32_t tensor, uint64_t *count)
{
    const struct local_results *table = (const void *)lone->host.memory.results.bytes;
    const struct local_update *update =
        (const void *)(lone->host.memory.results.bytes + table->tensor[tensor].update_offset);

    *count = update->count;
    return update->forms;
}

/* An update with at most half the elements comes as a list. A longer one, or one that was sent
 * dense, does not. */
static void test_forms_of_updates(void **state)
{
    static const struct {
        const char *policy;
        uint32_t form;
    } cases[] = {
        {"{\"density\":0.05}", LOCAL_FORM_LIST},
        {"{\"density\":0.4}", LOCAL_FORM_LIST},
        {"{\"density\":0.9,\"values\":\"bf16\"}", LOCAL_FORM_DENSE},
        {"{\"density\":0.05}", LOCAL_FORM_LIST},
        {"{\"sparsifier\":\"dense\"}", LOCAL_FORM_DENSE},
        {"{\"sparsifier\":\"topk\",\"scope\":\"rank\",\"density\":0.1}", LOCAL_FORM_LIST},
    };
    struct tensor_spec spec = lone_spec("list", 2, (const uint64_t[]){40, 50});
    struct lone_core lone;

    (void)state;
    spec.forms = LOCAL_FORM_LIST;
    lone_start(&lone, 2, "{" LONE_EXACT "}", &spec, 1);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t count;
        lone_must_change(&lone, cases[i].policy);
        assert_int_equal(form_of(&lone, 0, &count), cases[i].form);
        assert_true(cases[i].form == LOCAL_FORM_LIST ? count > 0 && count <= 1008 : count == 0);
    }
    lone_free(&lone);
}

/* The sum of the ranks' residuals becomes the node's, element by element, and the reverse. */
static void test_residuals_are_joined(void **state)
{
    struct lone_core lone;
    float *sum;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\"}");
    sum = calloc(lone.numel[0], sizeof(*sum));
    assert_non_null(sum);
    lone_train(&lone, 3);
    assert_int_equal(lone_change(&lone, 1, "{\"scope\":\"node\"}"), ADTOPK_OK);
    lone_train(&lone, 1);
    lone_push_all(&lone);
    assert_int_equal(lone_end(&lone, 0), ADTOPK_OK);
    lone.host.hold = true;
    assert_int_equal(lone_end(&lone, 1), ADTOPK_OK);
    while (lone.steps == 0) {
        lone_compute_one(&lone);
    }
    lone_close(&lone);
    for (unsigned slot = 0; slot < 2; slot++) {
        const float *residual = inside_residual(lone.host.core, lone.job, 0, slot);
        assert_non_null(residual);
        for (uint64_t i = 0; i < lone.numel[0]; i++) {
            sum[i] += residual[i];
        }
    }
    assert_null(inside_residual(lone.host.core, lone.job, 0, 2));
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_memory_equal(
        inside_residual(lone.host.core, lone.job, 0, 0), sum, lone.numel[0] * sizeof(*sum));
    assert_null(inside_residual(lone.host.core, lone.job, 0, 1));
    assert_null(lone.host.memory.store[1].bytes); /* given back */
    lone_check(&lone);
    free(sum);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residuals_stay),
        cmocka_unit_test(test_forms_of_updates),
        cmocka_unit_test(test_memory_of_residuals),
        cmocka_unit_test(test_residuals_are_joined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
