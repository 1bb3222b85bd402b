/*
 * The choices that a policy leaves to the planner, compared with a separate list. Also plans that
 * an operator sets: what they do to the tensors, which are refused, and how long they last.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/planner/choosing.h"
#include "lone_core.h"

/* ------------------------------------------------------------------ one tensor */

/* The letters of all allowed choices. */
static const char *letters(uint32_t allowed, char text[CHOICES + 1])
{
    unsigned count = 0;

    for (enum choice c = 0; c < CHOICES; c++) {
        if ((allowed >> c & 1) != 0) {
            text[count++] = choice_letter(c);
        }
    }
    text[count] = '\0';
    assert_int_equal(allowed >> CHOICES, 0);
    return text;
}

static const struct {
    const char *json;
    const char *dense,
        *lists; /* the choices of a tensor that is always sent dense; of other tensors */
} cases[] = {
    {"{}", "d", "a"},
    {"{\"dense_values\":\"bf16\"}", "h", "a"},
    {"{\"dense_values\":\"f16\"}", "h", "a"},
    {"{\"dense_values\":\"auto\"}", "dh", "a"},
    {"{\"sparsifier\":\"auto\"}", "d", "da"},
    {"{\"sparse_collective\":\"auto\"}", "d", "aboc"},
    {"{\"sparse_collective\":\"auto\",\"sparsifier\":\"topk\",\"values\":\"int8\"}", "d", "ac"},
    {"{\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\",\"dense_values\":\"auto\"}", "dh",
        "dhaboc"},
    {"{\"sparsifier\":\"auto\",\"sparse_collective\":\"oktopk\",\"dense_values\":\"bf16\"}", "h",
        "ho"},
    {"{\"sparsifier\":\"auto\",\"dense_values\":\"auto\",\"dense_collective\":\"ring\"}", "dh",
        "dha"},
    {"{\"sparsifier\":\"auto\",\"dense_values\":\"auto\",\"dense_collective\":\"halving-"
     "doubling\"}",
        "d", "da"},
    {"{\"sparsifier\":\"auto\",\"scope\":\"rank\",\"dense_values\":\"auto\"}", "dh", "dha"},
    {"{\"sparsifier\":\"auto\",\"momentum\":0.5,\"dense_values\":\"auto\"}", "dh", "dha"},
    {"{\"sparsifier\":\"auto\",\"clip\":1,\"sparse_collective\":\"auto\"}", "d", "daboc"},
    {"{\"sparsifier\":\"topk\",\"sparse_collective\":\"exclusive\"}", "d", "o"},
    {"{\"sparsifier\":\"topk\",\"sparse_collective\":\"balanced\"}", "d", "b"},
    {"{\"sparsifier\":\"topk\",\"sparse_collective\":\"hierarchical\"}", "d", "c"},
};

static struct tensor_policy parsed(const char *json)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;

    policy_default(&policy);
    if (policy_parse(&policy, json, &err) != ADTOPK_OK) {
        fail_msg("%s: %s", json, err.text);
    }
    return policy.tensor;
}

static void test_allowed(void **state)
{
    char found[CHOICES + 1];

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tensor_policy policy = parsed(cases[i].json);
        assert_string_equal(
            letters(choosing_allowed(&policy, CHOOSING_DENSE, 4), found), cases[i].dense);
        assert_string_equal(
            letters(choosing_allowed(&policy, CHOOSING_LISTS, 4), found), cases[i].lists);
    }
}

/* Values at known positions leave no collective to choose. */
static void test_allowed_of_values(void **state)
{
    struct tensor_policy policy = parsed(
        "{\"sparsifier\":\"randomk\",\"sparse_collective\":\"auto\",\"dense_values\":\"auto\"}");
    char found[CHOICES + 1];

    (void)state;
    assert_string_equal(letters(choosing_allowed(&policy, CHOOSING_VALUES, 4), found), "a");
}

/* Every choice sets its own collective and values, and changes nothing else. */
static void test_applied(void **state)
{
    struct tensor_policy policy = parsed("{\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\","
                                         "\"dense_values\":\"auto\",\"density\":0.25}");
    static const struct {
        const char *sparsifier, *sparse;
        enum payload_value dense_values;
    } wanted[CHOICES] = {
        [CHOICE_DENSE] = {"dense", "allgather", PAYLOAD_VALUE_F32},
        [CHOICE_DENSE_BF16] = {"dense", "allgather", PAYLOAD_VALUE_BF16},
        [CHOICE_ALLGATHER] = {"topk", "allgather", PAYLOAD_VALUE_F32},
        [CHOICE_BALANCED] = {"topk", "balanced", PAYLOAD_VALUE_F32},
        [CHOICE_OKTOPK] = {"topk", "oktopk", PAYLOAD_VALUE_F32},
        [CHOICE_HIERARCHICAL] = {"topk", "hierarchical", PAYLOAD_VALUE_F32},
    };

    (void)state;
    for (enum choice c = 0; c < CHOICES; c++) {
        struct tensor_policy chosen;
        assert_true(choosing_apply(&policy, CHOOSING_LISTS, c, 4, &chosen));
        assert_string_equal(chosen.sparsifier->name, wanted[c].sparsifier);
        assert_string_equal(chosen.sparse_collective->name, wanted[c].sparse);
        assert_int_equal(chosen.dense_values, wanted[c].dense_values);
        assert_true(chosen.params.density >= 0.25 && chosen.params.density <= 0.25);
        assert_ptr_equal(chosen.dense_collective, policy.dense_collective);
    }
}

/* ------------------------------------------------------------------ a job's plan */

#define AUTO                                                                                       \
    "{" LONE_EXACT ",\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\",\"dense_values\":"     \
    "\"auto\",\"bucket_bytes\":\"auto\"}"

/* Changes the plan of three tensors, of which the second has one dimension. */
static void change(struct lone_core *lone, const char *text)
{
    uint32_t version = lone_job(lone).policy.version;

    if (lone_change(lone, version, text) != ADTOPK_OK) {
        fail_msg("%s: %s", text, lone->host.refused.text);
    }
    lone_train(lone, 3);
    if (lone->policy.status != ADTOPK_OK) {
        fail_msg("%s: %s", text, lone->policy.error.text);
    }
    assert_int_equal(lone_job(lone).policy.version, version + 1);
    lone_check(lone);
}

static void assert_travels(const struct lone_core *lone, uint32_t tensor, const char *sparsifier,
    const char *collective, const char *values)
{
    struct tensor_info info = lone_tensor(lone, tensor);

    assert_string_equal(info.sparsifier, sparsifier);
    assert_string_equal(info.collective, collective);
    assert_string_equal(info.values, values);
}

static void assert_plan(const struct lone_core *lone, const char *plan)
{
    char member[64];

    (void)snprintf(member, sizeof(member), "\"plan\":\"%s\",", plan);
    if (strstr(lone_job(lone).policy.text, member) == NULL) {
        fail_msg("%s is not in %s", member, lone_job(lone).policy.text);
    }
}

static void test_without_a_plan(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, AUTO);
    assert_plan(&lone, "");
    assert_travels(&lone, 0, "topk", "allgather", "f32");
    assert_travels(&lone, 1, "dense", "allreduce", "f32");
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_free(&lone);
}

static void test_plans(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, AUTO);
    change(&lone, "{\"plan\":\"1:3d\"}");
    assert_travels(&lone, 0, "dense", "allreduce", "f32");
    assert_int_equal(lone_job(&lone).buckets, 3);
    change(&lone, "{\"plan\":\"1000000:1b1h1o\"}");
    assert_travels(&lone, 0, "topk", "balanced", "f32");
    assert_travels(&lone, 1, "dense", "allreduce", "bf16");
    assert_travels(&lone, 2, "topk", "oktopk", "f32");
    change(&lone, "{\"plan\":\"1000000:1c1d1h\"}");
    assert_travels(&lone, 0, "topk", "hierarchical", "f32");
    assert_travels(&lone, 2, "dense", "allreduce", "bf16");
    lone_free(&lone);
}

/* A restarted daemon makes the same plan, and so does a job whose ranks bring a plan. */
static void test_restart(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"sparsifier\":\"auto\",\"plan\":\"4194304:2d1a\"}");
    assert_travels(&lone, 0, "dense", "allreduce", "f32");
    assert_travels(&lone, 2, "topk", "allgather", "f32");
    lone_train(&lone, 2);
    change(&lone, "{\"plan\":\"4194304:1a2d\"}");
    lone_restart(&lone);
    assert_plan(&lone, "4194304:1a2d");
    assert_travels(&lone, 0, "topk", "allgather", "f32");
    assert_travels(&lone, 2, "dense", "allreduce", "f32");
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_free(&lone);
}

/* A plan stays as long as the possible choices do, and is dropped with them. */
static void test_other_changes(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, AUTO);
    change(&lone, "{\"plan\":\"4096:3d\"}");
    change(&lone, "{\"replan\":false,\"wait_limit\":5}");
    assert_plan(&lone, "4096:3d");
    change(&lone, "{\"density\":0.1}");
    assert_plan(&lone, "");
    change(&lone, "{\"density\":0.05,\"plan\":\"4096:3d\"}");
    assert_plan(&lone, "4096:3d");
    change(&lone, "{\"plan\":\"\"}");
    assert_plan(&lone, "");
    lone_free(&lone);
}

/* A document that replaces the policy keeps the plan if the possible choices stay. */
static void test_replaced(void **state)
{
    struct event event = {
        .type = EVENT_POLICY, .policy = {.text = AUTO, .if_version = UINT32_MAX, .uid = 1000}};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, AUTO);
    change(&lone, "{\"plan\":\"4096:3d\",\"wait_limit\":5}");
    event.policy.job = lone.job;
    assert_int_equal(host_event(&lone.host, event), ADTOPK_OK);
    lone_train(&lone, 3);
    assert_int_equal(lone.policy.status, ADTOPK_OK);
    assert_plan(&lone, "4096:3d");
    assert_null(strstr(lone_job(&lone).policy.text, "\"wait_limit\":5.0"));
    lone_check(&lone);
    event.policy.text = "{" LONE_EXACT ",\"sparse_collective\":\"balanced\"}";
    assert_int_equal(host_event(&lone.host, event), ADTOPK_OK);
    lone_train(&lone, 3);
    assert_int_equal(lone.policy.status, ADTOPK_OK);
    assert_plan(&lone, "");
    lone_free(&lone);
}

/* Checks that the node refuses the plan when it makes it. */
static void refused(struct lone_core *lone, const char *text, const char *first, const char *second)
{
    uint32_t version = lone_job(lone).policy.version;
    unsigned before = lone->policy.count;

    assert_int_equal(lone_change(lone, 77, text), ADTOPK_OK);
    assert_int_equal(lone->policy.count, before + 1);
    assert_int_equal(lone->policy.status, ADTOPK_ERR_POLICY);
    if (strstr(lone->policy.error.text, first) == NULL ||
        strstr(lone->policy.error.text, second) == NULL) {
        fail_msg("%s does not say %s and %s", lone->policy.error.text, first, second);
    }
    lone_train(lone, 3);
    assert_int_equal(lone_job(lone).policy.version, version);
}

static void test_refused(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, AUTO);
    refused(&lone, "{\"plan\":\"4096:2d\"}", "'fc.weight' to 'conv.weight'", "for 2 tensors");
    refused(&lone, "{\"plan\":\"4096:4d\"}", "3 tensors", "for 4 tensors");
    refused(&lone, "{\"plan\":\"4096:3a\"}", "'fc.bias'", "allgather");
    refused(&lone, "{\"plan\":\"4096:3d\",\"bucket_bytes\":4095}", "4096 bytes", "4095");
    refused(&lone,
        "{\"plan\":\"4096:3d\",\"rules\":[{\"match\":\"conv*\",\"sparsifier\":\"topk\"}]}",
        "'conv.weight'", "dense");
    refused(&lone,
        "{\"plan\":\"4096:1o1d1o\",\"rules\":[{\"match\":\"c*\",\"sparse_collective\":"
        "\"balanced\"}]}",
        "'conv.weight'", "oktopk");
    refused(&lone, "{\"plan\":\"4096:1d1h1d\",\"dense_values\":\"f32\"}", "'fc.bias'", "bf16");
    assert_int_equal(lone_change(&lone, 1, "{\"plan\":\"4096:2x\"}"), ADTOPK_ERR_POLICY);
    lone_check(&lone);
    lone_free(&lone);
}

/* Nothing is "auto": a plan can only name the choices that are fixed anyway. */
static void test_nothing_to_choose(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"bucket_bytes\":4096}");
    change(&lone, "{\"plan\":\"4096:1a1d1a\"}");
    assert_travels(&lone, 0, "topk", "allgather", "f32");
    refused(&lone, "{\"plan\":\"4096:3d\"}", "'fc.weight'", "dense");
    lone_free(&lone);
}

/* (rho T - F) / (T - F), with each one's own rho; at least a tenth of it. */
static void test_tuned_density(void **state)
{
    const struct tensor_spec spec[] = {
        lone_spec("a", 2, (const uint64_t[]){100, 100}),
        lone_spec("b", 2, (const uint64_t[]){50, 40}),
        lone_spec("c", 1, (const uint64_t[]){60}),
    };
    double rho = (0.05 * 12060 - 60) / 12000;
    struct lone_core lone;

    (void)state;
    lone_start(&lone, 2, "{" LONE_EXACT ",\"sparsifier\":\"auto\",\"tune_density\":true}", spec, 3);
    assert_true(lone_tensor(&lone, 0).density > 0.999999 * rho);
    assert_true(lone_tensor(&lone, 0).density < 1.000001 * rho);
    assert_true(lone_tensor(&lone, 1).density < 1.000001 * rho);
    change(&lone, "{\"plan\":\"4194304:1a2d\"}"); /* more than 5% is sent dense */
    assert_true(lone_tensor(&lone, 0).density > 0.0049999);
    assert_true(lone_tensor(&lone, 0).density < 0.0050001);
    change(&lone, "{\"tune_density\":false,\"plan\":\"4194304:1a2d\"}");
    assert_true(lone_tensor(&lone, 0).density > 0.049);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_allowed_of_values),
        cmocka_unit_test(test_applied),
        cmocka_unit_test(test_without_a_plan),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_other_changes),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nothing_to_choose),
        cmocka_unit_test(test_tuned_density),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
