/*
 * The combinations of sparsifiers, collectives, scopes and values: all that exist by name, compared
 * with a separate list. They are tested alone, in documents, and as overlapping rules produce them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/policy/combination.h"
#include "lone_core.h"

#define SCOPES 2
#define VALUES PAYLOAD_VALUE_COUNT

/* What a sparsifier sends: lists, values at positions that all nodes know, or whole tensors. */
enum sends { LISTS, KNOWN, WHOLE };

/* Every sparsifier: a new one gets a row. */
static const struct {
    const char *name;
    enum sends sends;
    bool in_bf16; /* residuals may be in bf16 */
} sparsifiers[] = {
    {"adtopk", LISTS, true},
    {"topk", LISTS, true},
    {"dgc", LISTS, false},
    {"gaussiank", LISTS, false},
    {"redsync", LISTS, false},
    {"redsync-trim", LISTS, false},
    {"sidco", LISTS, false},
    {"threshold", LISTS, false},
    {"randomk", KNOWN, false},
    {"dense", WHOLE, true},
};
#define SPARSIFIERS (sizeof(sparsifiers) / sizeof(sparsifiers[0]))

/* Every collective for lists: a new one gets a row. */
static const struct {
    const char *name;
    bool blocks;   /* takes values in blocks; all collectives take the other values */
    bool rerounds; /* rounds sums while it adds them up */
    bool picks;    /* selects the entries itself: for "topk" with one residual per node */
} collectives[] = {
    {"allgather", true, false, false},
    {"hierarchical", true, false, false},
    {"balanced", false, true, false},
    {"oktopk", false, true, false},
    {"exclusive", false, false, true},
    {"nccl-allgather", true, false, false},
    {"nccl-balanced", false, true, false},
    {"nccl-exclusive", false, false, true},
};
#define COLLECTIVES_OF_LISTS (sizeof(collectives) / sizeof(collectives[0]))

/* Collectives for dense tensors and for values at positions that all nodes know. */
static const struct {
    const char *collective, *values;
} good_dense[] = {
    {"allreduce", "f32"},
    {"allreduce", "bf16"},
    {"allreduce", "f16"},
    {"one-shot", "f32"},
    {"one-shot", "bf16"},
    {"one-shot", "f16"},
    {"pairwise", "f32"},
    {"pairwise", "bf16"},
    {"pairwise", "f16"},
    {"ring", "f32"},
    {"ring", "bf16"},
    {"ring", "f16"},
    {"halving-doubling", "f32"},
    {"nccl-allreduce", "f32"},
};

static bool is(const char *listed, const char *name)
{
    return strcmp(listed, "*") == 0 || strcmp(listed, name) == 0;
}

static unsigned row_of(const struct sparsifier_ops *ops)
{
    for (unsigned i = 0; i < SPARSIFIERS; i++) {
        if (strcmp(sparsifiers[i].name, ops->name) == 0) {
            return i;
        }
    }
    fail_msg("%s has no row here", ops->name);
    return 0;
}

/* The row of a collective of lists, or COLLECTIVES_OF_LISTS. */
static unsigned row_of_lists(const struct collective_ops *ops)
{
    unsigned i = 0;

    while (i < COLLECTIVES_OF_LISTS && strcmp(collectives[i].name, ops->name) != 0) {
        i++;
    }
    return i;
}

static bool is_good(const struct tensor_policy *policy)
{
    unsigned row = row_of_lists(policy->sparse_collective);
    bool blocks = policy->values != PAYLOAD_VALUE_F32 && policy->values != PAYLOAD_VALUE_BF16 &&
                  policy->values != PAYLOAD_VALUE_F16;

    switch (sparsifiers[row_of(policy->sparsifier)].sends) {
    case KNOWN: return !blocks;
    case WHOLE: return policy->scope == SCOPE_NODE;
    case LISTS: break;
    }
    return row < COLLECTIVES_OF_LISTS && (!blocks || collectives[row].blocks) &&
           (!collectives[row].picks ||
               (strcmp(policy->sparsifier->name, "topk") == 0 && policy->scope == SCOPE_NODE));
}

/* Calls back with every combination, and returns their number. */
static unsigned all(void (*visit)(const struct tensor_policy *policy))
{
    unsigned count = 0;
    struct policy policy;

    policy_default(&policy);
    for (unsigned s = 0; sparsifier_table[s] != NULL; s++) {
        for (unsigned c = 0; collective_table[c] != NULL; c++) {
            for (unsigned k = 0; k < SCOPES * VALUES; k++) {
                policy.tensor.sparsifier = sparsifier_table[s];
                policy.tensor.sparse_collective = collective_table[c];
                policy.tensor.scope = (enum policy_scope)(k % SCOPES);
                policy.tensor.values = (enum payload_value)(k / SCOPES);
                visit(&policy.tensor);
                count++;
            }
        }
    }
    return count;
}

static void assert_names(const char *text, const char *part)
{
    char quoted[64];

    (void)snprintf(quoted, sizeof(quoted), "\"%s\"", part);
    if (strstr(text, quoted) == NULL) {
        fail_msg("\"%s\" does not name %s", text, quoted);
    }
}

/* Checks that the reason names both parts of a bad combination. */
static void assert_reason(const struct tensor_policy *policy, const char *text)
{
    bool sparsifier = strstr(text, "sparsifier \"") != NULL;

    assert_names(text, sparsifier ? policy->sparsifier->name : policy->sparse_collective->name);
    if (strstr(text, "collective \"") != NULL && sparsifier) {
        assert_names(text, policy->sparse_collective->name);
        return;
    }
    assert_names(text, strstr(text, "scope") != NULL ? policy_scope_name(policy->scope)
                                                     : policy_value_name(policy->values));
}

static bool is_good_dense(const struct collective_ops *ops, enum payload_value values)
{
    for (unsigned i = 0; i < sizeof(good_dense) / sizeof(good_dense[0]); i++) {
        if (is(good_dense[i].collective, ops->name) &&
            is(good_dense[i].values, policy_value_name(values))) {
            return true;
        }
    }
    return false;
}

/* Everything that is sent dense: tensors of any sparsifier, and the entries that randomk draws. */
static void test_dense(void **state)
{
    static const char *const names[] = {"adtopk", "randomk", "dense"};
    unsigned refused = 0;

    (void)state;
    for (unsigned i = 0; i < 3 * 3 * 3; i++) {
        enum payload_value values = (enum payload_value)(i % 3),
                           dense_values = (enum payload_value)(i / 3 % 3);
        for (unsigned c = 0; collective_table[c] != NULL; c++) {
            const struct collective_ops *ops = collective_table[c];
            struct error err = {ADTOPK_OK, ""};
            char json[256];
            struct policy policy;
            bool right = ops->traits.dense && is_good_dense(ops, dense_values) &&
                         (strcmp(names[i / 9], "randomk") != 0 || is_good_dense(ops, values));
            (void)snprintf(json, sizeof(json),
                "{\"sparsifier\":\"%s\",\"dense_collective\":\"%s\",\"values\":\"%s\","
                "\"dense_values\":\"%s\"}",
                names[i / 9], ops->name, policy_value_name(values),
                policy_value_name(dense_values));
            policy_default(&policy);
            assert_int_equal(
                policy_parse(&policy, json, &err), right ? ADTOPK_OK : ADTOPK_ERR_POLICY);
            if (!right) {
                assert_names(err.text, ops->name);
            }
            if (!right && ops->traits.dense) {
                bool dense = strstr(err.text, "dense_values") != NULL;
                assert_names(err.text, policy_value_name(dense ? dense_values : values));
                refused++;
            }
        }
    }
    assert_true(refused > 0);
}

/* Combinations that depend on the nodes. */
static void test_nodes(void **state)
{
    struct policy policy;
    struct error err;

    (void)state;
    policy_default(&policy);
    assert_int_equal(combination_check_nodes(&policy.tensor, 1024, &err), ADTOPK_OK);
    policy.tensor.dense_collective = &collective_ring;
    assert_int_equal(combination_check_nodes(&policy.tensor, 0, &err), ADTOPK_OK);
    assert_int_equal(combination_check_nodes(&policy.tensor, 129, &err), ADTOPK_OK);
    assert_int_equal(combination_check_nodes(&policy.tensor, 130, &err), ADTOPK_ERR_POLICY);
    assert_names(err.text, "ring");
    assert_non_null(strstr(err.text, "at most 129 nodes, not 130"));
}

static void check_alone(const struct tensor_policy *policy)
{
    struct error err = {ADTOPK_OK, ""};
    enum adtopk_status status = combination_check(policy, &err);

    assert_int_equal(status, is_good(policy) ? ADTOPK_OK : ADTOPK_ERR_POLICY);
    assert_int_equal(err.code, status);
    if (status != ADTOPK_OK) {
        assert_reason(policy, err.text);
        assert_int_equal(combination_check(policy, NULL), ADTOPK_ERR_POLICY);
    }
}

static void test_all(void **state)
{
    unsigned lists = 0, count = 0;

    (void)state;
    for (unsigned i = 0; collective_table[i] != NULL; i++, count++) {
        lists += collective_table[i]->traits.dense ? 0 : 1;
    }
    assert_int_equal(lists, COLLECTIVES_OF_LISTS);
    assert_int_equal(all(check_alone), SPARSIFIERS * count * SCOPES * VALUES);
    for (unsigned i = 0; i < COLLECTIVES_OF_LISTS; i++) {
        assert_non_null(collective_find(collectives[i].name));
    }
}

/* Residuals may be in bf16 if the combination is good anyway, if the kernels select exactly, if
 * values are sent exactly, and if only one node reads them. */
static bool is_good_in_bf16(const struct tensor_policy *policy)
{
    unsigned row = row_of(policy->sparsifier), lists = row_of_lists(policy->sparse_collective);
    bool f32 = policy->values == PAYLOAD_VALUE_F32, bf16 = policy->values == PAYLOAD_VALUE_BF16;

    if (!is_good(policy) || sparsifiers[row].sends == WHOLE) {
        return is_good(policy);
    }
    return sparsifiers[row].in_bf16 && policy->scope == SCOPE_NODE && !collectives[lists].picks &&
           (f32 || (bf16 && !collectives[lists].rerounds));
}

static void check_in_bf16(const struct tensor_policy *wanted)
{
    struct tensor_policy policy = *wanted;
    struct error err = {ADTOPK_OK, ""};
    bool right = is_good_in_bf16(wanted);

    policy.residual = RESIDUAL_BF16;
    assert_int_equal(combination_check(&policy, &err), right ? ADTOPK_OK : ADTOPK_ERR_POLICY);
    if (!right && is_good(wanted)) {
        assert_non_null(strstr(err.text, "residual \"bf16\" does not go with"));
    }
}

static void check_bf16_with(const char *json, const char *reason)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;

    policy_default(&policy);
    assert_int_equal(
        policy_parse(&policy, json, &err), reason != NULL ? ADTOPK_ERR_POLICY : ADTOPK_OK);
    if (reason != NULL) {
        assert_names(err.text, reason);
    }
}

static void test_residuals(void **state)
{
    (void)state;
    (void)all(check_in_bf16);
    check_bf16_with("{\"residual\":\"bf16\"}", NULL);
    check_bf16_with("{\"residual\":\"bf16\",\"clip\":1,\"density\":0.1,\"warmup_epochs\":2}", NULL);
    check_bf16_with("{\"residual\":\"bf16\",\"momentum\":0.5}", "momentum");
    check_bf16_with("{\"residual\":\"bf16\",\"beta\":0.5}", "beta");
    check_bf16_with(
        "{\"residual\":\"bf16\",\"estimate\":true,\"sparsifier\":\"adtopk\"}", "estimate");
    check_bf16_with("{\"residual\":\"f16\"}", "residual");
    check_bf16_with(
        "{\"momentum\":0.5,\"rules\":[{\"match\":\"a\",\"residual\":\"bf16\"}]}", "momentum");
}

/* Checks the document or rule with this policy. A dense collective is refused because of its key
 * already. */
static void check_document(const struct tensor_policy *wanted, const char *format)
{
    bool in_rule = strstr(format, "match") != NULL;
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;
    char json[256];
    enum adtopk_status status;

    (void)snprintf(json, sizeof(json), format, wanted->sparsifier->name,
        wanted->sparse_collective->name, policy_scope_name(wanted->scope),
        policy_value_name(wanted->values));
    policy_default(&policy);
    status = policy_parse(&policy, json, &err);
    assert_int_equal(status, is_good(wanted) && !wanted->sparse_collective->traits.dense
                                 ? ADTOPK_OK
                                 : ADTOPK_ERR_POLICY);
    if (status == ADTOPK_OK) {
        return;
    }
    /* The line that the message shows names all of them. */
    err.text[strcspn(err.text, "\n")] = '\0';
    if (in_rule) {
        assert_non_null(strstr(err.text, "rules[1]: "));
    }
    if (wanted->sparse_collective->traits.dense) {
        assert_names(err.text, "sparse_collective");
        assert_names(err.text, wanted->sparse_collective->name);
    } else {
        assert_reason(wanted, err.text);
    }
}

static void check_base(const struct tensor_policy *wanted)
{
    check_document(wanted, "{\"sparsifier\":\"%s\",\"sparse_collective\":\"%s\",\"scope\":\"%s\","
                           "\"values\":\"%s\"}");
}

static void check_rule(const struct tensor_policy *wanted)
{
    check_document(wanted,
        "{\"rules\":[{\"match\":\"a\",\"density\":1},{\"match\":\"b\",\"sparsifier\":\"%s\","
        "\"sparse_collective\":\"%s\",\"scope\":\"%s\",\"values\":\"%s\"}]}");
}

static void test_documents(void **state)
{
    (void)state;
    (void)all(check_base);
    (void)all(check_rule);
}

/* A rule is checked together with the policy beneath it, wherever that policy comes from. */
static void test_rule_on_base(void **state)
{
    const char *rule = "{\"rules\":[{\"match\":\"a\",\"sparsifier\":\"dense\"}]}";
    struct error err;
    struct policy policy;

    (void)state;
    policy_default(&policy);
    assert_int_equal(policy_parse(&policy, "{\"scope\":\"rank\"}", &err), ADTOPK_OK);
    assert_int_equal(policy_parse(&policy, rule, &err), ADTOPK_ERR_POLICY);
    assert_non_null(strstr(err.text, "rules[0]: "));
    assert_names(err.text, "dense");
    assert_names(err.text, "rank");
    policy_default(&policy);
    assert_int_equal(policy_parse(&policy, rule, &err), ADTOPK_OK);
    assert_int_equal(policy_parse(&policy, "{\"scope\":\"rank\"}", &err), ADTOPK_ERR_POLICY);
    assert_non_null(strstr(err.text, "rules[0]: "));
}

/* Each rule is compatible with the base, but the two are not with each other. */
#define OVERLAP                                                                                    \
    "\"rules\":[{\"match\":\"w*\",\"scope\":\"rank\"},{\"match\":\"*2\",\"sparsifier\":\"dense\"}" \
    "]"

static const uint64_t size[] = {20, 30};

static void test_overlap_at_commit(void **state)
{
    struct tensor_spec spec[] = {lone_spec("w1", 2, size), lone_spec("v2", 2, size),
        lone_spec("w2", 2, size), lone_spec("w22", 2, size)};
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 2, "{" OVERLAP "}", spec, 4);
    lone_commit(&lone);
    assert_int_equal(lone.ready, 0);
    assert_int_equal(lone.failed, 2);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_POLICY);
    assert_non_null(strstr(lone.failure.text, "'w2'"));
    assert_names(lone.failure.text, "dense");
    assert_names(lone.failure.text, "rank");
    lone_free(&lone);
    lone_start(&lone, 2, "{\"reduce\":\"sum\",\"values\":\"f32\"," OVERLAP "}", spec,
        2); /* both rules match no tensor */
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_free(&lone);
}

static void test_overlap_in_a_change(void **state)
{
    struct tensor_spec spec[] = {lone_spec("w1", 2, size), lone_spec("w2", 2, size)};
    struct lone_core lone;

    (void)state;
    lone_start(&lone, 2, "{\"reduce\":\"sum\",\"values\":\"f32\"}", spec, 2);
    assert_int_equal(lone_change(&lone, 5, "{" OVERLAP "}"), ADTOPK_OK);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_POLICY);
    assert_non_null(strstr(lone.policy.error.text, "node 3"));
    assert_non_null(strstr(lone.policy.error.text, "'w2'"));
    assert_names(lone.policy.error.text, "dense");
    assert_names(lone.policy.error.text, "rank");
    lone_train(&lone, 4);
    assert_int_equal(lone_job(&lone).policy.version, 0);
    lone_check(&lone);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_residuals),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_rule_on_base),
        cmocka_unit_test(test_overlap_at_commit),
        cmocka_unit_test(test_overlap_in_a_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
