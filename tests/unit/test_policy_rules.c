/*
 * The rules of a policy: the tensors that a pattern matches, the rule that counts, and refusals.
 * Its canonical text must say all of it. Also the list of the keys.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/policy/policy.h"

#define LONGEST_MATCH (POLICY_MATCH_SIZE - 1)

static struct policy parse(const char *json)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;

    policy_default(&policy);
    if (policy_parse(&policy, json, &err) != ADTOPK_OK) {
        fail_msg("%.200s: %s", json, err.text);
    }
    return policy;
}

/* Checks that the document is refused, that nothing has changed, and that the sentence has both
 * words. */
static void assert_refused(const char *json, const char *first, const char *second)
{
    char before[POLICY_TEXT_SIZE], after[POLICY_TEXT_SIZE];
    struct policy policy = parse("{\"density\":0.125,\"rules\":[{\"match\":\"x\",\"density\":1}]}");
    struct error err = {ADTOPK_OK, ""};

    policy_print(&policy, before);
    if (policy_parse(&policy, json, &err) != ADTOPK_ERR_POLICY) {
        fail_msg("%.200s is taken", json);
    }
    if (strstr(err.text, first) == NULL || strstr(err.text, second) == NULL) {
        fail_msg("%.200s: \"%s\" does not say %s and %s", json, err.text, first, second);
    }
    policy_print(&policy, after);
    assert_string_equal(after, before);
}

/* Checks that printing, parsing and printing again gives the same text. */
static void assert_round_trip(const struct policy *policy)
{
    char text[POLICY_TEXT_SIZE], again[POLICY_TEXT_SIZE];
    struct policy copy;

    policy_print(policy, text);
    copy = parse(text);
    policy_print(&copy, again);
    assert_string_equal(again, text);
}

/* A policy with one rule that has this pattern, inserted as it is. */
static struct policy with_pattern(const char *pattern)
{
    struct policy policy = parse("{\"rules\":[{\"match\":\"x\",\"density\":0.5}]}");

    (void)snprintf(policy.rule[0].match, sizeof(policy.rule[0].match), "%s", pattern);
    return policy;
}

static bool hits(const char *pattern, const char *name)
{
    struct policy policy = with_pattern(pattern);

    return policy_of(&policy, name).params.density > 0.4;
}

static void test_patterns(void **state)
{
    static const struct {
        const char *pattern, *name;
        bool fits;
    } cases[] = {
        {"a", "a", true},
        {"a", "b", false},
        {"a", "", false},
        {"a", "aa", false},
        {"aa", "a", false},
        {"A", "a", false},
        {"*", "a", true},
        {"*", "", true},
        {"**", "layer.0.weight", true},
        {"?", "a", true},
        {"?", "", false},
        {"?", "ab", false},
        {"??", "ab", true},
        {"?*", "a", true},
        {"*?", "", false},
        {"layer.*", "layer.0.weight", true},
        {"layer.*", "layer.", true},
        {"layer.*", "layer", false},
        {"*.weight", "layer.0.weight", true},
        {"*.weight", "layer.0.weights", false},
        {"*.norm.*", "a.norm.b", true},
        {"*.norm.*", "norm.b", false},
        {"layer.?.weight", "layer.7.weight", true},
        {"layer.?.weight", "layer.17.weight", false},
        {"*ab*ab*", "abab", true},
        {"*ab*ab*", "aab", false},
        {"*ab", "aab", true},
        {"a*b*c", "abbcbc", true},
        {"a*b*c", "abbcb", false},
        {"a.b", "axb", false}, /* a dot matches a dot */
        {"[a]", "a", false},   /* a bracket matches a bracket */
        {"[a]", "[a]", true},
        {"\\*", "\\anything", true}, /* a backslash matches a backslash */
        {"\\*", "*", false},
        {"a*", "a*", true}, /* a name may have a star */
        {"a?b", "a*b", true},
        {"?", "\xc3\xa9", true}, /* a character of two bytes */
        {"??", "\xc3\xa9", false},
        {"a?b",
            "a\xe2\x82\xac"
            "b",
            true}, /* of three bytes */
        {"*?b",
            "\xf0\x9f\x99\x82"
            "b",
            true}, /* of four bytes */
        {"*??b",
            "\xf0\x9f\x99\x82"
            "b",
            false},
        {"\xc3\xa9*", "\xc3\xa9t\xc3\xa9", true},
        {"\xc3\xa9*", "\xc3\xa8t\xc3\xa9", false},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (hits(cases[i].pattern, cases[i].name) != cases[i].fits) {
            fail_msg(
                "%s %s %s", cases[i].pattern, cases[i].fits ? "misses" : "hits", cases[i].name);
        }
    }
}

/* The same result from a table over the first characters of pattern and name: for ASCII. */
static bool fits_by_table(const char *pattern, const char *name)
{
    size_t rows = strlen(pattern), columns = strlen(name);
    bool fits[16][16] = {{true}};

    for (size_t p = 1; p <= rows; p++) {
        fits[p][0] = pattern[p - 1] == '*' && fits[p - 1][0];
        for (size_t n = 1; n <= columns; n++) {
            bool same = pattern[p - 1] == '?' || pattern[p - 1] == name[n - 1];
            fits[p][n] = pattern[p - 1] == '*' ? fits[p - 1][n] || fits[p][n - 1]
                                               : same && fits[p - 1][n - 1];
        }
    }
    return fits[rows][columns];
}

static void random_text(uint64_t *random, const char *letters, char *text, size_t size)
{
    size_t length;

    *random = *random * 6364136223846793005u + 1442695040888963407u;
    length = (size_t)(*random >> 33) % size;
    for (size_t i = 0; i < length; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        text[i] = letters[(*random >> 33) % strlen(letters)];
    }
    text[length] = '\0';
}

static void test_random_patterns(void **state)
{
    struct policy policy = with_pattern("x");
    uint64_t random = 521288629;
    unsigned fit = 0;

    (void)state;
    for (unsigned i = 0; i < 200000; i++) {
        char *pattern = policy.rule[0].match, name[12];
        bool want;
        random_text(&random, "ab*?*", pattern, 10);
        random_text(&random, "ab", name, sizeof(name));
        want = fits_by_table(pattern, name);
        fit += want ? 1 : 0;
        if ((policy_of(&policy, name).params.density > 0.4) != want) {
            fail_msg("%s %s %s", pattern, want ? "misses" : "hits", name);
        }
    }
    assert_true(fit > 10000 && fit < 190000);
}

/* A search that tried all ways to divide the name among 63 stars would never end. */
static void test_many_stars(void **state)
{
    char pattern[POLICY_MATCH_SIZE] = "", name[4 * POLICY_MATCH_SIZE] = "";
    struct policy policy;

    (void)state;
    for (unsigned i = 0; i + 1 < LONGEST_MATCH / 2; i++) {
        (void)strcat(pattern, "*a");
    }
    memset(name, 'a', sizeof(name) - 1);
    assert_true(hits(pattern, name));
    (void)strcat(pattern, "*b");
    policy = with_pattern(pattern);
    policy.rules = POLICY_RULES_MAX;
    for (unsigned r = 1; r < POLICY_RULES_MAX; r++) {
        policy.rule[r] = policy.rule[0];
    }
    for (unsigned i = 0; i < 1000; i++) {
        assert_true(policy_of(&policy, name).params.density < 0.4);
    }
}

static void test_later_rules_win(void **state)
{
    struct policy policy = parse("{\"sparsifier\":\"adtopk\",\"density\":0.25,\"rules\":["
                                 "{\"match\":\"*\",\"density\":0.5,\"values\":\"f32\"},"
                                 "{\"match\":\"b*\",\"sparsifier\":\"topk\"},"
                                 "{\"match\":\"ba\",\"density\":0.75},"
                                 "{\"match\":\"b?\",\"scope\":\"rank\"}]}");
    struct tensor_policy a = policy_of(&policy, "a"), ba = policy_of(&policy, "ba");
    struct policy other = parse("{\"rules\":[{\"match\":\"ba\",\"density\":0.75},"
                                "{\"match\":\"*\",\"density\":0.5}]}");

    (void)state;
    assert_true(a.params.density > 0.49 && a.params.density < 0.51);
    assert_int_equal(a.values, PAYLOAD_VALUE_F32);
    assert_ptr_equal(a.sparsifier, sparsifier_find("adtopk"));
    assert_int_equal(a.scope, SCOPE_NODE);
    assert_true(ba.params.density > 0.74);
    assert_ptr_equal(ba.sparsifier, sparsifier_find("topk"));
    assert_int_equal(ba.scope, SCOPE_RANK);
    assert_int_equal(ba.values, PAYLOAD_VALUE_F32);
    assert_true(policy_of(&other, "ba").params.density < 0.51);
    /* Keys that no rule sets have the policy's own value. */
    assert_int_equal(ba.dense_values, policy.tensor.dense_values);
    assert_int_equal(ba.params.interleave, policy.tensor.params.interleave);
    assert_ptr_equal(ba.dense_collective, policy.tensor.dense_collective);
}

/* A rule that sets a key to the policy's own value still sets it. */
static void test_base_beneath_rules(void **state)
{
    struct policy policy = parse("{\"rules\":[{\"match\":\"a\",\"density\":0.01}]}");

    (void)state;
    assert_int_equal(policy_parse(&policy, "{\"density\":0.5}", NULL), ADTOPK_OK);
    assert_int_equal(policy.rules, 1); /* a document without rules leaves the rules */
    assert_true(policy_of(&policy, "a").params.density < 0.02);
    assert_true(policy_of(&policy, "b").params.density > 0.4);
    assert_int_equal(policy_parse(&policy, "{\"rules\":[]}", NULL), ADTOPK_OK);
    assert_int_equal(policy.rules, 0); /* a document with rules replaces the rules */
    assert_true(policy_of(&policy, "a").params.density > 0.4);
}

static void test_rules_refused(void **state)
{
    static const char *const wrong[][3] = {
        {"{\"rules\":{}}", "\"rules\"", "array"},
        {"{\"rules\":null}", "\"rules\"", "array"},
        {"{\"rules\":\"a\"}", "\"rules\"", "array"},
        {"{\"rules\":[],\"rules\":[]}", "\"rules\"", "twice"},
        {"{\"rules\":[1]}", "rules[0]", "object"},
        {"{\"rules\":[[]]}", "rules[0]", "object"},
        {"{\"rules\":[{}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"a\"}]}", "rules[0]", "key to set"},
        {"{\"rules\":[{\"density\":0.5}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":1,\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":null,\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"a\",\"match\":\"b\",\"density\":1}]}", "rules[0]",
            "\"match\" is given twice"},
        {"{\"rules\":[{\"match\":\"a\",\"density\":1,\"density\":1}]}", "rules[0]",
            "\"density\" is given twice"},
        {"{\"rules\":[{\"match\":\"a\",\"density\":1},{\"match\":\"b\",\"colour\":1}]}", "rules[1]",
            "\"colour\""},
        {"{\"rules\":[{\"match\":\"a\",\"density\":\"1\"}]}", "rules[0]", "\"density\""},
        {"{\"rules\":[{\"match\":\"a\",\"density\":1.5}]}", "rules[0]", "\"density\""},
        {"{\"rules\":[{\"match\":\"a\",\"density\":0}]}", "rules[0]", "\"density\""},
        {"{\"rules\":[{\"match\":\"a\",\"values\":\"f8\"}]}", "rules[0]", "\"values\""},
        {"{\"rules\":[{\"match\":\"a\",\"interleave\":1}]}", "rules[0]", "\"interleave\""},
        {"{\"rules\":[{\"match\":\"a\",\"rules\":[]}]}", "rules[0]", "\"rules\""},
        {"{\"rules\":[{\"match\":\"a\",\"version\":1}]}", "rules[0]", "\"version\""},
        {"{\"rules\":[{\"match\":\"a\\u0007\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"a\\n\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"a\\u0001\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"\\u007f\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"\\u0085\",\"density\":1}]}", "rules[0]", "\"match\""},
        {"{\"rules\":[{\"match\":\"\xff\",\"density\":1}]}", "1:21", "not UTF-8"},
        {"{\"rules\":[{\"match\":\"\xc3\",\"density\":1}]}", "1:21", "not UTF-8"},
        {"{\"rules\":[{\"match\":\"a\\u0000b\",\"density\":1}]}", "policy", "u0000"},
        {"{\"rules\":[{\"match\":\"\\\\\\u0000\",\"density\":1}]}", "policy", "u0000"},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_refused(wrong[i][0], wrong[i][1], wrong[i][2]);
    }
}

static void test_version(void **state)
{
    (void)state;
    (void)parse("{\"version\":1}");
    (void)parse("{\"version\":1,\"density\":0.5}");
    assert_refused("{\"version\":0}", "\"version\"", "1");
    assert_refused("{\"version\":2}", "\"version\"", "1");
    assert_refused("{\"version\":1.5}", "\"version\"", "1");
    assert_refused("{\"version\":\"1\"}", "\"version\"", "1");
    assert_refused("{\"version\":true}", "\"version\"", "1");
    assert_refused("{\"version\":null}", "\"version\"", "1");
    assert_refused("{\"version\":1,\"version\":1}", "\"version\"", "twice");
}

static char *rules_document(unsigned count, const char *rule)
{
    char *text = malloc(20 + (strlen(rule) + 1) * count);

    assert_non_null(text);
    (void)strcpy(text, "{\"rules\":[");
    for (unsigned r = 0; r < count; r++) {
        (void)strcat(strcat(text, r > 0 ? "," : ""), rule);
    }
    return strcat(text, "]}");
}

static void test_number_of_rules(void **state)
{
    const char *rule = "{\"match\":\"a\",\"density\":0.5}";
    char *most = rules_document(POLICY_RULES_MAX, rule);
    char *more = rules_document(POLICY_RULES_MAX + 1, rule);
    struct policy policy = parse(most);

    (void)state;
    assert_int_equal(policy.rules, POLICY_RULES_MAX);
    assert_round_trip(&policy);
    assert_refused(more, "\"rules\"", "32");
    free(most);
    free(more);
}

static void test_length_of_patterns(void **state)
{
    char json[2 * POLICY_MATCH_SIZE + 64], pattern[POLICY_MATCH_SIZE + 1];
    struct policy policy;

    (void)state;
    memset(pattern, 'a', sizeof(pattern));
    pattern[LONGEST_MATCH] = '\0';
    (void)snprintf(json, sizeof(json), "{\"rules\":[{\"match\":\"%s\",\"density\":1}]}", pattern);
    policy = parse(json);
    assert_string_equal(policy.rule[0].match, pattern);
    assert_round_trip(&policy);
    pattern[LONGEST_MATCH] = 'a';
    pattern[LONGEST_MATCH + 1] = '\0';
    (void)snprintf(json, sizeof(json), "{\"rules\":[{\"match\":\"%s\",\"density\":1}]}", pattern);
    assert_refused(json, "rules[0]", "127 bytes");
}

/* Characters that JSON has to escape, in every notation. */
static void test_escapes(void **state)
{
    static const char *const written[][2] = {
        {"\\\"", "\""},
        {"\\\\", "\\"},
        {"\\/", "/"},
        {"\\u0022\\u005c", "\"\\"},
        {"\\\\n", "\\n"},
        {"\\\\u0000", "\\u0000"},    /* a backslash and five letters */
        {"\\u005cu0000", "\\u0000"}, /* the same in another notation */
        {"\\\\\\\\u0000", "\\\\u0000"},
        {"\\u00e9", "\xc3\xa9"},
        {"\\ud83d\\ude42", "\xf0\x9f\x99\x82"},
        {"*.\\\"q\\\"", "*.\"q\""},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
        char json[128];
        struct policy policy;
        (void)snprintf(
            json, sizeof(json), "{\"rules\":[{\"match\":\"%s\",\"density\":1}]}", written[i][0]);
        policy = parse(json);
        assert_string_equal(policy.rule[0].match, written[i][1]);
        assert_round_trip(&policy);
    }
}

/* A document in which rules have every key, with the longest values. */
static void test_longest_document(void **state)
{
    char rule[2048], text[POLICY_TEXT_SIZE], match[2 * LONGEST_MATCH + 1] = "";
    char *rules;
    struct policy policy;

    (void)state;
    for (unsigned i = 0; i < LONGEST_MATCH; i++) {
        (void)strcat(match, "\\\"");
    }
    (void)snprintf(rule, sizeof(rule),
        "{\"match\":\"%s\",\"sparsifier\":\"redsync-trim\",\"density\":1.2345678901234567e-06,"
        "\"warmup_epochs\":100,\"epoch_turns\":1000000000,\"fibres\":\"longest\","
        "\"interleave\":false,\"fibre_turns\":64,\"global_turns\":64,\"adaptive\":false,"
        "\"total_turns\":1000000000000,\"estimate\":false,\"estimate_period\":1000000,"
        "\"sample\":1.2345678901234567e-06,\"fit\":\"exponential\","
        "\"threshold\":1.2345678901234567e-300,\"momentum\":1.2345678901234567e-300,"
        "\"nesterov\":false,\"momentum_masking\":false,\"clip\":1.2345678901234567e-300,\"scope\":"
        "\"node\",\"values\":\"bf16\","
        "\"dense_values\":\"bf16\",\"indices\":\"bitmap\",\"sparse_collective\":\"allgather\","
        "\"dense_collective\":\"allreduce\",\"priority\":-1000}",
        match);
    rules = rules_document(POLICY_RULES_MAX, rule);
    policy = parse(rules);
    policy.bucket_bytes = UINT64_C(1) << 40;
    policy.join_timeout_us = policy.push_timeout_us = policy.wait_limit_us = 1000000000000;
    policy_print(&policy, text);
    assert_true(strlen(text) > POLICY_RULES_MAX * strlen(rule));
    assert_round_trip(&policy);
    free(rules);
}

/* The longest value that the list names; numbers are printed in at most 24 characters. */
static size_t longest_value(const struct policy_key_info *info)
{
    size_t longest = 24, length = 0;

    for (const char *c = info->values; *c != '\0'; c++) {
        length = *c == ' ' || *c == ',' ? 0 : length + 1;
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* The longest document has room, whatever keys and values the tables get. */
static void test_room_for_the_longest(void **state)
{
    struct policy_key_info info;
    size_t base = strlen("{\"version\":1,\"rules\":[]}") + 1;
    size_t rule = strlen("{\"match\":\"\"},") + (size_t)2 * LONGEST_MATCH;

    (void)state;
    for (unsigned i = 0; policy_key(i, &info); i++) {
        size_t key = strlen(",\"\":") + strlen(info.name) + longest_value(&info);
        base += key + (strcmp(info.name, "plan") == 0 ? POLICY_PLAN_SIZE : 0);
        rule += info.tensor ? key : 0;
    }
    assert_true(base + POLICY_RULES_MAX * rule <= POLICY_TEXT_SIZE);
}

/* ------------------------------------------------------------------ keys */

static void test_keys(void **state)
{
    char text[POLICY_TEXT_SIZE], member[128];
    struct policy_key_info info, other;
    struct policy policy;
    unsigned keys = 0, members = 0;

    (void)state;
    policy_default(&policy);
    policy_print(&policy, text);
    for (; policy_key(keys, &info); keys++) {
        assert_true(strlen(info.name) > 0 && strlen(info.help) > 0);
        assert_true(strlen(info.standard) > 0 && strlen(info.standard) < 31);
        assert_true(strlen(info.values) > 0 && strlen(info.values) + 1 < sizeof(info.values));
        (void)snprintf(member, sizeof(member), ",\"%s\":%s", info.name, info.standard);
        if (strstr(text, member) == NULL) {
            fail_msg("%s is not in %s", member, text);
        }
        for (unsigned i = 0; i < keys; i++) {
            assert_true(policy_key(i, &other));
            assert_string_not_equal(other.name, info.name);
        }
    }
    assert_int_equal(keys, 48);
    assert_false(policy_key(UINT32_MAX, &info));
    for (const char *c = text; (c = strchr(c, ':')) != NULL; c++) {
        members++;
    }
    assert_int_equal(members, keys + 2); /* version and rules, besides */
}

/* A key concerns the job or each tensor. A rule may only have keys of the second kind. */
static void test_keys_in_rules(void **state)
{
    struct policy_key_info info;
    unsigned tensor = 0;

    (void)state;
    for (unsigned i = 0; policy_key(i, &info); i++) {
        char json[256];
        (void)snprintf(json, sizeof(json), "{\"rules\":[{\"match\":\"a\",\"%s\":%s}]}", info.name,
            info.standard);
        if (info.tensor) {
            struct policy policy = parse(json);
            assert_round_trip(&policy);
            tensor++;
        } else {
            assert_refused(json, "rules[0]", info.name);
            assert_refused(json, "rules[0]", "whole job");
        }
    }
    assert_int_equal(tensor, 31);
}

/* The other key that a value needs. */
static const char *needed_with(const struct policy_key_info *key, const char *value)
{
    bool none = strcmp(key->name, "budget") == 0 && strcmp(value, "0") == 0;
    bool warms = strcmp(key->name, "warmup_epochs") == 0;

    return none || warms                         ? ",\"density\":0.01"
           : strcmp(value, "\"exclusive\"") == 0 ? ",\"sparsifier\":\"topk\""
                                                 : "";
}

/* Every value of the list is accepted. Another value is refused, and the sentence has the list. */
static void test_key_values(void **state)
{
    struct policy_key_info info;

    (void)state;
    for (unsigned i = 0; policy_key(i, &info); i++) {
        char values[sizeof(info.values)], json[256];
        (void)snprintf(values, sizeof(values), "%s", info.values);
        for (char *value = strtok(values, ", "); value != NULL; value = strtok(NULL, ", ")) {
            if ((*value == '"' && value[strlen(value) - 1] == '"') || strcmp(value, "true") == 0 ||
                strcmp(value, "false") == 0 || strspn(value, "0123456789.e+-") == strlen(value)) {
                (void)snprintf(json, sizeof(json), "{\"%s\":%s%s}", info.name, value,
                    needed_with(&info, value));
                (void)parse(json);
            }
        }
        (void)snprintf(json, sizeof(json), "{\"%s\":\"nonsense\"}", info.name);
        assert_refused(json, info.name, info.values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_random_patterns),
        cmocka_unit_test(test_many_stars),
        cmocka_unit_test(test_later_rules_win),
        cmocka_unit_test(test_base_beneath_rules),
        cmocka_unit_test(test_rules_refused),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_number_of_rules),
        cmocka_unit_test(test_length_of_patterns),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_longest_document),
        cmocka_unit_test(test_room_for_the_longest),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_in_rules),
        cmocka_unit_test(test_key_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
