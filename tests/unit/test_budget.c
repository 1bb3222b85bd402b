/* Budgets: bits of a density against the formula, densities of bits, and documents. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/policy/budget.h"
#include "tests/unit/arrays.h"

static const double value_bits[PAYLOAD_VALUE_COUNT] = {
    32, 16, 16, 8.125, 2.25, 1.125, 4.125, 3.125};

static double entropy(double d)
{
    return d >= 1 ? 0 : -d * log2(d) - (1 - d) * log2(1 - d);
}

static double formula(double density, unsigned values)
{
    return density * value_bits[values] + entropy(density);
}

static struct policy read_policy(const char *json)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;

    policy_default(&policy);
    if (policy_parse(&policy, json, &err) != ADTOPK_OK) {
        fail_msg("%s: %s", json, err.text);
    }
    return policy;
}

static void assert_refused(const char *json, const char *says)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;

    policy_default(&policy);
    assert_int_equal(policy_parse(&policy, json, &err), ADTOPK_ERR_POLICY);
    if (strstr(err.text, says) == NULL) {
        fail_msg("%s: wanted \"%s\", got \"%s\"", json, says, err.text);
    }
}

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * fabs(wanted))) {
        fail_msg("%.17g instead of %.17g", got, wanted);
    }
}

/* Every budget leads to the density that has this number of bits. */
static void test_round_trip(void **state)
{
    struct policy policy;

    (void)state;
    policy_default(&policy);
    for (unsigned turn = 0; turn < 4000; turn++) {
        const unsigned v = turn % PAYLOAD_VALUE_COUNT;
        const double density = pow(10, -5.9 * (double)random_below(1000) / 1000) * 0.5;

        assert_near(budget_bits(density, (enum payload_value)v), formula(density, v));
        policy.tensor.params.density = 0;
        policy.tensor.values = (enum payload_value)v;
        policy.tensor.budget = formula(density, v);
        if (density >= 1e-6) {
            assert_near(policy_settled(&policy.tensor).params.density, density);
        }
    }
}

/* Narrow values have their most bits at a density below 1. */
static void test_more_than_all(void **state)
{
    const double most = formula(pow(2, 1.125) / (1 + pow(2, 1.125)), PAYLOAD_VALUE_SIGN);
    struct policy policy;
    double density;

    (void)state;
    policy_default(&policy);
    policy.tensor.values = PAYLOAD_VALUE_SIGN;
    policy.tensor.params.density = 0;
    policy.tensor.budget = most * (1 + 1e-9);
    density = policy_settled(&policy.tensor).params.density;
    assert_true(density >= 1 && density <= 1);
    policy.tensor.budget = most * (1 - 1e-6);
    density = policy_settled(&policy.tensor).params.density;
    assert_true(density > 0.6 && density < 0.69);
}

static void test_texts(void **state)
{
    static const char *const wrong[] = {"", "as", "as ", "as %", "as 1%", "as 1% ", "as 1% bf17",
        "as 1 bf16", "as -1% bf16", "as 101% bf16", "as 0% bf16", "as 0x1% bf16", "as nan% bf16",
        "as 1% bf16 ", "like 1% bf16", "as 1%  bf16", "as 1% auto", "1% bf16"};

    (void)state;
    assert_near(budget_read("as 1% bf16"), formula(0.01, PAYLOAD_VALUE_BF16));
    assert_near(budget_read("as 0.1% f32"), formula(0.001, PAYLOAD_VALUE_F32));
    assert_near(budget_read("as 2.65% two"), formula(0.0265, PAYLOAD_VALUE_TWO));
    assert_near(budget_read("as 1e-2% int8"), formula(0.0001, PAYLOAD_VALUE_INT8));
    assert_near(budget_read("as 100% sign"), 1.125);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char json[64];

        assert_true(budget_read(wrong[i]) <= 0);
        (void)snprintf(json, sizeof(json), "{\"budget\":\"%s\"}", wrong[i]);
        assert_refused(json, "\"budget\"");
    }
}

/* A budget in bytes of 1% in bf16 allows this many two-valued entries. */
static void test_documents(void **state)
{
    struct policy policy = read_policy("{\"budget\":\"as 1% bf16\",\"values\":\"two\"}");
    double density = policy_of(&policy, "w").params.density;
    char text[POLICY_TEXT_SIZE], again[POLICY_TEXT_SIZE];

    (void)state;
    assert_true(density > 0.0265 && density < 0.0275);
    assert_near(formula(density, PAYLOAD_VALUE_TWO), formula(0.01, PAYLOAD_VALUE_BF16));
    policy_print(&policy, text);
    assert_non_null(strstr(text, "\"density\":\"auto\",\"budget\":0.240"));
    policy_default(&policy);
    assert_int_equal(policy_parse(&policy, text, NULL), ADTOPK_OK);
    policy_print(&policy, again);
    assert_string_equal(again, text);
    /* The later document counts. */
    assert_int_equal(policy_parse(&policy, "{\"density\":0.5}", NULL), ADTOPK_OK);
    assert_near(policy_of(&policy, "w").params.density, 0.5);
    assert_true(policy.tensor.budget <= 0);
    assert_int_equal(policy_parse(&policy, "{\"budget\":0.1}", NULL), ADTOPK_OK);
    assert_near(formula(policy_of(&policy, "w").params.density, PAYLOAD_VALUE_TWO), 0.1);
    assert_int_equal(policy_parse(&policy, "{\"budget\":0}", NULL), ADTOPK_ERR_POLICY);
    assert_int_equal(policy_parse(&policy, "{\"budget\":0,\"density\":0.1}", NULL), ADTOPK_OK);
}

/* Rules set a density or a budget, and the budget counts with the values of the tensor. */
static void test_rules(void **state)
{
    struct policy policy = read_policy("{\"budget\":0.5,\"values\":\"bf16\",\"rules\":["
                                       "{\"match\":\"a*\",\"density\":0.25},"
                                       "{\"match\":\"*b\",\"budget\":0.125},"
                                       "{\"match\":\"*c\",\"values\":\"sign\"}]}");
    char text[POLICY_TEXT_SIZE], again[POLICY_TEXT_SIZE];

    (void)state;
    assert_near(formula(policy_of(&policy, "w").params.density, PAYLOAD_VALUE_BF16), 0.5);
    assert_near(policy_of(&policy, "a").params.density, 0.25);
    assert_near(formula(policy_of(&policy, "b").params.density, PAYLOAD_VALUE_BF16), 0.125);
    assert_near(formula(policy_of(&policy, "ab").params.density, PAYLOAD_VALUE_BF16), 0.125);
    assert_near(formula(policy_of(&policy, "c").params.density, PAYLOAD_VALUE_SIGN), 0.5);
    assert_near(policy_of(&policy, "ac").params.density, 0.25);
    policy_print(&policy, text);
    policy_default(&policy);
    assert_int_equal(policy_parse(&policy, text, NULL), ADTOPK_OK);
    policy_print(&policy, again);
    assert_string_equal(again, text);
}

/* 10 turns at d^(1/3), 10 at d^(2/3), the others at d. */
static void test_warm_up(void **state)
{
    struct policy policy = read_policy("{\"values\":\"bf16\",\"budget\":0.5,\"warmup_epochs\":2,"
                                       "\"epoch_turns\":10,\"total_turns\":100}");
    struct tensor_policy tensor = policy_of(&policy, "w");
    double sum = 0;

    (void)state;
    for (uint64_t turn = 0; turn < 100; turn++) {
        sum += formula(sparsifier_density(&tensor.params, turn), PAYLOAD_VALUE_BF16);
    }
    assert_true(fabs(sum / 100 - 0.5) < 1e-6);
    /* The training ends within the warm-up. */
    policy = read_policy("{\"values\":\"bf16\",\"budget\":2,\"warmup_epochs\":3,\"epoch_turns\":10,"
                         "\"total_turns\":15}");
    tensor = policy_of(&policy, "w");
    sum = 0;
    for (uint64_t turn = 0; turn < 15; turn++) {
        sum += formula(sparsifier_density(&tensor.params, turn), PAYLOAD_VALUE_BF16);
    }
    assert_true(fabs(sum / 15 - 2) < 1e-6);
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused("{\"budget\":0.1,\"density\":0.1}", "\"density\" and \"budget\" are both given");
    assert_refused("{\"density\":0.1,\"budget\":\"as 1% bf16\"}", "both given");
    assert_refused("{\"rules\":[{\"match\":\"a\",\"density\":0.1,\"budget\":1}]}",
        "rules[0]: \"density\" and \"budget\" are both given");
    assert_refused(
        "{\"density\":\"auto\",\"budget\":0}", "\"density\" \"auto\" needs a \"budget\"");
    assert_refused("{\"density\":0.1,\"rules\":[{\"match\":\"a\",\"density\":\"auto\"}]}",
        "rules[0]: \"density\"");
    assert_refused("{\"budget\":1,\"warmup_epochs\":1}", "needs \"total_turns\"");
    assert_refused("{\"warmup_epochs\":1}", "or a \"density\"");
    assert_refused("{\"budget\":1e-6,\"values\":\"bf16\"}",
        "less than a density of 1e-06 takes with values \"bf16\"");
    assert_refused("{\"budget\":1e-5,\"values\":\"two\"}", "with values \"two\"");
    assert_refused("{\"budget\":-1}", "\"budget\" must be a number from 0 to 64");
    assert_refused("{\"budget\":65}", "\"budget\"");
    assert_refused("{\"budget\":null}", "\"budget\"");
    assert_refused("{\"budget\":\"auto\"}", "\"budget\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_more_than_all),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_warm_up),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
