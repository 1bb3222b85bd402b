/* Plots as SVG: where numbers land, and that no text breaks the picture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/plot.h"

static char *drawn(const struct plot *plot)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    plot_print(out, plot);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        print_error("no %s in:\n%s\n", part, text);
        fail();
    }
}

/* The frame spans 92 to 784 and, of the first panel, 92 to 212. */
static void test_places(void **state)
{
    const double x[] = {0, 5, 10}, share[] = {0.01, NAN, 0.02}, rate[] = {0, 1.5e6, 3e6};
    const struct plot_panel panels[] = {
        {.title = "one", .unit = PLOT_SHARE, .line = {{"density", share}}, .empty = "none"},
        {.title = "two", .unit = PLOT_RATE, .line = {{"sent", rate}}, .empty = "none"}};
    const struct plot plot = {
        .title = "t", .subtitle = "s", .x = x, .count = 3, .panel = panels, .panels = 2};
    char *text = drawn(&plot);

    (void)state;
    assert_has(text, "d=\"M92.0 152.0L784.0 92.0\""); /* 1% of 2%, at 0 of 10 s; 2% at 10 s */
    assert_has(text, "d=\"M92.0 408.0L438.0 348.0L784.0 288.0\"");
    assert_has(text, ">MB/s</text>");
    assert_has(text, ">%</text>");
    assert_has(text, "prefers-color-scheme: dark");
    free(text);
}

static void test_units(void **state)
{
    static const struct {
        enum plot_unit unit;
        double most;
        const char *name;
    } cases[] = {{PLOT_DURATION, 2, ">s</text>"}, {PLOT_DURATION, 0.004, ">ms</text>"},
        {PLOT_DURATION, 4e-5, ">µs</text>"}, {PLOT_RATE, 900, ">B/s</text>"},
        {PLOT_RATE, 5e4, ">kB/s</text>"}, {PLOT_RATE, 7e12, ">GB/s</text>"},
        {PLOT_NUMBER, 0, ">time (s)</text>"}};
    const double x[] = {1};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plot_panel panel = {
            .title = "p", .unit = cases[i].unit, .line = {{"l", &cases[i].most}}, .empty = "none"};
        const struct plot plot = {
            .title = "t", .subtitle = "s", .x = x, .count = 1, .panel = &panel, .panels = 1};
        char *text = drawn(&plot);

        assert_has(text, cases[i].name);
        assert_has(text, "<circle"); /* one point is no line */
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
    }
}

static void test_nothing_known(void **state)
{
    const double x[] = {0, 1}, none[] = {NAN, NAN};
    const struct plot_panel panel = {
        .title = "p", .line = {{"a", none}, {"b", none}}, .empty = "why"};
    const struct plot plot = {
        .title = "t", .subtitle = "s", .x = x, .count = 2, .panel = &panel, .panels = 1};
    char *text = drawn(&plot);

    (void)state;
    assert_has(text, ">why</text>");
    assert_null(strstr(text, "<path"));
    assert_null(strstr(text, "nan"));
    free(text);
}

static void test_names(void **state)
{
    const double x[] = {0}, y[] = {1};
    const struct plot_panel panel = {.title = "p", .line = {{"l", y}}, .empty = "none"};
    const struct plot plot = {.title = "</title><script>\"&\033[2J",
        .subtitle = "s",
        .x = x,
        .count = 1,
        .panel = &panel,
        .panels = 1};
    char *text = drawn(&plot);

    (void)state;
    assert_has(text, "<title>&lt;/title&gt;&lt;script&gt;&quot;&amp;?[2J</title>");
    assert_null(strstr(text, "<script"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_units),
        cmocka_unit_test(test_nothing_known), cmocka_unit_test(test_names)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
