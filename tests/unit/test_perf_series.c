/* The statistics that adtopk-perf makes of its samples, and the way it prints numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/perf/format.h"
#include "tests/bench/perf/report.h"
#include "tests/bench/perf/series.h"

static void assert_close(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * (1 + fabs(expected)))) {
        fail_msg("%.17g is not %.17g", value, expected);
    }
}

static struct series series_of(const double *values, size_t count)
{
    struct series series = {0};

    for (size_t i = 0; i < count; i++) {
        assert_true(series_add(&series, values[i]));
    }
    return series;
}

static void test_summary(void **state)
{
    static const double values[] = {9, 1, 7, 3, 5, 2, 8, 4, 6, 10};
    struct series series = series_of(values, 10);
    struct summary summary;

    (void)state;
    assert_true(series_summarise(&series, &summary));
    assert_close(summary.min, 1);
    assert_close(summary.median, 5.5);
    assert_close(summary.p90, 9.1); /* numpy.percentile(values, 90) */
    assert_close(summary.p99, 9.91);
    assert_close(summary.max, 10);
    assert_close(summary.spread, (7.75 - 3.25) / 5.5);
    assert_close(series.value[0], 9); /* the order is kept */
    series_free(&series);
}

static void test_few_samples(void **state)
{
    static const double values[] = {3, 0, 0};
    struct series none = {0};
    struct series one = series_of(values, 1);
    struct series zeros = series_of(values + 1, 2);
    struct summary summary;

    (void)state;
    assert_true(series_summarise(&none, &summary));
    assert_true(isnan(summary.median) && isnan(summary.p99) && isnan(summary.spread));
    assert_true(series_summarise(&one, &summary));
    assert_close(summary.median, 3);
    assert_close(summary.p99, 3);
    assert_close(summary.spread, 0);
    assert_true(series_summarise(&zeros, &summary));
    assert_close(summary.spread, 0);
    series_free(&one);
    series_free(&zeros);
}

static void test_many_samples(void **state)
{
    struct series series = {0};
    struct summary summary;

    (void)state;
    for (int i = 0; i < 10001; i++) {
        assert_true(series_add(&series, (double)((i * 7919) % 10001)));
    }
    assert_true(series_summarise(&series, &summary));
    assert_close(summary.median, 5000);
    assert_close(summary.p90, 9000);
    assert_close(summary.p99, 9900);
    assert_close(summary.spread, 1);
    series_free(&series);
}

/* For a while the machine is ten times slower: pairs do not show it, medians might. */
static void test_ratio_of_pairs(void **state)
{
    static const double floors[] = {1, 10, 10, 10, 1, 0};
    static const double times[] = {2, 20, 20, 30, 2, 7};
    struct series time = series_of(times, 6);
    struct series floor = series_of(floors, 6);
    struct series none = {0};
    double ratio;

    (void)state;
    assert_true(series_ratio(&time, &floor, true, &ratio));
    assert_close(ratio, 2); /* of 2, 2, 2, 3, 2; the last pair has no floor */
    assert_true(series_ratio(&time, &none, true, &ratio));
    assert_true(isnan(ratio));
    series_free(&time);
    series_free(&floor);
}

static void test_ratio_of_medians(void **state)
{
    static const double floors[] = {4, 2, 2};
    static const double times[] = {5, 7, 9, 11};
    struct series time = series_of(times, 4);
    struct series floor = series_of(floors, 3);
    struct series none = {0};
    double ratio;

    (void)state;
    assert_true(series_ratio(&time, &floor, false, &ratio));
    assert_close(ratio, 4);
    assert_true(series_ratio(&time, &none, false, &ratio));
    assert_true(isnan(ratio));
    series_free(&time);
    series_free(&floor);
}

static void test_format(void **state)
{
    static const struct {
        double number;
        const char *measure, *count, *density, *percent;
    } cases[] = {
        {0, "0.0000", "0", "0", "0.0%"},
        {0.0123, "0.0123", "0", "0.0123", "1.2%"},
        {0.25, "0.25", "0", "0.25", "25%"},
        {1, "1.00", "1", "1", "100%"},
        {9.994, "9.99", "10", "9.994", "999%"},
        {9.996, "10.0", "10", "9.996", "1000%"},
        {99.96, "100", "100", "99.96", "9996%"},
        {123456789, "123456789", "123456789", "1.235e+08", "12345678900%"},
        {NAN, "-", "-", "-", "-"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[FORMAT_SIZE];

        format_measure(text, cases[i].number);
        assert_string_equal(text, cases[i].measure);
        format_count(text, cases[i].number);
        assert_string_equal(text, cases[i].count);
        format_density(text, cases[i].number);
        assert_string_equal(text, cases[i].density);
        format_percent(text, cases[i].number);
        assert_string_equal(text, cases[i].percent);
    }
}

static void test_derived(void **state)
{
    (void)state;
    assert_close(report_bits(100, 25), 32);
    assert_true(isnan(report_bits(100, 0)));
    assert_true(isnan(report_bits(100, NAN)));
    assert_close(report_bandwidth(1e9, 1e6), 1);
    assert_true(isnan(report_bandwidth(1e9, 0)));
}

/* One row of a report, as text. */
static char *report_text(bool json, const struct row *row)
{
    static char *const argv[] = {"adtopk-perf", "select"};
    const struct machine machine = {.cpu = "c", .kernel = "k", .vectors = "v", .cores = 2};
    struct error err;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct report *report;

    assert_non_null(out);
    report = report_new(out, json, &machine, 2, argv);
    assert_non_null(report);
    report_begin(report, REPORT_BANDWIDTH, "select", "help", "");
    assert_int_equal(report_row(report, row, &err), ADTOPK_OK);
    assert_int_equal(report_finish(report, false, &err), ADTOPK_OK);
    (void)fclose(out);
    return text;
}

static struct row example(const struct series *time, const struct series *floor)
{
    return (struct row){.benchmark = "select",
        .variant = "top",
        .input = "normal",
        .size = 4000,
        .count = 1000,
        .type = "f32",
        .density = 0.01,
        .alg_bytes = 4000,
        .bus_bytes = 12000,
        .wire_bytes = 60,
        .nonzeros = 10,
        .target_us = NAN,
        .time = time,
        .floor_name = "r+=g plain",
        .floor = floor,
        .paired = true};
}

static void test_row_text(void **state)
{
    static const double values[] = {2, 2, 4, 1, 1, 2};
    struct series time = series_of(values, 3);
    struct series floor = series_of(values + 3, 3);
    struct row row = example(&time, &floor);
    char *text = report_text(false, &row);
    const char *line = strstr(text, "\ntop normal");

    (void)state;
    assert_non_null(line);
    assert_string_equal(line + 1,
        "top normal                4000     1000  f32  0.01    2.00   2.00 "
        "  6.00        60 48.0  2.00    50%\n");
    free(text);
    series_free(&time);
    series_free(&floor);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static void test_row_json(void **state)
{
    static const double values[] = {2, 2, 4, 1, 1, 2};
    struct series time = series_of(values, 3);
    struct series floor = series_of(values + 3, 3);
    struct row row = example(&time, &floor);
    char *text = report_text(true, &row);
    cJSON *document = cJSON_Parse(text);
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "rows"), 0);

    (void)state;
    assert_close(number(document, "schema"), 1);
    assert_close(number(item, "ratio"), 2);
    assert_close(number(item, "bits_per_nonzero"), 48);
    assert_close(number(item, "algbw_gb_s"), 2);
    assert_close(number(item, "busbw_gb_s"), 6);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(item, "target_us")));
    item = cJSON_GetObjectItem(item, "time_us");
    assert_close(number(item, "spread"), 0.5);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(item, "samples")), 3);
    cJSON_Delete(document);
    free(text);
    series_free(&time);
    series_free(&floor);
}

/* Interrupted before the first sample: no row. */
static void test_row_without_samples(void **state)
{
    const struct series none = {0};
    const struct row row = example(&none, &none);
    char *text = report_text(false, &row);

    (void)state;
    assert_null(strstr(text, "top normal"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_few_samples),
        cmocka_unit_test(test_many_samples),
        cmocka_unit_test(test_ratio_of_pairs),
        cmocka_unit_test(test_ratio_of_medians),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_derived),
        cmocka_unit_test(test_row_text),
        cmocka_unit_test(test_row_json),
        cmocka_unit_test(test_row_without_samples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
