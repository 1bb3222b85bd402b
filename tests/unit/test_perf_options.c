/* The command line of adtopk-perf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

#include "tests/bench/perf/perf.h"

static const char *const colours[] = {"red", "green", "blue", NULL};
static const struct options usual = {.min = 4096,
    .max = 1 << 20,
    .factor = 1.5,
    .iterations = 31,
    .densities = {{0.25, 1}, 2},
    .dtypes = 5,
    .residuals = UINT32_MAX};
static const struct benchmark_name benchmarks[] = {{"select", "s", false, &usual},
    {"encode", "e", false, &usual}, {"decode", "d", false, &usual}, {"sum", "s", false, &usual},
    {"handover", "h", false, &usual}, {"round", "r", false, &usual}, {"link", "l", false, &usual},
    {"sparsify", "s", false, &usual}, {"overtake", "o", false, &usual},
    {"cluster", "c", true, &usual}};

static const struct vocabulary vocabulary = {.distributions = {colours},
    .dtypes = {colours},
    .residuals = {colours},
    .views = {colours},
    .models = {colours},
    .peers = {colours},
    .sparsifiers = {colours},
    .indices = {colours},
    .values = {colours},
    .modes = {colours},
    .security = {colours},
    .benchmarks = benchmarks,
    .benchmark_count = 10};

#define WORDS_MAX 12

/* The parser's result for a line of words. */
struct parsed {
    char line[200];
    struct options options;
    name_set chosen;
    enum options_action action;
    struct error err;
    enum adtopk_status status;
};

static const struct parsed *parse(struct parsed *parsed, const char *line)
{
    char *argv[WORDS_MAX] = {"adtopk-perf"};
    int argc = 1;
    char *rest = NULL;

    memset(parsed, 0, sizeof(*parsed));
    (void)snprintf(parsed->line, sizeof(parsed->line), "%s", line);
    for (char *word = strtok_r(parsed->line, " ", &rest); word != NULL && argc < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = word;
    }
    parsed->status = options_parse(
        &vocabulary, argc, argv, &parsed->options, &parsed->chosen, &parsed->action, &parsed->err);
    return parsed;
}

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t size;
    } good[] = {{"4096", 4096}, {"4K", 4096}, {"4k", 4096}, {"4KB", 4096}, {"4KiB", 4096},
        {"1.5M", 1572864}, {"2G", UINT64_C(2) << 30}, {"100B", 100}, {"0", 0}};
    static const char *const bad[] = {"", "K", "4Q", "4KK", "-4", "0.3", "1e400", "nan", "inf",
        "4 K", "0x10", "4iB", "4Ki", " 4", "+4"};
    uint64_t size;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(options_size(good[i].text, &size));
        assert_int_equal(size, good[i].size);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (options_size(bad[i], &size)) {
            fail_msg("\"%s\" was taken for a size", bad[i]);
        }
    }
}

static void test_values(void **state)
{
    struct parsed parsed;
    const struct options *options = &parsed.options;

    (void)state;
    parse(&parsed, "select --min 4K --max=1M --factor 2.5 --density 0.5,1e-3 --dtype red,blue");
    assert_int_equal(parsed.status, ADTOPK_OK);
    assert_int_equal(parsed.action, OPTIONS_RUN);
    assert_int_equal(parsed.chosen, 1);
    assert_int_equal(options->min, 4096);
    assert_int_equal(options->max, 1 << 20);
    assert_true(options->factor > 2.49 && options->factor < 2.51);
    assert_int_equal(options->densities.count, 2);
    assert_true(options->densities.value[1] < 0.00101);
    assert_int_equal(options->dtypes, 5);
    assert_false(options->warmup_given);

    parse(&parsed, "link handover --size 8K --warmup 0 --ranks 1,3 --mode all --json");
    assert_int_equal(parsed.status, ADTOPK_OK);
    assert_int_equal(parsed.chosen, 1 << 6 | 1 << 4);
    assert_int_equal(options->min, 8192);
    assert_int_equal(options->max, 8192);
    assert_true(options->warmup_given && options->json);
    assert_int_equal(options->ranks.count, 2);
    assert_true(perf_has(options->modes, 2));

    parse(&parsed, "select --model red,green --layers --threads 1,64 --ranks 2");
    assert_int_equal(parsed.status, ADTOPK_OK);
    assert_int_equal(options->models, 3);
    assert_true(options->layers && options->threads.count == 2 && options->ranks.count == 1);

    parse(&parsed, "select --columns 256,512");
    assert_int_equal(parsed.status, ADTOPK_OK);
    assert_int_equal(options->columns.count, 2);

    assert_int_equal(parse(&parsed, "all")->chosen, 511);
    assert_int_equal(parse(&parsed, "nonsense --help")->status, ADTOPK_ERR_ARGUMENT);
    assert_int_equal(parse(&parsed, "--help nonsense")->action, OPTIONS_HELP);
    assert_int_equal(parse(&parsed, "--version")->action, OPTIONS_VERSION);
}

/* Every refusal names the option and the fault. */
static void test_refusals(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "name a benchmark"},
        {"--json", "name a benchmark"},
        {"selects", "unknown benchmark \"selects\"; did you mean \"select\"?"},
        {"xyzzy", "unknown benchmark \"xyzzy\": possible are select, encode, decode, "},
        {"select --frob", "unknown option \"--frob\""},
        {"select --desnity=1", "unknown option \"--desnity\"; did you mean \"--density\"?"},
        {"--hlep", "unknown option \"--hlep\"; did you mean \"--help\"?"},
        {"--help=1", "--help takes no value"},
        {"select -j", "unknown option \"-j\""},
        {"select --min", "--min needs a value: SIZE"},
        {"select --min 5Q", "--min: \"5Q\" is no size"},
        {"select --min 63", "--min: \"63\" is no size"},
        {"select --max 9G", "--max: \"9G\" is no size"},
        {"select --min 2M --max 1M", "--min is larger than --max"},
        {"select --factor 1", "--factor: \"1\" is no number from 1.01 to 1000000"},
        {"select --iterations 0", "--iterations: \"0\" is no whole number from 1 to 1000000"},
        {"select --iterations 2.5", "--iterations: \"2.5\" is no whole number"},
        {"select --iterations x", "--iterations: \"x\" is no whole number"},
        {"select --density 0", "--density: \"0\" is no list of"},
        {"select --density 1.1", "above 0 and at most 1"},
        {"select --density 0.1,", "--density: \"0.1,\" is no list"},
        {"select --density nan", "--density: \"nan\" is no list"},
        {"sum --lists 2,1", "--lists: \"2,1\" is no list of at most 16 whole numbers"},
        {"sum --lists 2,2.5", "--lists: \"2,2.5\" is no list"},
        {"sum --lists 2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2", "is no list of at most 16"},
        {"cluster link", "cluster runs alone, without other benchmarks"},
        {"select --dtype red,pink", "--dtype: \"pink\" is not one of: red, green, blue, all"},
        {"select --dtype re", "--dtype: \"re\" is not one of"},
        {"select --threads 65", "--threads: \"65\" is no list of at most 16 whole numbers"},
        {"sum --ranks 1", "--ranks is no option of the requested"},
        {"link --density 1", "--density is no option of the requested"},
        {"select --layers", "--layers needs --model"},
        {"select --model red --size 4K", "--model: tensors have their own sizes"},
        {"select --columns 256 --model red", "--model: tensors have their own sizes"},
        {"select --json=yes", "--json takes no value"},
    };
    struct parsed parsed;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        parse(&parsed, cases[i].line);
        assert_int_equal(parsed.status, ADTOPK_ERR_ARGUMENT);
        if (strstr(parsed.err.text, cases[i].says) == NULL) {
            fail_msg("\"%s\": %s", cases[i].line, parsed.err.text);
        }
    }
}

/* The help for these benchmarks, in lines of at most 100 columns. */
static char *help_text(name_set chosen)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    options_help(&vocabulary, chosen, out);
    assert_int_equal(fclose(out), 0);
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1) {
        assert_in_range(strcspn(at, "\n"), 0, 100);
    }
    return text;
}

static void test_help(void **state)
{
    static const char *const said[] = {"usage: adtopk-perf", "select", "--density LIST",
        "red, green, blue, all", "(handover, round)", "Exit status"};
    char *text = help_text(0);

    (void)state;
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        assert_non_null(strstr(text, said[i]));
    }
    assert_null(strstr(text, "default: 4K"));
    free(text);
}

static void test_help_of_one(void **state)
{
    static const char *const said[] = {"usage: adtopk-perf [OPTION]... select\n", "default: 4K\n",
        "default: 1M\n", "default: 1.5\n", "default: 31\n", "default: 0\n", "default: 0.25,1\n",
        "default: red, blue\n", "default: all\n", "Exit status"};
    char *text = help_text(1);

    (void)state;
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        if (strstr(text, said[i]) == NULL) {
            fail_msg("%s: %s", said[i], text);
        }
    }
    assert_null(strstr(text, "--index"));
    free(text);
}

static void test_next_size(void **state)
{
    const struct options options = {.min = 1000, .max = 50000, .factor = 10};

    (void)state;
    assert_int_equal(perf_next_size(&options, 1000), 10000);
    assert_int_equal(perf_next_size(&options, 10000), 50000);
    assert_int_equal(perf_next_size(&options, 50000), 0);
}

/* A given option counts, also against a default on the other side. */
static void test_defaults(void **state)
{
    const struct options defaults = {.min = 1000,
        .max = 50000,
        .factor = 2,
        .iterations = 31,
        .warmup = 4,
        .densities = {{0.5}, 1},
        .modes = 3};
    struct options options = {.max = 100, .warmup_given = true, .modes = 4};

    (void)state;
    perf_fill(&options, &defaults);
    assert_int_equal(options.min, 100);
    assert_int_equal(options.max, 100);
    assert_int_equal(options.iterations, 31);
    assert_int_equal(options.warmup, 0);
    assert_int_equal(options.modes, 4);
    assert_int_equal(options.densities.count, 1);
    options = (struct options){.min = 60000};
    perf_fill(&options, &defaults);
    assert_int_equal(options.max, 60000);
    assert_int_equal(options.warmup, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_of_one),
        cmocka_unit_test(test_next_size),
        cmocka_unit_test(test_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
