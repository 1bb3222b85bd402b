/* Command lines as tables: accepted and refused ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <getopt.h>

#include <cmocka.h>

#include "tests/sim/settings.h"

#define ARGUMENTS_MAX 5

struct settings {
    bool list;
    const char *name;
    double nodes, share;
};

static const struct setting table[] = {
    SETTING(SWITCH, "list", list, "names", 0, 0, 0),
    SETTING(TEXT, "name", name, "which", 0, 0, 0),
    SETTING(WHOLE, "nodes", nodes, "how many", 8, 1, 1024),
    SETTING(NUMBER, "share", share, "of them", 0.5, 0, 1),
};

static bool read_words(struct settings *settings, const char *words)
{
    static char text[80]; /* which settings point to */
    char *argv[ARGUMENTS_MAX + 2] = {(char[]){"test"}}, *rest = text;
    int argc = 1;

    assert_true(strlen(words) < sizeof(text));
    (void)strcpy(text, words);
    while (argc <= ARGUMENTS_MAX && (argv[argc] = strsep(&rest, " ")) != NULL) {
        argc++;
    }
    *settings = (struct settings){0};
    optind = 0; /* as if it were the first command line */
    return settings_read("usage\n", table, sizeof(table) / sizeof(table[0]), settings, argc, argv);
}

static void test_taken(void **state)
{
    struct settings settings;

    (void)state;
    assert_true(read_words(&settings, "--nodes=1024"));
    assert_true(settings.nodes == 1024 && settings.share == 0.5);
    assert_false(settings.list);
    assert_null(settings.name);
    assert_true(read_words(&settings, "--list --name=a --nodes 1 --share=0"));
    assert_true(settings.nodes == 1 && settings.share == 0);
    assert_true(settings.list);
    assert_string_equal(settings.name, "a");
}

static void test_refused(void **state)
{
    static const char *const wrong[] = {"--nodes=0", "--nodes=1025", "--nodes=1.5",
        "--nodes=", "--nodes=8x", "--nodes=nan", "--nodes", "--share=-0.1", "--share=inf",
        "--list=1", "--other", "word"};
    struct settings settings;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (read_words(&settings, wrong[i])) {
            fail_msg("%s is taken", wrong[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken), cmocka_unit_test(test_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
