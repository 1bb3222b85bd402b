/*
 * The policy document: its keys, its refusals, and a canonical text that says all of it.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/policy/policy.h"

static const char default_text[] =
    "{\"version\":1,\"sparsifier\":\"topk\",\"density\":\"auto\",\"budget\":0.24079313589591111,"
    "\"warmup_epochs\":0,"
    "\"epoch_turns\":1000,\"fibres\":\"axis1\",\"interleave\":true,\"fibre_turns\":1,"
    "\"global_turns\":1,\"adaptive\":false,\"total_turns\":0,\"estimate\":false,"
    "\"estimate_period\":5,\"sample\":0.01,\"fit\":\"exponential\",\"threshold\":0,"
    "\"beta\":1,\"gamma\":1,\"momentum\":0,\"nesterov\":false,\"momentum_masking\":true,\"clip\":0,"
    "\"scope\":\"node\",\"residual\":\"f32\",\"lookahead\":0.25,\"engine\":\"node\","
    "\"reduce\":\"mean\",\"non_finite\":\"revoke\",\"values\":\"auto\",\"dense_values\":\"f32\","
    "\"indices\":\"auto\",\"sparse_collective\":\"allgather\",\"dense_collective\":\"allreduce\","
    "\"priority\":0,\"weight\":1,\"bucket_bytes\":4194304,\"tune_density\":false,"
    "\"plan\":\"\",\"replan\":true,\"on_peer_loss\":\"wait\","
    "\"on_rank_loss\":\"fail\",\"tie_breaker\":-1,"
    "\"grow\":false,"
    "\"join_timeout\":300.000000,"
    "\"push_timeout\":1800.000000,\"round_timeout\":300.000000,\"wait_limit\":600.000000,"
    "\"shrink_after\":4.000000,\"rules\":[]}";

static void assert_equal_numbers(double a, double b)
{
    assert_true(a >= b && a <= b);
}

static void assert_equal_params(
    const struct sparsifier_params *a, const struct sparsifier_params *b)
{
    assert_equal_numbers(a->density, b->density);
    assert_int_equal(a->warmup_epochs, b->warmup_epochs);
    assert_int_equal(a->epoch_turns, b->epoch_turns);
    assert_int_equal(a->fibres, b->fibres);
    assert_int_equal(a->interleave, b->interleave);
    assert_int_equal(a->fibre_turns, b->fibre_turns);
    assert_int_equal(a->global_turns, b->global_turns);
    assert_int_equal(a->adaptive, b->adaptive);
    assert_int_equal(a->total_turns, b->total_turns);
    assert_int_equal(a->estimate, b->estimate);
    assert_int_equal(a->estimate_period, b->estimate_period);
    assert_equal_numbers(a->sample, b->sample);
    assert_int_equal(a->fit, b->fit);
    assert_equal_numbers(a->threshold, b->threshold);
    assert_equal_numbers(a->beta, b->beta);
    assert_equal_numbers(a->gamma, b->gamma);
    assert_equal_numbers(a->momentum, b->momentum);
    assert_int_equal(a->nesterov, b->nesterov);
    assert_int_equal(a->momentum_masking, b->momentum_masking);
    assert_equal_numbers(a->clip, b->clip);
}

static void assert_equal_policies(const struct policy *a, const struct policy *b)
{
    assert_ptr_equal(a->tensor.sparsifier, b->tensor.sparsifier);
    assert_equal_params(&a->tensor.params, &b->tensor.params);
    assert_int_equal(a->tensor.scope, b->tensor.scope);
    assert_int_equal(a->tensor.residual, b->tensor.residual);
    assert_int_equal(a->reduce, b->reduce);
    assert_int_equal(a->non_finite, b->non_finite);
    assert_int_equal(a->on_peer_loss, b->on_peer_loss);
    assert_int_equal(a->on_rank_loss, b->on_rank_loss);
    assert_int_equal(a->tensor.indices, b->tensor.indices);
    assert_int_equal(a->tensor.values, b->tensor.values);
    assert_int_equal(a->tensor.dense_values, b->tensor.dense_values);
    assert_ptr_equal(a->tensor.sparse_collective, b->tensor.sparse_collective);
    assert_ptr_equal(a->tensor.dense_collective, b->tensor.dense_collective);
    assert_int_equal(a->tensor.priority, b->tensor.priority);
    assert_equal_numbers(a->tensor.lookahead, b->tensor.lookahead);
    assert_int_equal(a->weight, b->weight);
    assert_int_equal(a->bucket_bytes, b->bucket_bytes);
    assert_int_equal(a->tune_density, b->tune_density);
    assert_string_equal(a->plan, b->plan);
    assert_int_equal(a->replan, b->replan);
    assert_int_equal(a->grow, b->grow);
    assert_int_equal(a->join_timeout_us, b->join_timeout_us);
    assert_int_equal(a->push_timeout_us, b->push_timeout_us);
    assert_int_equal(a->wait_limit_us, b->wait_limit_us);
}

static void parse(struct policy *policy, const char *json)
{
    struct error err = {ADTOPK_OK, ""};

    if (policy_parse(policy, json, &err) != ADTOPK_OK) {
        fail_msg("%.200s: %s", json, err.text);
    }
}

/* Printed, parsed onto the defaults and printed again: the same policy, the same text. */
static void assert_round_trip(const struct policy *policy)
{
    char text[POLICY_TEXT_SIZE], again[POLICY_TEXT_SIZE];
    struct policy copy;

    policy_print(policy, text);
    policy_default(&copy);
    parse(&copy, text);
    assert_equal_policies(&copy, policy);
    policy_print(&copy, again);
    assert_string_equal(again, text);
}

/* The document is refused, nothing has changed, and the sentence contains `names`. */
static void assert_refused(const char *json, const char *names)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy, before;

    policy_default(&policy);
    parse(&policy, "{\"density\":0.125,\"bucket_bytes\":777}");
    before = policy;
    if (policy_parse(&policy, json, &err) != ADTOPK_ERR_POLICY) {
        fail_msg("%.200s is taken", json);
    }
    assert_int_equal(err.code, ADTOPK_ERR_POLICY);
    if (strstr(err.text, names) == NULL) {
        fail_msg("%.200s: \"%s\" does not say %s", json, err.text, names);
    }
    assert_equal_policies(&policy, &before);
    assert_int_equal(policy_parse(&policy, json, NULL), ADTOPK_ERR_POLICY);
    assert_equal_policies(&policy, &before);
}

static void test_defaults(void **state)
{
    char text[POLICY_TEXT_SIZE];
    struct policy policy, same;

    (void)state;
    policy_default(&policy);
    policy_print(&policy, text);
    assert_string_equal(text, default_text);
    assert_round_trip(&policy);
    same = policy;
    parse(&same, "{}");
    assert_equal_policies(&same, &policy);
    parse(&same, " \t\r\n{ }\n");
    assert_equal_policies(&same, &policy);
    parse(&same, "{\"momentum\":-0,\"clip\":-0.0,\"threshold\":-0e5,\"warmup_epochs\":-0}");
    policy_print(&same, text);
    assert_string_equal(text, default_text);
}

/* The parameters of the sparsifiers themselves. */
static void test_every_parameter(void **state)
{
    const struct sparsifier_params wanted = {.density = 0.25,
        .warmup_epochs = 4,
        .epoch_turns = 200,
        .fibres = FIBRES_ROW,
        .interleave = true,
        .fibre_turns = 3,
        .global_turns = 64,
        .adaptive = true,
        .total_turns = 1000000,
        .estimate = true,
        .estimate_period = 20,
        .sample = 0.5,
        .fit = SIDCO_GAMMA,
        .threshold = 1e-3,
        .beta = 1,
        .gamma = 0.5,
        .momentum = 0.9,
        .nesterov = true,
        .momentum_masking = false,
        .clip = 2.5};
    struct policy policy;

    (void)state;
    policy_default(&policy);
    parse(&policy,
        "{\"density\":0.25,\"warmup_epochs\":4,\"epoch_turns\":200,\"fibres\":\"row\","
        "\"interleave\":true,\"fibre_turns\":3,\"global_turns\":64,\"adaptive\":true,"
        "\"total_turns\":1000000,\"estimate\":true,\"estimate_period\":20,\"sample\":0.5,"
        "\"fit\":\"gamma\",\"threshold\":0.001,\"gamma\":0.5,\"momentum\":0.9,\"nesterov\":true,"
        "\"momentum_masking\":false,\"clip\":2.5}");
    assert_equal_params(&policy.tensor.params, &wanted);
    assert_round_trip(&policy);
}

/* A parameter of another sparsifier is accepted, because a rule may switch the sparsifier. */
static void test_parameters_of_others(void **state)
{
    struct policy policy;

    (void)state;
    policy_default(&policy);
    parse(&policy, "{\"sparsifier\":\"dense\",\"fit\":\"pareto\",\"sample\":0.1,"
                   "\"rules\":[{\"match\":\"a\",\"sparsifier\":\"sidco\"}]}");
    assert_int_equal(policy_of(&policy, "a").params.fit, SIDCO_PARETO);
    assert_string_equal(policy_of(&policy, "a").sparsifier->name, "sidco");
}

static void test_every_field(void **state)
{
    struct policy policy;

    (void)state;
    policy_default(&policy);
    parse(&policy,
        "{\"sparsifier\":\"topk\",\"density\":0.5,\"fibres\":\"longest\",\"interleave\":false,"
        "\"scope\":\"rank\",\"reduce\":\"sum\",\"values\":\"f32\",\"dense_values\":\"bf16\","
        "\"indices\":\"delta\",\"sparse_collective\":\"allgather\","
        "\"dense_collective\":\"allreduce\",\"priority\":-7,\"lookahead\":0.5,\"weight\":20,"
        "\"bucket_bytes\":1024,"
        "\"on_peer_loss\":\"fail\",\"on_rank_loss\":\"wait\",\"non_finite\":\"reject\","
        "\"join_timeout\":0.5,\"push_timeout\":2,\"wait_limit\":1e3}");
    assert_ptr_equal(policy.tensor.sparsifier, sparsifier_find("topk"));
    assert_true(policy.tensor.params.density >= 0.5 && policy.tensor.params.density <= 0.5);
    assert_int_equal(policy.tensor.params.fibres, FIBRES_LONGEST);
    assert_false(policy.tensor.params.interleave);
    assert_int_equal(policy.tensor.scope, SCOPE_RANK);
    assert_int_equal(policy.reduce, REDUCE_SUM);
    assert_int_equal(policy.non_finite, NON_FINITE_REJECT);
    assert_int_equal(policy.tensor.values, PAYLOAD_VALUE_F32);
    assert_int_equal(policy.tensor.dense_values, PAYLOAD_VALUE_BF16);
    assert_int_equal(policy.tensor.indices, PAYLOAD_INDEX_DELTA);
    assert_ptr_equal(policy.tensor.sparse_collective, &collective_allgather);
    assert_ptr_equal(policy.tensor.dense_collective, &collective_allreduce);
    assert_int_equal(policy.tensor.priority, -7);
    assert_equal_numbers(policy.tensor.lookahead, 0.5);
    assert_int_equal(policy.weight, 20);
    assert_int_equal(policy.bucket_bytes, 1024);
    assert_int_equal(policy.on_peer_loss, PEER_LOSS_FAIL);
    assert_int_equal(policy.on_rank_loss, RANK_LOSS_WAIT);
    assert_int_equal(policy.join_timeout_us, 500000);
    assert_int_equal(policy.push_timeout_us, 2000000);
    assert_int_equal(policy.wait_limit_us, UINT64_C(1000000000));
    assert_round_trip(&policy);
}

/* Each value of each key, alone: it is in the text, and comes back. */
static void test_every_value(void **state)
{
    static const char *const members[] = {"\"sparsifier\":\"dense\"", "\"sparsifier\":\"topk\"",
        "\"sparsifier\":\"adtopk\"", "\"sparsifier\":\"dgc\"", "\"sparsifier\":\"gaussiank\"",
        "\"sparsifier\":\"redsync\"", "\"sparsifier\":\"redsync-trim\"", "\"sparsifier\":\"sidco\"",
        "\"sparsifier\":\"threshold\"", "\"sparsifier\":\"randomk\"", "\"fit\":\"exponential\"",
        "\"fit\":\"pareto\"", "\"fit\":\"gamma\"", "\"warmup_epochs\":100",
        "\"epoch_turns\":1000000000", "\"fibre_turns\":64", "\"global_turns\":1",
        "\"total_turns\":1000000000000", "\"estimate_period\":1000000", "\"sample\":1",
        "\"threshold\":1e+30", "\"momentum\":0.99990000000000001", "\"clip\":1e-300", "\"beta\":0",
        "\"beta\":0.5", "\"gamma\":1000000", "\"gamma\":0.25", "\"density\":1",
        "\"density\":0.33333333333333331", "\"fibres\":\"axis1\"", "\"fibres\":\"row\"",
        "\"fibres\":\"longest\"", "\"interleave\":false", "\"interleave\":true",
        "\"scope\":\"node\"", "\"scope\":\"rank\"", "\"reduce\":\"mean\"", "\"reduce\":\"sum\"",
        "\"non_finite\":\"revoke\"", "\"non_finite\":\"propagate\"", "\"non_finite\":\"reject\"",
        "\"values\":\"f32\"", "\"values\":\"bf16\"", "\"dense_values\":\"f32\"",
        "\"dense_values\":\"bf16\"", "\"indices\":\"auto\"", "\"indices\":\"raw\"",
        "\"indices\":\"rows\"", "\"indices\":\"delta\"", "\"indices\":\"bitmap\"",
        "\"sparse_collective\":\"allgather\"", "\"dense_collective\":\"allreduce\"",
        "\"priority\":-1000", "\"priority\":1000", "\"weight\":1", "\"weight\":100",
        "\"sparsifier\":\"auto\"", "\"sparse_collective\":\"auto\"", "\"dense_values\":\"auto\"",
        "\"bucket_bytes\":\"auto\"", "\"tune_density\":true", "\"replan\":false",
        "\"plan\":\"1:1d\"", "\"plan\":\"1099511627776:4294967294c1h\"", "\"bucket_bytes\":1",
        "\"bucket_bytes\":1099511627776", "\"on_peer_loss\":\"wait\"", "\"on_peer_loss\":\"fail\"",
        "\"join_timeout\":0.001000", "\"push_timeout\":1000000.000000", "\"wait_limit\":12.345678"};

    (void)state;
    for (unsigned i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        char json[128], text[POLICY_TEXT_SIZE];
        struct policy policy;
        policy_default(&policy);
        (void)snprintf(json, sizeof(json), "{%s%s}", members[i],
            strstr(members[i], "warmup") != NULL ? ",\"total_turns\":1000000000000" : "");
        parse(&policy, json);
        policy_print(&policy, text);
        if (strstr(text, members[i]) == NULL) {
            fail_msg("%s became %s", members[i], text);
        }
        assert_round_trip(&policy);
    }
}

/* Ranks and nodes compare the text, so no number may change on its way through it. */
static void test_numbers_round_trip(void **state)
{
    uint64_t random = 88172645463325252u;

    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        struct policy policy;
        policy_default(&policy);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        policy.join_timeout_us = 1000 + random % UINT64_C(999999999000);
        policy.push_timeout_us = 1000 + random % 100000;
        policy.wait_limit_us = 1000 + random % 10000000;
        policy.tensor.priority = (int64_t)(random >> 8) % (POLICY_PRIORITY_MAX + 1);
        policy.weight = 1 + (random >> 30) % 100;
        policy.bucket_bytes = 1 + (random >> 20) % (UINT64_C(1) << 40);
        policy.tensor.budget = 0;
        policy.tensor.params.density = 1e-6 + (double)(random >> 11) * 0x1p-53 * 0.999;
        assert_round_trip(&policy);
    }
}

/* Numbers in other notations are the same numbers, and give the same text. */
static void test_notations(void **state)
{
    static const char *const same[][2] = {{"\"threshold\":-0", "\"threshold\":0"},
        {"\"momentum\":-0.0e9", "\"momentum\":0"}, {"\"clip\":-1e-400", "\"clip\":0"},
        {"\"total_turns\":-0", "\"total_turns\":0"}, {"\"density\":1.0", "\"density\":1"},
        {"\"density\":10E-1", "\"density\":1"}, {"\"fibre_turns\":4.0", "\"fibre_turns\":4"},
        {"\"epoch_turns\":0.1e+10", "\"epoch_turns\":1000000000"},
        {"\"version\":1.0", "\"version\":1"}, {"\"wait_limit\":1e-3", "\"wait_limit\":0.001000"}};

    (void)state;
    for (unsigned i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        char text[2][POLICY_TEXT_SIZE];

        for (unsigned j = 0; j < 2; j++) {
            char json[128];
            struct policy policy;

            policy_default(&policy);
            (void)snprintf(json, sizeof(json), "{%s}", same[i][j]);
            parse(&policy, json);
            policy_print(&policy, text[j]);
            assert_round_trip(&policy);
        }
        assert_string_equal(text[0], text[1]);
        assert_non_null(strstr(text[0], same[i][1]));
    }
}

/* The meaning of "auto" until a choice is made, in the document and in rules. */
static void test_auto(void **state)
{
    struct policy policy;
    struct tensor_policy settled;

    (void)state;
    policy_default(&policy);
    parse(&policy, "{\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\",\"bucket_bytes\":"
                   "\"auto\",\"rules\":[{\"match\":\"a\",\"dense_values\":\"auto\"},{\"match\":"
                   "\"b\",\"sparsifier\":\"topk\",\"sparse_collective\":\"oktopk\"}]}");
    assert_null(policy.tensor.sparsifier);
    assert_null(policy.tensor.sparse_collective);
    assert_int_equal(policy.bucket_bytes, 0);
    settled = policy_of(&policy, "a");
    assert_int_equal(settled.dense_values, POLICY_VALUES_AUTO);
    settled = policy_settled(&settled);
    assert_ptr_equal(settled.sparsifier, sparsifier_find("topk"));
    assert_ptr_equal(settled.sparse_collective, &collective_allgather);
    assert_int_equal(settled.dense_values, PAYLOAD_VALUE_F32);
    settled = policy_of(&policy, "b");
    settled = policy_settled(&settled);
    assert_ptr_equal(settled.sparsifier, sparsifier_find("topk"));
    assert_ptr_equal(settled.sparse_collective, &collective_oktopk);
    assert_round_trip(&policy);
    assert_refused("{\"sparsifier\":\"adtopk\",\"sparse_collective\":\"exclusive\"}", "adtopk");
}

/* A plan stays as long as the possible choices do. */
static void test_same_choices(void **state)
{
    static const struct {
        const char *json;
        bool same;
    } changes[] = {{"{\"replan\":false,\"plan\":\"9:1d\",\"wait_limit\":9}", true},
        {"{\"on_peer_loss\":\"fail\",\"on_rank_loss\":\"wait\",\"join_timeout\":9,\"push_timeout\":"
         "9}",
            true},
        {"{\"density\":0.02}", false}, {"{\"bucket_bytes\":\"auto\"}", false},
        {"{\"rules\":[{\"match\":\"a\",\"density\":0.01}]}", false},
        {"{\"tune_density\":true}", false}};
    struct policy policy, other;

    (void)state;
    policy_default(&policy);
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        other = policy;
        parse(&other, changes[i].json);
        assert_int_equal(policy_same_choices(&policy, &other), changes[i].same);
    }
    assert_true(policy_names("{\"density\":1,\"plan\":\"\"}", "plan"));
    assert_false(policy_names("{\"replan\":true,\"rules\":[]}", "plan"));
}

static void assert_difference(const char *from, const char *to, size_t size, const char *text)
{
    struct policy one, other;
    char found[POLICY_VALUES_SIZE];

    policy_default(&one);
    parse(&one, from);
    other = one;
    parse(&other, to);
    (void)memset(found, 'x', sizeof(found));
    policy_difference(&one, &other, found, size);
    assert_string_equal(found, text);
    assert_true(strlen(found) < size);
}

static void test_differences(void **state)
{
    const char *rules = "{\"rules\":[{\"match\":\"a\",\"density\":0.1}]}";

    (void)state;
    assert_difference("{}", "{}", 100, "");
    assert_difference("{\"density\":0.1}", "{\"density\":0.02}", 100, "density=0.02");
    assert_difference("{\"values\":\"f32\"}",
        "{\"values\":\"bf16\",\"bucket_bytes\":8388608,\"wait_limit\":601.5,\"replan\":false}", 100,
        "values=bf16, bucket_bytes=8388608, replan=false, wait_limit=601.5");
    assert_difference("{}", "{\"plan\":\"9:1d\"}", 100, "another plan");
    assert_difference("{}", rules, 100, "other rules");
    assert_difference(rules, rules, 100, "");
    assert_difference(rules, "{\"rules\":[{\"match\":\"b\",\"density\":0.1}]}", 100, "other rules");
    assert_difference(rules, "{\"rules\":[{\"match\":\"a\",\"density\":0.2}]}", 100, "other rules");
    assert_difference(rules, "{\"rules\":[]}", 100, "no rules");
    for (size_t size = 4; size < 60; size++) {
        const size_t all = sizeof("values=bf16, wait_limit=601.5, ..."),
                     one = sizeof("values=bf16, ...");

        assert_difference("{\"values\":\"f32\"}", "{\"values\":\"bf16\",\"wait_limit\":601.5}",
            size,
            size >= all   ? "values=bf16, wait_limit=601.5"
            : size >= one ? "values=bf16, ..."
                          : "...");
    }
}

static void test_layers(void **state)
{
    struct policy policy;

    (void)state;
    policy_default(&policy);
    parse(&policy, "{\"density\":0.5,\"scope\":\"rank\"}");
    parse(&policy, "{\"scope\":\"node\"}"); /* on top of it: keys that it does not name stay */
    assert_int_equal(policy.tensor.scope, SCOPE_NODE);
    assert_true(policy.tensor.params.density > 0.49);
}

static void test_keys_refused(void **state)
{
    (void)state;
    assert_refused("{\"colour\":1}", "colour");
    assert_refused("{\"\":1}", "unknown");
    assert_refused("{\"Density\":0.5}", "Density");
    assert_refused("{\"DENSITY\":0.5}", "DENSITY");
    assert_refused("{\"density \":0.5}", "density ");
    assert_refused("{\"densit\":0.5}", "densit");
    assert_refused("{\"density\":0.5,\"density\":0.5}", "density");
    assert_refused("{\"density\":0.5,\"scope\":\"rank\",\"density\":0.25}", "density");
    assert_refused("{\"density\":0.5,\"d\\u0065nsity\":0.25}", "density");
    assert_refused("{\"scope\":\"rank\",\"colour\":1}", "colour"); /* the first key is undone */
    assert_refused("{\"density\\u0000\":0.5}", "");
    assert_refused("{\"scope\":\"rank\\u0000s\"}", "");
}

/* Checks that the value is refused, by name, in the document and in its second rule. */
static void assert_member_refused(const struct policy_key_info *key, const char *value)
{
    char json[256];

    (void)snprintf(json, sizeof(json), "{\"%s\":%s}", key->name, value);
    assert_refused(json, key->name);
    (void)snprintf(json, sizeof(json),
        "{\"rules\":[{\"match\":\"a\",\"density\":1},{\"match\":\"b\",\"%s\":%s}]}", key->name,
        value);
    assert_refused(json, key->name);
    assert_refused(json, "rules[1]: ");
}

/* Every key, with values that no key can have, and with values of other types. */
static void test_types_refused(void **state)
{
    static const char *const never[] = {"null", "[]", "{}", "[0.5]", "[true]", "\"\"", "\"0.5\"",
        "\"1\"", "\"true\"", "-1001", "-1e-300", "1e400", "-1e400", "1e999999999", "\"Node\"",
        "\"n\303\266de\"", "\"node \"", "{\"x\":1}", "[[[[]]]]", "{\"density\":0.5}"};
    struct policy_key_info key;

    (void)state;
    for (unsigned k = 0; policy_key(k, &key); k++) {
        bool number = strncmp(key.values, "a ", 2) == 0, named = key.values[0] == '"';

        for (unsigned v = 0; v < sizeof(never) / sizeof(never[0]); v++) {
            if (strcmp(key.name, "plan") != 0 || strcmp(never[v], "\"\"") != 0) {
                assert_member_refused(&key, never[v]);
            }
        }
        if (number || named) {
            assert_member_refused(&key, "true");
            assert_member_refused(&key, "false");
        }
        if (!number) {
            assert_member_refused(&key, "0");
            assert_member_refused(&key, "-0");
            assert_member_refused(&key, "1");
        }
        if (strncmp(key.values, "a whole", 7) == 0) {
            assert_member_refused(&key, "1.5");
            assert_member_refused(&key, "1e-300");
        }
    }
}

static void test_values_refused(void **state)
{
    (void)state;
    assert_refused("{\"density\":0.0000009}", "density");
    assert_refused("{\"density\":1.0000001}", "density");
    assert_refused("{\"density\":-0.01}", "density");
    assert_refused("{\"warmup_epochs\":101}", "warmup_epochs");
    assert_refused("{\"warmup_epochs\":-1}", "warmup_epochs");
    assert_refused("{\"epoch_turns\":0}", "epoch_turns");
    assert_refused("{\"fibre_turns\":65}", "fibre_turns");
    assert_refused("{\"global_turns\":1.5}", "global_turns");
    assert_refused("{\"estimate_period\":4}", "estimate_period");
    assert_refused("{\"total_turns\":1e13}", "total_turns");
    assert_refused("{\"sample\":1.01}", "sample");
    assert_refused("{\"fit\":\"normal\"}", "exponential");
    assert_refused("{\"threshold\":-0.1}", "threshold");
    assert_refused("{\"beta\":1.01}", "beta");
    assert_refused("{\"beta\":-0.1}", "beta");
    assert_refused("{\"gamma\":0}", "gamma");
    assert_refused("{\"momentum\":1}", "momentum");
    assert_refused("{\"clip\":1e31}", "clip");
    assert_refused("{\"priority\":1.5}", "priority");
    assert_refused("{\"priority\":1001}", "from -1000 to 1000");
    assert_refused("{\"priority\":-1001}", "priority");
    assert_refused("{\"priority\":\"high\"}", "priority");
    assert_refused("{\"weight\":0}", "from 1 to 100");
    assert_refused("{\"weight\":101}", "weight");
    assert_refused("{\"weight\":0.5}", "weight");
    assert_refused("{\"bucket_bytes\":1.5}", "bucket_bytes");
    assert_refused("{\"bucket_bytes\":1099511627777}", "bucket_bytes");
    assert_refused("{\"bucket_bytes\":1e300}", "bucket_bytes");
    assert_refused("{\"bucket_bytes\":\"Auto\"}", "\"auto\"");
    assert_refused("{\"density\":\"auto\"}", "density");
    assert_refused("{\"plan\":\"4096\"}", "colon");
    assert_refused("{\"plan\":\"4096:\"}", "0 tensors");
    assert_refused("{\"plan\":\"4096:1x\"}", "letters");
    assert_refused("{\"plan\":\"4096:1d1d\"}", "same letter");
    assert_refused("{\"plan\":\"4096:01d\"}", "number of tensors");
    assert_refused("{\"plan\":\"4096:1d \"}", "number of tensors");
    assert_refused("{\"join_timeout\":0.0009}", "join_timeout");
    assert_refused("{\"push_timeout\":1000001}", "push_timeout");
    assert_refused("{\"wait_limit\":-5}", "wait_limit");
    assert_refused("{\"sparsifier\":\"adtopk2\"}", "adtopk2");
    assert_refused("{\"sparsifier\":\"ADTOPK\"}", "ADTOPK");
    assert_refused("{\"indices\":\"dense\"}", "indices");
    assert_refused("{\"fibres\":\"column\"}", "fibres");
    assert_refused("{\"sparse_collective\":\"allreduce\"}", "sparse_collective"); /* a dense one */
    assert_refused("{\"dense_collective\":\"allgather\"}", "dense_collective");
    assert_refused("{\"dense_collective\":\"plain\"}", "dense_collective");
}

static void test_documents_refused(void **state)
{
    static const char *const documents[] = {"", " ", "null", "true", "1", "\"scope\"", "[]",
        "[{\"density\":0.5}]", "{", "}", "{\"density\"}", "{\"density\":}", "{\"density\":0.5",
        "{\"density\":0.5,}", "{density:0.5}", "{'density':0.5}", "{\"density\":0.5}}",
        "{\"density\":0.5} x", "{\"density\":0.5}{\"density\":0.5}", "{\"density\":0.5},",
        "{\"density\":NaN}", "{\"density\":nan}", "{\"density\":Infinity}", "{\"density\":.5}",
        "{\"density\":+0.5}", "{\"density\":0x1p-1}", "{\"density\":0.5.5}", "{\"density\":--1}",
        "{\"density\":0,5}", "{\"scope\":\"rank}", "{\"scope\":\"\\x\"}", "/**/{}", "{}//", "\xff"};

    (void)state;
    for (unsigned i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        assert_refused(documents[i], "policy");
    }
}

/* `count` times `piece` between two ends. */
static char *repeat(const char *front, const char *piece, size_t count, const char *back)
{
    size_t length = strlen(piece), at = strlen(front);
    char *text = malloc(at + count * length + strlen(back) + 1);

    assert_non_null(text);
    memcpy(text, front, at);
    for (size_t i = 0; i < count; i++, at += length) {
        memcpy(text + at, piece, length);
    }
    memcpy(text + at, back, strlen(back) + 1);
    return text;
}

/* The place of a fault, and the name that was meant. */
static void test_places_and_guesses(void **state)
{
    static const struct {
        const char *json, *sentence;
    } wrong[] = {
        {"{\"densty\": 1}", "policy:1:2: unknown key \"densty\"; did you mean \"density\"?\n"
                            "  {\"densty\": 1}\n   ^"},
        {"{\"scope\":\n \"nodes\"}",
            "policy:2:2: \"scope\" is \"nodes\" but must be \"node\" or \"rank\"; did you mean "
            "\"node\"?\n   \"nodes\"}\n   ^"},
        {"{\"rules\": [\n{\"match\": \"a\",\n\"sparsifer\": \"topk\"}]}",
            "policy:3:1: rules[0]: unknown key \"sparsifer\"; did you mean \"sparsifier\"?\n"
            "  \"sparsifer\": \"topk\"}]}\n  ^"},
        {"{\"rules\": [{\"mach\": \"a\"}]}", NULL},
        {"{\"rule\": []}", NULL},
        {"{\"dense_collective\": \"alreduce\"}", NULL},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_refused(
            wrong[i].json, wrong[i].sentence != NULL ? wrong[i].sentence : "; did you mean \"");
    }
}

/* All faults of a document are reported. Of a hostile document only some are, and soon. */
static void test_all_faults(void **state)
{
    static const char text[] = "{\"densty\": 1, \"scope\": 3,\n\"rules\": [7, {\"match\": \"a\", "
                               "\"weight\": 1, \"clip\": -1}], \"scope\": \"node\"}";
    struct faults faults = {.count = 0};
    struct policy policy;
    char *many = repeat("{\"rules\":[0", ",0", 30, "],\"x\":1,\"y\":2}");

    (void)state;
    policy_default(&policy);
    assert_int_equal(policy_read(&policy, "p", text, &faults), ADTOPK_ERR_POLICY);
    assert_int_equal(faults.count, 6);
    assert_memory_equal(faults.fault[5].text, "p:2:56: \"scope\" is given twice", 30);
    faults.count = 0;
    assert_int_equal(
        policy_read_part(&policy, "p", text, strstr(text, "[7"), &faults), ADTOPK_ERR_POLICY);
    assert_memory_equal(faults.fault[0].text, "p:2:10: a policy must be an object", 34);
    faults.count = 0;
    assert_int_equal(policy_read(&policy, "p", many, &faults), ADTOPK_ERR_POLICY);
    assert_int_equal(faults.count, FAULTS_MAX);
    free(many);
}

static void test_large_documents(void **state)
{
    static const struct {
        const char *front, *piece, *back;
    } shapes[] = {
        {"", "[", ""},
        {"", "{\"density\":", ""},
        {"{\"density\":", "[", "}"},
        {"{\"", "a", "\":1}"},
        {"{\"scope\":\"", "a", "\"}"},
        {"{\"density\":", "1", "}"},
        {"{\"density\":0.", "1", "e99}"},
        {"{\"density\":[1", ",1", "]}"},
        {"{\"x\":1", ",\"x\":1", "}"},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (size_t count = 1; count <= 90000; count *= 300) {
            char *text = repeat(shapes[i].front, shapes[i].piece, count, shapes[i].back);
            if (count > 1 || i != 5) { /* a density of 1 is one */
                assert_refused(text, "policy");
            }
            free(text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_every_parameter),
        cmocka_unit_test(test_parameters_of_others),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_numbers_round_trip),
        cmocka_unit_test(test_notations),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_same_choices),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_keys_refused),
        cmocka_unit_test(test_types_refused),
        cmocka_unit_test(test_values_refused),
        cmocka_unit_test(test_documents_refused),
        cmocka_unit_test(test_places_and_guesses),
        cmocka_unit_test(test_all_faults),
        cmocka_unit_test(test_large_documents),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
