/*
 * Documents that people write. Each mistake is reported at its place, with its line, a mark and a
 * way to correct it. Also the guesses for unknown names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/guess.h"
#include "proto/json.h"
#include "proto/utf8.h"

static enum adtopk_status read_text(const char *text, struct faults *faults)
{
    struct json json;
    enum adtopk_status status;

    faults->count = 0;
    status = json_read(&json, "a.json", text, strlen(text), ADTOPK_ERR_ARGUMENT, faults);
    assert_int_equal(json.root != NULL, status == ADTOPK_OK);
    json_free(&json);
    return status;
}

/* Checks the whole sentence, with the line and the mark. */
static void assert_told(const char *text, const char *sentence)
{
    struct faults faults;

    assert_int_equal(read_text(text, &faults), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(faults.count, 1);
    assert_string_equal(faults.fault[0].text, sentence);
}

static void test_taken(void **state)
{
    static const char *const good[] = {"{}", " [ ] ", "\t\r\n{\"a\" : [1, -0.5e+3, \"\\u00e9\"]}\n",
        "0", "\"\"", "true", "{\"\":{\"\":null}}", "\"\\ud83d\\ude00\"", "\"\xC3\xA9\"",
        "[1E5,0,-0,10]"};
    struct faults faults;

    (void)state;
    for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(read_text(good[i], &faults), ADTOPK_OK);
        assert_int_equal(faults.count, 0);
    }
}

static void test_guesses(void **state)
{
    (void)state;
    assert_told("{ \"node\": 0, \"x\": 1, }", "a.json:1:20: a comma before \"}\": remove it\n"
                                              "  { \"node\": 0, \"x\": 1, }\n"
                                              "                     ^");
    assert_told("{\n  \"a\": [1,\n  2,\n]}", "a.json:3:4: a comma before \"]\": remove it\n"
                                             "    2,\n     ^");
    assert_told("{ // mine\n \"node\": 0 }", "a.json:1:3: JSON has no comments: remove this one\n"
                                             "  { // mine\n    ^");
    assert_told("# x\n{}", "a.json:1:1: JSON has no comments: remove this one\n  # x\n  ^");
    assert_told("{\"a\": 1", "a.json:1:1: this \"{\" is never closed: \"}\" is missing\n"
                             "  {\"a\": 1\n  ^");
    assert_told("{\"a\":\n{\"b\": [1, 2}}",
        "a.json:2:12: \"]\" is needed here, for the \"[\" in line 2\n"
        "  {\"b\": [1, 2}}\n             ^");
    assert_told("{\"a\": \"x,\n\"b\": 1}",
        "a.json:1:7: a closing quote is missing: this text does not end in its line\n"
        "  {\"a\": \"x,\n        ^");
    assert_told("{'a': 1}", "a.json:1:2: texts stand in double quotes, \"like this\"\n"
                            "  {'a': 1}\n   ^");
    assert_told("{\"a\": 'x'}", "a.json:1:7: texts stand in double quotes, \"like this\"\n"
                                "  {\"a\": 'x'}\n        ^");
    assert_told("{node: 0}", "a.json:1:2: a key stands in double quotes: write \"node\"\n"
                             "  {node: 0}\n   ^");
    assert_told("node: 0", "a.json:1:1: not JSON: a \"{\" is missing before this\n  node: 0\n  ^");
    assert_told("\"node\": 0}",
        "a.json:1:1: not JSON: a \"{\" is missing before this\n  \"node\": 0}\n  ^");
    assert_told("{\"a\": 1\n \"b\": 2}", "a.json:1:8: a comma is missing here\n"
                                         "  {\"a\": 1\n         ^");
    assert_told("{\"a\" = 1}", "a.json:1:6: write \":\" and not \"=\"\n  {\"a\" = 1}\n       ^");
    assert_told("{\"a\" 1}", "a.json:1:6: \":\" is missing behind the key\n  {\"a\" 1}\n       ^");
    assert_told("{\"a\": True}", "a.json:1:7: True is no value of JSON: write true\n"
                                 "  {\"a\": True}\n        ^");
    assert_told("{\"a\": info}", "a.json:1:7: a text stands in double quotes: write \"info\"\n"
                                 "  {\"a\": info}\n        ^");
    assert_told("{\"a\": }", "a.json:1:7: a value is missing before \"}\"\n  {\"a\": }\n        ^");
    assert_told("{}}", "a.json:1:3: one \"}\" too many, after the end of the document\n"
                       "  {}}\n    ^");
    assert_told("{}\n\n{}", "a.json:3:1: this stands after the end of the document\n  {}\n  ^");
}

static void test_texts_and_numbers(void **state)
{
    static const char *const wrong[][2] = {{"[10MB]", ":1:2: 10MB is not a number"},
        {"[01]", "begin with 0"}, {"[+1]", "+1 is not a number"}, {"[.5]", ".5 is not a number"},
        {"[1.]", "1. is not a number"}, {"[1e]", "1e is not a number"},
        {"[-]", "- is not a number"}, {"[\"\\x\"]", "write \\\\ for a backslash"},
        {"[\"\\u12\"]", "four hexadecimal digits"}, {"[\"\\u0000\"]", "\\u0000 does not belong"},
        {"[\"\\ud800\"]", "surrogate"}, {"[\"\\ude00\"]", "surrogate"},
        {"[\"\\ud800\\u0041\"]", "surrogate"}, {"[\"a\tb\"]", "write \\t for a tab"},
        {"[\"\x01\"]", "byte 0x01"}, {"[\"\xFF\"]", "byte 0xff is not UTF-8"},
        {"\xEF\xBB\xBF{}", "byte order mark"}, {"[1\f]", "\",\" or \"]\" is needed"},
        {"[\f]", "byte 0x0c does not belong"}, {"", "the document is empty"},
        {" \n\t", "the document is empty"}, {"[,]", "a value is missing"},
        {"{\"a\":1,,}", "a value is missing"}, {"[1;2]", "and not \";\""}, {"[@]", "\"@\" begins"},
        {"{}\x01", "byte 0x01"}, {"[NaN]", "double quotes"}, {"{1:2}", "begins no"}};
    struct faults faults;

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(read_text(wrong[i][0], &faults), ADTOPK_ERR_ARGUMENT);
        assert_int_equal(faults.count, 1);
        if (strstr(faults.fault[0].text, wrong[i][1]) == NULL) {
            fail_msg("%s: \"%s\" lacks \"%s\"", wrong[i][0], faults.fault[0].text, wrong[i][1]);
        }
    }
}

static void test_depth(void **state)
{
    struct faults faults;
    char text[2 * JSON_DEPTH_MAX + 3];

    (void)state;
    memset(text, '[', JSON_DEPTH_MAX);
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    text[2 * JSON_DEPTH_MAX] = '\0';
    assert_int_equal(read_text(text, &faults), ADTOPK_OK);
    memset(text, '[', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(read_text(text, &faults), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(faults.fault[0].text, ":1:65: more than 64"));
}

/* Checks the lines below a sentence: the first begins with two blanks, the second has only the
 * mark. */
static void assert_shape(const char *text)
{
    const char *line = strchr(text, '\n');
    const char *mark = line != NULL ? strchr(line + 1, '\n') : NULL;

    assert_true(strlen(text) < ERROR_TEXT_SIZE);
    for (const char *at = text; *at != '\0'; at += utf8_length(at)) {
        assert_true(utf8_length(at) > 0);
        assert_true((unsigned char)*at >= 0x20 || *at == '\n');
    }
    if (line != NULL) {
        assert_non_null(mark);
        assert_memory_equal(line, "\n  ", 3);
        assert_int_equal(mark[1 + strspn(mark + 1, " ")], '^');
        assert_int_equal(mark[2 + strspn(mark + 1, " ")], '\0');
    }
}

/* Long lines are cut around the mark, and characters that cannot be printed are left out. */
static void test_line_is_shown(void **state)
{
    struct faults faults;
    char text[4096];
    const char *mark;

    (void)state;
    for (size_t length = 0; length < 3000; length += 7) {
        for (unsigned kind = 0; kind < 2; kind++) {
            (void)snprintf(text, sizeof(text), "[\"%*s\", x%s]", (int)length, "", kind ? "" : " ");
            for (size_t i = 2; i < 2 + length; i++) {
                text[i] = (char)('a' + i % 26);
            }
            assert_int_equal(read_text(text, &faults), ADTOPK_ERR_ARGUMENT);
            assert_shape(faults.fault[0].text);
            mark = strrchr(faults.fault[0].text, '\n');
            assert_int_equal(*(strchr(faults.fault[0].text, '\n') + strlen(mark) - 1), 'x');
        }
    }
    assert_told("[\"\xC3\xA9\xC3\xA9\", x]",
        "a.json:1:8: a text stands in double quotes: write \"x\"\n"
        "  [\"\xC3\xA9\xC3\xA9\", x]\n         ^");
    assert_told("[\t\"\xC2\x9B\", x]", "a.json:1:8: a text stands in double quotes: write \"x\"\n"
                                       "  [ \"?\", x]\n         ^");
}

/* A key of 40 characters may be the secret one. */
static void test_keys_are_hidden(void **state)
{
    (void)state;
    assert_told("{\"key\": \"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\",}",
        "a.json:1:51: a comma before \"}\": remove it\n"
        "  {\"key\": \"****************************************\",}\n"
        "                                                    ^");
}

/* A text that is cut anywhere leads to a report in the same form. */
static void test_every_cut(void **state)
{
    static const char text[] =
        "{\"a\": [1, -2.5e3, {\"b\": \"\\u00e9\\n\"}], \"c\": null,\n \"d\": true}";
    struct faults faults;
    char cut[sizeof(text)];

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        memcpy(cut, text, i);
        cut[i] = '\0';
        assert_int_equal(read_text(cut, &faults), ADTOPK_ERR_ARGUMENT);
        assert_memory_equal(faults.fault[0].text, "a.json:", 7);
        assert_shape(faults.fault[0].text);
    }
}

static void test_places(void **state)
{
    static const char text[] =
        "{\"a\": {\"x\": 1},\n \"b\": [1, {\"c\" : [true, \"]\"]}],\n\"d\":5}";
    struct faults faults = {.count = 0};
    struct json json;
    const cJSON *b, *c;

    (void)state;
    assert_int_equal(
        json_read(&json, "t", text, strlen(text), ADTOPK_ERR_POLICY, &faults), ADTOPK_OK);
    b = cJSON_GetObjectItem(json.root, "b");
    c = cJSON_GetObjectItem(cJSON_GetArrayItem(b, 1), "c");
    assert_ptr_equal(json_place(&json, json.root, JSON_VALUE), text);
    assert_ptr_equal(json_place(&json, b, JSON_KEY), strstr(text, "\"b\""));
    assert_ptr_equal(json_place(&json, b, JSON_VALUE), strstr(text, "[1"));
    assert_ptr_equal(json_place(&json, c, JSON_KEY), strstr(text, "\"c\""));
    assert_ptr_equal(
        json_place(&json, cJSON_GetArrayItem(c, 1), JSON_VALUE), strstr(text, "\"]\""));
    assert_ptr_equal(
        json_place(&json, cJSON_GetObjectItem(json.root, "d"), JSON_VALUE), strstr(text, "5}"));
    assert_int_equal(
        json_fault(&json, c, JSON_VALUE, &faults, "bad \x1b[1m %s", "\xFFx"), ADTOPK_ERR_POLICY);
    assert_string_equal(faults.fault[0].text, "t:2:18: bad ?[1m ?x\n"
                                              "   \"b\": [1, {\"c\" : [true, \"]\"]}],\n"
                                              "                   ^");
    json_free(&json);
    assert_int_equal(
        json_read_part(&json, "t", text, strstr(text, "[1"), ADTOPK_ERR_POLICY, &faults),
        ADTOPK_OK);
    assert_int_equal(cJSON_GetArraySize(json.root), 2);
    assert_ptr_equal(
        json_place(&json, json.root->child->next->child, JSON_KEY), strstr(text, "\"c\""));
    json_free(&json);
}

static void test_many_faults(void **state)
{
    struct faults faults = {.count = 0};
    struct error err = {.code = ADTOPK_OK};
    const struct json json = {.name = "n", .text = "x", .start = "x", .code = ADTOPK_ERR_STATE};

    (void)state;
    assert_int_equal(faults_first(&faults, &err), ADTOPK_OK);
    for (int i = 0; i < 2 * FAULTS_MAX; i++) {
        assert_int_equal(json_blame(&json, json.text, &faults, "%d", i), ADTOPK_ERR_STATE);
    }
    assert_int_equal(faults.count, 2 * FAULTS_MAX);
    assert_int_equal(faults_kept(&faults), FAULTS_MAX);
    assert_int_equal(faults_first(&faults, &err), ADTOPK_ERR_STATE);
    assert_int_equal(faults_first(&faults, NULL), ADTOPK_ERR_STATE);
}

static void assert_guessed(const char *word, const char *wanted)
{
    static const char *const names[] = {
        "density", "scope", "node", "listen", "log_level", "on", ""};
    struct guess guess;
    char text[GUESS_TEXT_SIZE], expected[GUESS_TEXT_SIZE] = "";

    guess_start(&guess, word, 0);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        guess_name(&guess, names[i]);
    }
    if (wanted != NULL) {
        (void)snprintf(expected, sizeof(expected), "; did you mean \"%s\"?", wanted);
    }
    assert_string_equal(guess_text(&guess, text), expected);
}

static void test_guess(void **state)
{
    (void)state;
    assert_guessed("densty", "density");
    assert_guessed("desnity", "density"); /* swapped */
    assert_guessed("Density", "density");
    assert_guessed("log-level", "log_level");
    assert_guessed("lgo_levl", "log_level");
    assert_guessed("nodes", "node");
    assert_guessed("nod", "node");
    assert_guessed("xy", NULL);
    assert_guessed("x", NULL);
    assert_guessed("", NULL);
    assert_guessed("colour", NULL);
    assert_guessed("a_name_of_more_than_forty_characters_that_is_none_of_them", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_guesses),
        cmocka_unit_test(test_texts_and_numbers),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_line_is_shown),
        cmocka_unit_test(test_keys_are_hidden),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_many_faults),
        cmocka_unit_test(test_guess),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
