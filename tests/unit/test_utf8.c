/* UTF-8: lengths, characters that a name may not have, and cleaning of foreign texts. */
#include "proto/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/error.h"

static void test_length(void **state)
{
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {{"a", 1}, {"\x7F", 1}, {"\xC2\x80", 2}, {"\xE0\xA0\x80", 3}, {"\xED\x9F\xBF", 3},
        {"\xEF\xBF\xBF", 3}, {"\xF0\x90\x80\x80", 4}, {"\xF4\x8F\xBF\xBF", 4}, {"\x80", 0},
        {"\xC1\xBF", 0}, {"\xC2", 0}, {"\xE0\x9F\xBF", 0}, {"\xED\xA0\x80", 0}, {"\xE1\x80", 0},
        {"\xF0\x8F\xBF\xBF", 0}, {"\xF4\x90\x80\x80", 0}, {"\xF5\x80\x80\x80", 0}, {"\xFF", 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(utf8_length(cases[i].text), cases[i].length);
    }
}

/* Each fault, and its byte. */
static void test_name_fault(void **state)
{
    static const char *const cases[][2] = {{"a\nb", "a control character (0x0a), byte 2"},
        {"\x7F", "a control character (0x7f), byte 1"},
        {"\xC3\xA4\xC2\x9B", "a control character (0x9b), byte 3"},
        {"job\xE2\x80\xAEx", "the format character U+202E, byte 4"},
        {"\xC2\xAD", "the format character U+00AD, byte 1"},
        {"a\xE2\x80\xA8", "the format character U+2028, byte 2"},
        {"a\xEF\xBB\xBF", "the format character U+FEFF, byte 2"},
        {"\xF3\xA0\x81\xBF", "the format character U+E007F, byte 1"},
        {"ab\xFF", "a byte that is not UTF-8 (0xff), byte 3"},
        {"\xE2\x82", "a byte that is not UTF-8 (0xe2), byte 1"}};
    char fault[UTF8_FAULT_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(utf8_name_fault(cases[i][0], fault));
        assert_string_equal(fault, cases[i][1]);
    }
    assert_false(utf8_name_fault("", fault));
    assert_false(
        utf8_name_fault("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC\xE2\x80\xA7 \xF0\x9F\x8D\x8B", fault));
}

/* Cleaning does not change the neighbours of a bad character. */
static void test_clean(void **state)
{
    static const char *const cases[][2] = {{"", ""}, {"plain text", "plain text"},
        {"\x1B[31mred\x1B[0m\r\n", "?[31mred?[0m??"},
        {"a\xE2\x80\xAE\xE2\x82\xAC", "a?\xE2\x82\xAC"}, {"\xC2\x9B\xF3\xA0\x80\x81z", "??z"},
        {"x\xFF\xFEy\xE2\x82", "x??y??"}};
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)strcpy(text, cases[i][0]);
        utf8_clean(text);
        assert_string_equal(text, cases[i][1]);
    }
    utf8_clean((char *)(uintptr_t) ""); /* a text that cannot be written */
}

static void test_cut(void **state)
{
    static const char *const cases[][2] = {{"", ""}, {"abc", "abc"}, {"abcd", "abcd"},
        {"abcde", "abcd"}, {"ab\xE2\x82\xAC", "ab"}, {"abc\xC3\xBC", "abc"},
        {"ab\xC3\xBC!", "ab\xC3\xBC"}, {"\xF0\x9F\x8D\x8B", "\xF0\x9F\x8D\x8B"},
        {"a\xF0\x9F\x8D\x8B", "a"}};
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)strcpy(text, cases[i][0]);
        utf8_cut(text, 4);
        assert_string_equal(text, cases[i][1]);
    }
    utf8_cut((char *)(uintptr_t) "", 4);
}

/* The whole characters, also of a text that was cut before. */
static void test_fit(void **state)
{
    static const struct {
        const char *text;
        size_t size, fits;
    } cases[] = {{"", 9, 0}, {"abc", 9, 3}, {"abc", 2, 2}, {"a\xC3\xBC", 3, 3}, {"a\xC3\xBC", 2, 1},
        {"a\xC3", 9, 1}, {"\xE2\x82", 9, 0}, {"b\xF0\x9F\x8D", 9, 1}, {"\xE2\x82\xAC", 9, 3},
        {"\xBC\xBC", 9, 2}, {"\xC3\xBC", 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(utf8_fit(cases[i].text, cases[i].size), cases[i].fits);
    }
}

/* A sentence that is too long for an error ends with a whole character. */
static void test_error(void **state)
{
    char text[ERROR_TEXT_SIZE + 10];
    struct error error;

    (void)state;
    for (size_t before = ERROR_TEXT_SIZE - 6; before < ERROR_TEXT_SIZE + 2; before++) {
        (void)memset(text, 'x', before);
        (void)strcpy(text + before, "\xE2\x82\xAC!");
        (void)error_set(&error, ADTOPK_ERR_PEER, "%s", text);
        assert_int_equal(strlen(error.text), before + 4 < ERROR_TEXT_SIZE   ? before + 4
                                             : before + 3 < ERROR_TEXT_SIZE ? before + 3
                                             : before < ERROR_TEXT_SIZE     ? before
                                                                            : ERROR_TEXT_SIZE - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_name_fault),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
