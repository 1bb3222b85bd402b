/* adtopkctl's command line, the policies on it, and its exit codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/adtopkctl/options.h"
#include "client/adtopkctl/policytext.h"
#include "client/adtopkctl/run.h"

#define WORDS_MAX (OPTIONS_ARGUMENTS_MAX + 10)

/* Reads a command line whose words are separated by single spaces. */
static enum adtopk_status parse(const char *line, struct options *options, struct error *err)
{
    static char text[4096]; /* the options point into it */
    char *argv[WORDS_MAX + 1] = {NULL};
    int argc = 0;
    char *rest = text;

    (void)snprintf(text, sizeof(text), "adtopkctl%s%s", line[0] != '\0' ? " " : "", line);
    while (rest != NULL && argc < WORDS_MAX) {
        argv[argc++] = strsep(&rest, " ");
    }
    return options_parse(options, argc, argv, err);
}

static void assert_usage(const char *line, const char *words)
{
    struct options options;
    struct error err = {.code = ADTOPK_OK};

    if (parse(line, &options, &err) != ADTOPK_ERR_ARGUMENT || strstr(err.text, words) == NULL) {
        fail_msg("\"%s\": %s", line, err.text);
    }
}

static struct options assert_good(const char *line, enum command_id command)
{
    struct options options;
    struct error err = {.code = ADTOPK_OK};

    if (parse(line, &options, &err) != ADTOPK_OK) {
        fail_msg("\"%s\": %s", line, err.text);
    }
    assert_int_equal(options.command, command);
    return options;
}

static void test_commands(void **state)
{
    struct options options;

    (void)state;
    options = assert_good("status", COMMAND_STATUS);
    assert_int_equal(options.timeout_ms, 5000);
    options = assert_good("--json jobs --timeout 7 --socket=/a", COMMAND_JOBS);
    assert_int_equal(options.timeout_ms, 7);
    assert_string_equal(options.value[OPTION_SOCKET], "/a");
    assert_non_null(options.value[OPTION_JSON]);
    options = assert_good("tensors --first 1024 digits/r7", COMMAND_TENSORS);
    assert_int_equal(options.first, 1024);
    assert_int_equal(options.arguments, 1);
    assert_string_equal(options.argument[0], "digits/r7");
    options = assert_good("plan --json --first 7 digits", COMMAND_PLAN);
    assert_int_equal(options.first, 7);
    (void)assert_good("peers", COMMAND_PEERS);
    (void)assert_good("stores", COMMAND_STORES);
    options = assert_good("stats --interval 0.5 --count 0 digits", COMMAND_STATS);
    assert_true(options.interval_s == 0.5);
    assert_int_equal(options.intervals, 0);
    options = assert_good("stats --job=", COMMAND_STATS);
    assert_string_equal(options.value[OPTION_JOB], "");
    (void)assert_good("policy get", COMMAND_POLICY_GET);
    options = assert_good("policy set digits density=0.5 values=f32", COMMAND_POLICY_SET);
    assert_int_equal(options.timeout_ms, 60000);
    assert_int_equal(options.arguments, 3);
    assert_string_equal(options.argument[2], "values=f32");
    options = assert_good("--if-version 3 policy --merge set a -", COMMAND_POLICY_SET);
    assert_int_equal(options.if_version, 3);
    assert_string_equal(options.argument[1], "-");
    (void)assert_good("policy check --socket /a -- --odd-file", COMMAND_POLICY_CHECK);
    (void)assert_good("policy keys", COMMAND_POLICY_KEYS);
    (void)assert_good("policy log digits", COMMAND_POLICY_LOG);
    options = assert_good("sparsifiers --json", COMMAND_SPARSIFIERS);
    assert_non_null(options.value[OPTION_JSON]);
    options = assert_good("verify --timeout 600000", COMMAND_VERIFY);
    assert_int_equal(options.timeout_ms, 600000);
    options = assert_good("drain --undo", COMMAND_DRAIN);
    assert_non_null(options.value[OPTION_UNDO]);
    (void)assert_good("checkpoint check --json d", COMMAND_CHECKPOINT_CHECK);
    assert_int_equal(
        assert_good("checkpoint ask digits", COMMAND_CHECKPOINT_ASK).timeout_ms, 60000);
    (void)assert_good("keygen --out k", COMMAND_KEYGEN);
    (void)assert_good("key show --json k", COMMAND_KEY_SHOW);
    (void)assert_good("ranks --json digits", COMMAND_RANKS);
    (void)assert_good("completion bash", COMMAND_COMPLETION);
    (void)assert_good("--help", COMMAND_COUNT);
    (void)assert_good("policy --help", COMMAND_COUNT);
    (void)assert_good("help", COMMAND_COUNT);
    (void)assert_good("help help", COMMAND_COUNT);
    (void)assert_good("help policy", COMMAND_COUNT);
    assert_non_null(assert_good("help policy set", COMMAND_POLICY_SET).value[OPTION_HELP]);
    assert_non_null(assert_good("help stats", COMMAND_STATS).value[OPTION_HELP]);
    (void)assert_good("--version", COMMAND_COUNT);
    (void)assert_good("policy set --help", COMMAND_POLICY_SET);
    assert_non_null(assert_good("status -h", COMMAND_STATUS).value[OPTION_HELP]);
}

static void test_usage_errors(void **state)
{
    char line[WORDS_MAX * 2 + 20] = "policy check";

    (void)state;
    assert_usage("", "a command is needed");
    assert_usage("--json", "a command is needed");
    assert_usage("stutus", "unknown command \"stutus\"; did you mean \"status\"?");
    assert_usage("policy", "policy needs get, set, check, keys or log");
    assert_usage("policy put", "unknown command \"policy put\"; did you mean \"policy get\"?");
    assert_usage("policys get", "unknown command \"policys\"");
    assert_usage(
        "policy sett a b", "unknown command \"policy sett\"; did you mean \"policy set\"?");
    assert_usage("key shw a", "unknown command \"key shw\"; did you mean \"key show\"?");
    assert_usage("key", "key needs show; keygen makes a pair");
    assert_usage("key show", "key show needs FILE");
    assert_usage("ranks", "ranks needs JOB");
    assert_usage("frobnicate", "unknown command \"frobnicate\"");
    assert_usage("--frob status", "unknown option \"--frob\"");
    assert_usage("--jsn status", "unknown option \"--jsn\"; did you mean \"--json\"?");
    assert_usage("-j status", "unknown option \"-j\"");
    assert_usage("--json=1 status", "--json takes no value");
    assert_usage("status --socket", "--socket needs a value");
    assert_usage("status digits", "unexpected argument \"digits\"");
    assert_usage("tensors", "tensors needs JOB");
    assert_usage("plan", "plan needs JOB");
    assert_usage("plan a b", "unexpected argument");
    assert_usage("policy set digits", "policy set needs JOB FILE|-|KEY=VALUE...");
    assert_usage("policy check", "policy check needs FILE");
    assert_usage("--undo status", "--undo does not belong to status");
    assert_usage("--job x status", "--job does not belong to status");
    assert_usage("keygen --timeout 5", "--timeout does not belong to keygen");
    assert_usage("stats --job a b", "exclude each other");
    assert_usage("trace --json --out f digits", "with neither --out nor --from");
    assert_usage("trace --from --json f", "with neither --out nor --from");
    assert_usage("stats --count 3", "--count needs --interval");
    assert_usage("policy set --merge --replace a b=1", "exclude each other");
    for (unsigned i = 0; i <= OPTIONS_ARGUMENTS_MAX; i++) {
        (void)strcat(line, " x");
    }
    assert_usage(line, "too many arguments");
}

static void test_numbers(void **state)
{
    (void)state;
    assert_usage("--timeout 0 status", "\"0\" is not a number of milliseconds from 1 to 3600000");
    assert_usage("--timeout 3600001 status", "3600001");
    assert_usage("--timeout 600001 verify", "from 1 to 600000");
    assert_usage("--timeout -1 status", "\"-1\"");
    assert_usage("--timeout 5s status", "\"5s\"");
    assert_usage("--timeout 99999999999999999999 status", "--timeout");
    assert_usage("--interval 0 stats", "from 0.01 to 86400");
    assert_usage("--interval nan stats", "\"nan\"");
    assert_usage("--interval 1e9 stats", "\"1e9\"");
    assert_usage("--interval x stats", "\"x\"");
    assert_usage("--interval 1 --count x stats", "--count");
    assert_usage("--first -1 tensors a", "--first");
    assert_usage("--if-version 4294967295 policy set a b=1", "from 0 to 4294967294");
}

static const char *const command_names[COMMAND_COUNT] = {"status", "jobs", "ranks", "tensors",
    "plan", "peers", "stores", "stats", "policy get", "policy set", "policy check", "policy keys",
    "policy log", "sparsifiers", "verify", "top", "trace", "plot", "checkpoint ask",
    "checkpoint check", "drain", "keygen", "key show", "completion"};

static char *help_text(const struct options *options)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    options_help(out, options);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* Every command has a help of at most 80 columns that names its options. */
static void test_help(void **state)
{
    (void)state;
    for (unsigned i = 0; i <= COMMAND_COUNT; i++) {
        const struct options options = {.command = (enum command_id)i};
        char *text = help_text(&options);

        for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1) {
            if (strcspn(at, "\n") > 80) {
                fail_msg("%.*s", (int)strcspn(at, "\n"), at);
            }
        }
        assert_non_null(strstr(text, "--help"));
        if (i < COMMAND_COUNT) {
            assert_non_null(strstr(text, command_names[i]));
        }
        free(text);
    }
}

/* The help of "policy" names its commands and no others. */
static void test_help_family(void **state)
{
    const struct options options = assert_good("help policy", COMMAND_COUNT);
    char *text = help_text(&options);

    (void)state;
    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        char line[64];

        (void)snprintf(line, sizeof(line), "\n  %s ", command_names[i]);
        assert_int_equal(strstr(text, line) != NULL, strncmp(command_names[i], "policy ", 7) == 0);
    }
    free(text);
}

static void assert_completes(enum completion more, const char *expected, unsigned words, ...)
{
    const char *word[WORDS_MAX];
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    va_list list;

    assert_non_null(out);
    va_start(list, words);
    for (unsigned i = 0; i < words; i++) {
        word[i] = va_arg(list, const char *);
    }
    va_end(list);
    assert_int_equal(options_complete(out, word, words), more);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, expected);
    free(text);
}

static void test_completion(void **state)
{
    (void)state;
    assert_completes(COMPLETE_NOTHING, "status\nstores\nstats\n", 1, "st");
    assert_completes(COMPLETE_NOTHING, "policy\n", 1, "pol");
    assert_completes(COMPLETE_NOTHING, "status\nstores\nstats\n", 2, "help", "st");
    assert_completes(COMPLETE_NOTHING, "--help\n", 2, "help", "--he");
    assert_completes(COMPLETE_NOTHING, "get\nset\ncheck\nkeys\nlog\n", 2, "policy", "");
    assert_completes(COMPLETE_NOTHING, "show\n", 2, "key", "s");
    assert_completes(COMPLETE_NOTHING, "--json\n", 2, "drain", "--j");
    assert_completes(COMPLETE_NOTHING, "", 2, "--socket", "");
    assert_completes(COMPLETE_NOTHING, "drain\n", 3, "--socket", "x", "dr");
    assert_completes(COMPLETE_JOBS, "", 2, "tensors", "");
    assert_completes(COMPLETE_JOBS, "", 2, "jobs", "");
    assert_completes(COMPLETE_JOBS, "", 3, "stats", "--job", "d");
    assert_completes(COMPLETE_JOBS, "", 3, "policy", "set", "d");
    assert_completes(COMPLETE_KEYS, "", 4, "policy", "set", "digits", "dens");
    assert_completes(COMPLETE_VALUES, "", 4, "policy", "set", "digits", "values=b");
    assert_completes(COMPLETE_NOTHING, "", 3, "tensors", "digits", "");
    assert_completes(COMPLETE_NOTHING, "", 3, "no", "such", "");
    assert_completes(COMPLETE_NOTHING, "bash\nfish\nzsh\n", 2, "completion", "");
}

/* ------------------------------------------------------------------ policies */

static char *read_policy(bool pairs, unsigned count, ...)
{
    const char *argument[WORDS_MAX];
    struct error err = {.code = ADTOPK_OK};
    bool are_pairs = !pairs;
    char *text = NULL;
    va_list list;

    va_start(list, count);
    for (unsigned i = 0; i < count; i++) {
        argument[i] = va_arg(list, const char *);
    }
    va_end(list);
    if (policytext_read(argument, count, &text, &are_pairs, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(are_pairs, pairs);
    return text;
}

static void test_pairs(void **state)
{
    static const struct {
        const char *pair;
        const char *text;
    } pairs[] = {
        {"density=0.02", "{\"density\":0.02}"},
        {"sparsifier=topk", "{\"sparsifier\":\"topk\"}"},
        {"interleave=true", "{\"interleave\":true}"},
        {"sparsifier=\"topk\"", "{\"sparsifier\":\"topk\"}"},
        {"a=", "{\"a\":\"\"}"},
        {"a=b=c", "{\"a\":\"b=c\"}"},
        {"a=null", "{\"a\":null}"},
        {"a=1 2", "{\"a\":\"1 2\"}"},
        {"rules=[{\"match\":\"e*\",\"density\":0.5}]",
            "{\"rules\":[{\"match\":\"e*\",\"density\":0.5}]}"},
    };
    char *text;

    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        text = read_policy(true, 1, pairs[i].pair);
        assert_string_equal(text, pairs[i].text);
        free(text);
    }
    text = read_policy(true, 3, "a=1", "b=x", "a=2"); /* the parser says what is wrong with it */
    assert_string_equal(text, "{\"a\":1,\"b\":\"x\",\"a\":2}");
    free(text);
    text = read_policy(false, 1, " {\"density\":0.5}");
    assert_string_equal(text, " {\"density\":0.5}");
    free(text);
}

/* What begins like JSON and is none is no text, and no name of a file. */
static void test_broken_json(void **state)
{
    static const char *const arguments[] = {
        "a={", "rules=[{\"match\":\"e*\"]", "{\"density\":0.5", "{'density':0.5}"};

    (void)state;
    for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++) {
        struct error err = {.code = ADTOPK_OK};
        char *text;
        bool pairs;

        assert_int_equal(policytext_read(&arguments[i], 1, &text, &pairs, &err), ADTOPK_ERR_POLICY);
        assert_non_null(strstr(err.text, ":1:"));
    }
}

static void test_files(void **state)
{
    char path[] = "/tmp/adtopk-test-policy-XXXXXX";
    const char *argument[] = {path, "a=1"};
    int fd = mkstemp(path);
    FILE *stream = fdopen(fd, "w");
    struct error err = {.code = ADTOPK_OK};
    char *text;
    bool pairs;

    (void)state;
    assert_non_null(stream);
    (void)fputs(" {\"density\": 0.5}\n", stream);
    assert_int_equal(fflush(stream), 0);
    text = read_policy(false, 1, path);
    assert_string_equal(text, " {\"density\": 0.5}\n");
    free(text);

    assert_int_equal(policytext_read(argument, 2, &text, &pairs, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "is not of the form KEY=VALUE"));
    (void)fputc('\0', stream);
    assert_int_equal(fflush(stream), 0);
    assert_int_equal(policytext_read(argument, 1, &text, &pairs, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "NUL"));
    for (unsigned i = 0; i < POLICYTEXT_MAX; i++) {
        (void)fputc(' ', stream);
    }
    assert_int_equal(fclose(stream), 0);
    assert_int_equal(policytext_read(argument, 1, &text, &pairs, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "longer than 50000 bytes"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(policytext_read(argument, 1, &text, &pairs, &err), ADTOPK_ERR_SYSTEM);
    assert_non_null(strstr(err.text, path));
    argument[0] = "/tmp";
    assert_int_equal(policytext_read(argument, 1, &text, &pairs, &err), ADTOPK_ERR_SYSTEM);
}

static void test_huge_value(void **state)
{
    char *pair = malloc(POLICYTEXT_MAX + 10);
    const char *argument[1];
    struct error err = {.code = ADTOPK_OK};
    char *text;
    bool pairs;

    (void)state;
    assert_non_null(pair);
    memset(pair, 'x', POLICYTEXT_MAX + 9);
    pair[POLICYTEXT_MAX + 9] = '\0';
    pair[1] = '=';
    argument[0] = pair;
    assert_int_equal(policytext_read(argument, 1, &text, &pairs, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "longer than"));
    free(pair);
}

static void test_exit_codes(void **state)
{
    (void)state;
    for (int status = ADTOPK_NONFINITE; status < ERROR_STATUSES; status++) {
        bool unreachable = status == ADTOPK_ERR_UNREACHABLE || status == ADTOPK_ERR_TIMEOUT;
        enum exit_code answered = status == ADTOPK_ERR_DENIED ? EXIT_DENIED : EXIT_FAILED;

        assert_int_equal(run_exit_code((enum adtopk_status)status, true),
            status == ADTOPK_ERR_TIMEOUT ? EXIT_UNKNOWN : answered);
        assert_int_equal(run_exit_code((enum adtopk_status)status, false),
            unreachable ? EXIT_UNREACHABLE : answered);
    }
    assert_int_equal(run_exit_code(ADTOPK_OK, true), EXIT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_usage_errors),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_family),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_broken_json),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_huge_value),
        cmocka_unit_test(test_exit_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
