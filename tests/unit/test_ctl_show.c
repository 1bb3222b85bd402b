/*
 * The output of adtopkctl for a daemon's documents (tests/data/control): NAME.json gives NAME.txt,
 * in lines of at most 80 columns. ADTOPK_TEST_RECORD=1 writes the texts anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

static char *read_file(const char *name, const char *suffix)
{
    char path[300];
    FILE *stream;
    char *text = calloc(1, 1 << 16);

    assert_non_null(text);
    (void)snprintf(path, sizeof(path), TEST_DATA "/%s%s", name, suffix);
    stream = fopen(path, "r");
    if (stream == NULL) {
        fail_msg("cannot open %s", path);
    }
    (void)fread(text, 1, (1 << 16) - 1, stream);
    assert_int_equal(ferror(stream), 0);
    (void)fclose(stream);
    return text;
}

static cJSON *read_document(const char *name)
{
    char *text = read_file(name, ".json");
    cJSON *document = cJSON_Parse(text);

    assert_non_null(document);
    free(text);
    return document;
}

static void assert_fits(const char *text)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        size_t columns = 0;

        for (size_t i = 0; i < length; i++) {
            unsigned char byte = (unsigned char)text[i];

            assert_true(byte >= 0x20 && byte != 0x7F);
            columns += (byte & 0xC0) != 0x80 ? 1 : 0;
        }
        if (columns > TEXT_COLUMNS) {
            fail_msg("%zu columns: %.*s", columns, (int)length, text);
        }
        text += length;
        text += *text == '\n' ? 1 : 0;
    }
}

static void assert_shown(const char *name, const char *text)
{
    char *expected;

    assert_fits(text);
    if (getenv("ADTOPK_TEST_RECORD") != NULL) {
        char path[300];
        FILE *stream;

        (void)snprintf(path, sizeof(path), TEST_DATA "/%s.txt", name);
        stream = fopen(path, "w");
        assert_non_null(stream);
        (void)fputs(text, stream);
        (void)fclose(stream);
    }
    expected = read_file(name, ".txt");
    assert_string_equal(text, expected);
    free(expected);
}

static const struct {
    const char *name;
    void (*show)(FILE *out, const cJSON *document);
} cases[] = {
    {"status", show_status},
    {"status_trouble", show_status},
    {"status_gpus", show_status},
    {"jobs", show_jobs},
    {"jobs_trouble", show_jobs},
    {"peers", show_peers},
    {"stores", show_stores},
    {"drain", show_drain},
    {"stats", show_stats},
    {"stats_empty", show_stats},
    {"ranks", show_ranks},
    {"ranks_everywhere", show_ranks},
    {"tensors", show_tensors},
    {"tensors_more", show_tensors},
    {"tensors_forming", show_tensors},
    {"plan", show_plan},
    {"plan_none", show_plan},
    {"plan_elsewhere", show_plan},
    {"policy", show_policy},
    {"policy_next", show_policy},
    {"default_policy", show_policy},
    {"keys", show_policy_keys},
    {"sparsifiers", show_sparsifiers},
    {"policy_set", show_policy_change},
    {"policy_log", show_policy_log},
    {"verify", show_verify},
    {"verify_bad", show_verify},
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

static void test_documents(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        cJSON *document = read_document(cases[i].name);
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);

        assert_non_null(out);
        cases[i].show(out, document);
        assert_int_equal(fclose(out), 0);
        assert_shown(cases[i].name, text);
        free(text);
        cJSON_Delete(document);
    }
}

/* One of a kind, and times that are short. */
static void test_singular(void **state)
{
    cJSON *stats = cJSON_Parse("{\"jobs\":[{\"name\":\"a\",\"run_id\":\"0\",\"tensors\":1,"
                               "\"buckets\":1,\"elements\":1,\"phase_seconds\":{"
                               "\"reduce\":9e-05,\"settle\":3.8e-05}}]}");
    cJSON *status = cJSON_Parse("{\"network\":{\"protection\":\"curve\",\"refused\":{\"keys\":4,"
                                "\"handshakes\":1}},\"trainers\":{\"opened\":9,\"refused\":2,"
                                "\"keys\":1,\"lost\":3},\"jobs\":[{\"local_ranks\":1,"
                                "\"steps_done\":1},{}]}");
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    assert_non_null(out);
    show_stats(out, stats);
    show_status(out, status);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "tensors     1 in 1 bucket, 1 element\n"));
    assert_non_null(strstr(text, "time        reduce 90 us, settle 38 us\n"));
    assert_non_null(strstr(text, "refused: 4 keys, 1 handshake, 0 tokens, 0 packets\n"));
    assert_non_null(strstr(text, "ranks since the start: 9 came, 3 left without a word, 0 broke "
                                 "the\nprotocol; refused: 3\n"));
    assert_non_null(strstr(text, "total: 2 jobs, 1 rank here, 1 step\n"));
    free(text);
    cJSON_Delete(stats);
    cJSON_Delete(status);
}

/* What is shown of a document; the caller frees it. */
static char *shown(void (*show)(FILE *out, const cJSON *document), const char *json)
{
    cJSON *document = cJSON_Parse(json);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    show(out, document);
    assert_int_equal(fclose(out), 0);
    cJSON_Delete(document);
    return text;
}

static char *stats_of_named(const char *json)
{
    char *text;

    show_set_view(&(struct show_view){.named = true});
    text = shown(show_stats, json);
    show_set_view(&(struct show_view){.named = false});
    return text;
}

/* Who names a job wants the run that goes on, and only else those that have ended. */
static void test_earlier_runs(void **state)
{
    char *text = stats_of_named("{\"jobs\":[{\"name\":\"a\",\"run_id\":\"1\",\"state\":\"failed\"},"
                                "{\"name\":\"a\",\"run_id\":\"2\",\"state\":\"active\"}]}");

    (void)state;
    assert_null(strstr(text, "run 1"));
    assert_non_null(strstr(text, "run 2, active\n"));
    assert_non_null(strstr(text, "1 other run of it ended"));
    free(text);
    text = stats_of_named("{\"jobs\":[{\"name\":\"a\",\"run_id\":\"1\",\"state\":\"failed\"}]}");
    assert_non_null(strstr(text, "run 1, failed\n"));
    free(text);
}

/* A daemon of another version may leave any field out. */
static void test_missing_fields(void **state)
{
    static const char *const texts[] = {"{}", "[]", "null", "{\"jobs\":[{}],\"peers\":[{}]}",
        "{\"jobs\":7,\"peers\":\"x\",\"tensors\":[[]],\"policy\":[1],\"changes\":[null]}",
        "{\"unmatched_rules\":[7],\"jobs\":[{\"unmatched_rules\":{}}]}",
        "{\"out_of_balance\":[{\"input\":[null]}],\"keys\":[{}],\"jobs\":[[1]]}",
        ("{\"candidates\":[{},7],\"measured\":3,\"sparsifiers\":[{},7,{\"parameters\":[{},null]}],"
         "\"parameters\":[{}]}")};

    (void)state;
    for (size_t t = 0; t < sizeof(texts) / sizeof(texts[0]); t++) {
        cJSON *document = cJSON_Parse(texts[t]);

        assert_non_null(document);
        for (size_t i = 0; i < CASES; i++) {
            char *text = NULL;
            size_t size = 0;
            FILE *out = open_memstream(&text, &size);

            assert_non_null(out);
            cases[i].show(out, document);
            show_rates(out, document, document);
            (void)show_is_healthy(document);
            assert_int_equal(fclose(out), 0);
            assert_fits(text);
            free(text);
        }
        cJSON_Delete(document);
    }
}

/* An older daemon counts no contexts on a GPU: nothing is said of them. */
static void test_gpu_of_older_daemon(void **state)
{
    char *text =
        shown(show_status, "{\"devices\":[{\"uuid\":\"GPU-1\",\"name\":\"one\",\"jobs\":1}]}");

    (void)state;
    assert_non_null(strstr(text, "GPU-1"));
    assert_null(strstr(text, "contexts"));
    assert_null(strstr(text, "NCCL about"));
    free(text);
}

static void test_rates(void **state)
{
    cJSON *before = read_document("stats");
    cJSON *after = read_document("stats_later");
    cJSON *empty = read_document("stats_empty");
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    assert_non_null(out);
    show_rates_header(out);
    show_rates(out, before, after);
    show_rates(out, before, before); /* no time has passed */
    show_rates(out, after, before);
    show_rates(out, empty, after); /* the job is new */
    assert_int_equal(fclose(out), 0);
    assert_shown("rates", text);
    free(text);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(empty);
}

/* Compares a line of rates with round numbers. */
static void test_rates_are_right(void **state)
{
    cJSON *before = cJSON_Parse("{\"clock_s\":10,\"jobs\":[{\"name\":\"a\",\"run_id\":\"1\","
                                "\"owner\":3,\"steps\":100,\"wire_bytes_sent\":1000000,"
                                "\"nonzeros_sent\":0,\"phase_seconds\":{\"select\":1}}]}");
    cJSON *after = cJSON_Parse("{\"clock_s\":12,\"jobs\":[{\"name\":\"a\",\"run_id\":\"1\","
                               "\"owner\":3,\"steps\":150,\"wire_bytes_sent\":7000000,"
                               "\"nonzeros_sent\":2500,\"sparse_elements\":1000,"
                               "\"phase_seconds\":{\"select\":1.1}}]}");
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    assert_non_null(out);
    show_rates(out, before, after);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "a                  25.0  3.00 MB/s      5%    0.00   2.00     0.00"
                              "   0.00   0.00\n");
    free(text);
    cJSON_Delete(before);
    cJSON_Delete(after);
}

static void test_health(void **state)
{
    static const struct {
        const char *name;
        bool healthy;
    } documents[] = {{"status", true}, {"status_trouble", false}, {"jobs", true},
        {"jobs_trouble", false}, {"peers", true}, {"nothing", true}};

    (void)state;
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        cJSON *document = read_document(documents[i].name);

        assert_int_equal(show_is_healthy(document), documents[i].healthy);
        cJSON_Delete(document);
    }
}

/* Nodes that may join a seed need not be there. */
static void test_health_of_a_seed(void **state)
{
    cJSON *document = cJSON_Parse("{\"peers\":[{\"state\":\"down\",\"endpoint\":\"\"}]}");

    (void)state;
    assert_true(show_is_healthy(document));
    cJSON_Delete(document);
    document =
        cJSON_Parse("{\"peers\":[{\"state\":\"down\",\"endpoint\":\"tcp://10.0.0.1:7400\"}]}");
    assert_false(show_is_healthy(document));
    cJSON_Delete(document);
}

static void test_clean(void **state)
{
    static const struct {
        const char *from;
        size_t columns;
        const char *clean;
    } texts[] = {
        {"abcdefgh", 8, "abcdefgh"},
        {"abcdefghi", 8, "abc..ghi"},
        {"abcdefghi", 3, "a.."},
        {"abcdefghi", 2, "ab"},
        {"abcdefghi", 1, "a"},
        {"abcdefghi", 0, ""},
        {"\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F", 3, "\xC3\xA4.."},
        {"a\x1B[2J\nb\x7F", 20, "a?[2J?b?"},
        {"\xC2\x9B"
         "2J",
            20, "?2J"},
        {"\xE2\x80\xAE"
         "evil\xE2\x81\xA6",
            20, "?evil?"},
        {"\xE2\x82\xAC", 20, "\xE2\x82\xAC"},
        {"\xFF\xC3", 20, "??"},
    };
    char out[TEXT_SIZE];
    char *huge = malloc(100000);

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_string_equal(text_clean(texts[i].from, texts[i].columns, out), texts[i].clean);
    }
    assert_non_null(huge);
    memset(huge, 'x', 99999);
    huge[99999] = '\0';
    assert_int_equal(strlen(text_clean(huge, SIZE_MAX, out)), TEXT_SIZE - 1);
    free(huge);
}

/* A daemon that is none may send any numbers. */
static void test_enormous_numbers(void **state)
{
    cJSON *document = cJSON_Parse(
        "{\"schema\":1,\"jobs\":[{\"name\":\"j\",\"lost_nodes\":{\"nodes\":1e308,\"unknown\":1e307,"
        "\"step\":1e308,\"sum\":1e308,\"magnitude\":-1e-308}}]}");
    FILE *out = tmpfile();
    char text[8192];

    (void)state;
    assert_non_null(document);
    assert_non_null(out);
    show_jobs(out, document); /* the sanitizers look at it */
    rewind(out);
    text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
    assert_non_null(strstr(text, "lost:"));
    assert_int_equal(fclose(out), 0);
    cJSON_Delete(document);
}

static void test_quantities(void **state)
{
    char out[TEXT_SIZE];

    (void)state;
    assert_string_equal(text_bytes(0, out), "0 B");
    assert_string_equal(text_bytes(999, out), "999 B");
    assert_string_equal(text_bytes(999.6, out), "1.00 kB");
    assert_string_equal(text_bytes(12345678, out), "12.3 MB");
    assert_string_equal(text_bytes(9.99e20, out), "999000 PB");
    assert_string_equal(text_count(65536, out), "65.5 k");
    assert_string_equal(text_time(0, out), "0 us");
    assert_string_equal(text_time(38, out), "38 us");
    assert_string_equal(text_time(999.6, out), "1 ms");
    assert_string_equal(text_time(1254, out), "1.25 ms");
    assert_string_equal(text_time(4380000, out), "4.38 s");
    assert_string_equal(text_time(12345678901.0, out), "12346 s");
    assert_string_equal(text_duration(59, out), "59 s");
    assert_string_equal(text_duration(3599, out), "60 min");
    assert_string_equal(text_duration(7200, out), "2.0 h");
    assert_string_equal(text_duration(864000, out), "10.0 days");
    assert_string_equal(text_user(0, 20, out), "root");
    assert_string_equal(text_user(4242424, 20, out), "4242424");
    assert_string_equal(text_user(-1, 20, out), "-1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_singular),
        cmocka_unit_test(test_earlier_runs),
        cmocka_unit_test(test_missing_fields),
        cmocka_unit_test(test_gpu_of_older_daemon),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_rates_are_right),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_health_of_a_seed),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_enormous_numbers),
        cmocka_unit_test(test_quantities),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
