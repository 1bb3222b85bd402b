/*
 * Running estimates: what they learn from observations, how outliers affect them, how nodes send
 * and merge them, and which are refused. Also the text of choices.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/planner/cost.h"
#include "daemon/planner/estimate_line.h"
#include "planner_world.h"

#define TENSORS 5
#define NODES 4

static void assert_near(double found, double expected, double part)
{
    if (!(fabs(found - expected) <= part * fabs(expected))) {
        fail_msg("%g is not within %g of %g", found, part, expected);
    }
}

static void observe(struct estimate_line *line, double a, double b, uint64_t *random, double noise)
{
    static const double x[] = {1, 50, 300, 2000, 9000};

    for (unsigned i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        double off = 1 + noise * (2 * world_random(random) - 1);
        estimate_line_add(line, x[i], (a + b * x[i]) * off, 0.01);
    }
    estimate_line_end(line);
}

/* Twenty steps with one observation each. */
static void observe_alike(struct estimate_line *line, double x, double y)
{
    for (unsigned s = 0; s < 20; s++) {
        estimate_line_add(line, x, y, 0.01);
        estimate_line_end(line);
    }
}

/* The estimate finds a line, with noise and without, and follows it when it changes in either
 * direction. */
static void test_line(void **state)
{
    const struct line expected = {.offset = 200, .slope = 1};
    struct estimate_line line = {.weight = 0};
    uint64_t random = 1;
    struct line fit;

    (void)state;
    fit = estimate_line_fit(&line, expected);
    assert_near(fit.offset, 200, 0);
    for (unsigned s = 0; s < 30; s++) {
        observe(&line, 100, 0.5, &random, 0);
    }
    fit = estimate_line_fit(&line, expected);
    assert_near(fit.offset, 100, 0.1); /* pulled a little to 200 */
    assert_near(fit.slope, 0.5, 0.03);
    for (double factor = 10; factor >= 0.1; factor /= 100) {
        for (unsigned s = 0; s < 100; s++) {
            observe(&line, 100 * factor, 0.5 * factor, &random, 0.2);
        }
        fit = estimate_line_fit(&line, expected);
        assert_near(fit.offset, 100 * factor, 0.1);
        assert_near(fit.slope, 0.5 * factor, 0.1);
    }
}

/* If all observations are alike, the other parameter stays as expected. No parameter is ever
 * negative. */
static void test_line_of_one_size(void **state)
{
    struct estimate_line line = {.weight = 0};
    struct line fit;

    (void)state;
    observe_alike(&line, 1000, 2020);
    fit = estimate_line_fit(&line, (struct line){.offset = 20, .slope = 1});
    assert_near(fit.offset + 1000 * fit.slope, 2020, 0.02);
    assert_near(fit.slope, 2, 0.05);
    line = (struct estimate_line){.weight = 0};
    for (unsigned s = 0; s < 20; s++) { /* the larger, the quicker */
        estimate_line_add(&line, 10, 1000, 0.01);
        estimate_line_add(&line, 1000, 10, 0.01);
        estimate_line_end(&line);
    }
    fit = estimate_line_fit(&line, (struct line){.offset = 20, .slope = 1});
    assert_true(fit.offset >= 0 && fit.slope >= 0);
}

/* One observation that is a thousand times too long changes little, and one of no time changes
 * nothing. */
static void test_line_outlier(void **state)
{
    struct estimate_line line = {.weight = 0}, before;
    uint64_t random = 3;
    struct line fit;

    (void)state;
    for (unsigned s = 0; s < 30; s++) {
        observe(&line, 100, 0.5, &random, 0.05);
    }
    before = line;
    estimate_line_add(&line, 300, NAN, 0.01);
    estimate_line_add(&line, 300, -1, 0.01);
    estimate_line_add(&line, INFINITY, 1, 0.01);
    assert_memory_equal(&line, &before, sizeof(line));
    estimate_line_add(&line, 300, 250e3, 0.01);
    fit = estimate_line_fit(&line, (struct line){.offset = 20, .slope = 1});
    assert_near(fit.offset + fit.slope * 300, 250, 0.15);
}

/* A device takes a thousand times longer than was guessed: the line believes it. */
static void test_line_far_slower(void **state)
{
    const struct line guess = {.offset = 20, .slope = 1};
    struct estimate_line line = {.weight = 0};
    struct line fit;

    (void)state;
    observe_alike(&line, 3, 40e3);
    fit = estimate_line_fit_guess(&line, guess);
    assert_near(fit.offset + 3 * fit.slope, 40e3, 0.02);
    for (unsigned s = 0; s < 20; s++) {
        estimate_line_add(&line, 3, 40e3, 0.01);
        estimate_line_add(&line, 100, 60e3, 0.01);
        estimate_line_end(&line);
    }
    fit = estimate_line_fit_guess(&line, guess);
    assert_near(fit.offset + 3 * fit.slope, 40e3, 0.02);
    assert_near(fit.offset + 100 * fit.slope, 60e3, 0.02);
}

static void begin(struct estimates *estimates)
{
    assert_true(estimate_init(estimates, TENSORS, NODES));
    estimate_plan(estimates, 7);
}

/* Steps: the warm-up does not count, the median of the latest steps does, and a new plan counts
 * anew. */
static void test_steps(void **state)
{
    struct estimates estimates;

    (void)state;
    begin(&estimates);
    estimate_step(&estimates, 1e6);
    estimate_step(&estimates, 1e6);
    assert_int_equal(estimates.steps.count, 0);
    for (unsigned s = 0; s < 41; s++) {
        estimate_step(&estimates, s == 20 ? 5e6 : 100 + s % 3);
    }
    estimate_step(&estimates, NAN);
    estimate_step(&estimates, 0);
    assert_int_equal(estimates.steps.count, 41);
    assert_near(estimates.steps.median_us, 101, 0);
    assert_true(estimates.steps.error_us > 0 && estimates.steps.error_us < 1);
    estimate_plan(&estimates, 8);
    assert_int_equal(estimates.steps.count, 0);
    assert_near(estimates.steps.median_us, 0, 0);
    estimate_free(&estimates);
}

/* Arrivals, link, gamma and volumes follow the observations. Outliers hardly count. */
static void test_running(void **state)
{
    struct cost_load load = {1000000, 10000, 0};
    double formula = cost_bytes(CHOICE_BALANCED, NODES, cost_gamma(NODES), load);
    struct estimates estimates;

    (void)state;
    begin(&estimates);
    for (unsigned s = 0; s < 60; s++) {
        double far = s == 30 ? 1000 : 1;
        estimate_arrival(&estimates, 2, 5000 * far);
        estimate_link(&estimates, 1000000, 8000 * far, 50);
        estimate_link(&estimates, 100, 60, 0); /* too short to show the time per byte */
        estimate_exchange(&estimates, CHOICE_BALANCED, load, (uint64_t)(2 * formula), 100 * far);
        estimate_step(&estimates, 100);
    }
    assert_near(estimates.arrival_us[2], 5000, 0.05);
    assert_true(estimates.arrival_us[1] < 0);
    assert_near(estimates.link_us_byte, 0.008, 0.05);
    assert_near(estimates.round_trip_us, 50, 0.01);
    assert_near(estimates.volume[CHOICE_BALANCED], 2, 0.01);
    estimate_gamma(&estimates, 25000, 10000);
    assert_near(estimates.gamma, 2.5, 1e-9);
    for (unsigned s = 0; s < 100; s++) {
        estimate_gamma(&estimates, 1000000, 10000); /* more than all nodes can have */
        estimate_gamma(&estimates, 5, 0);
    }
    assert_true(estimates.gamma <= NODES);
    estimate_free(&estimates);
}

/* An exchange that seems quicker than 1 us and 200 Gbit/s was measured in part. It counts as 1 us
 * and 200 Gbit/s. */
static void test_too_quick(void **state)
{
    const uint64_t bytes = 100000000;
    const double least = 1 + 8.0 * (double)bytes / 200e3;
    struct cost_load load = {bytes / 4, 0, 0};
    struct estimates estimates;
    struct line fit;

    (void)state;
    begin(&estimates);
    for (unsigned s = 0; s < 20; s++) {
        estimate_exchange(&estimates, CHOICE_DENSE, load, bytes, 2);
        estimate_step(&estimates, 100);
    }
    fit = estimate_line_fit(
        &estimates.exchange[CHOICE_DENSE], (struct line){.offset = 1, .slope = 4e-5});
    assert_near(fit.offset + fit.slope * (double)bytes, least, 0.01);
    estimate_free(&estimates);
}

static void fill(struct estimates *estimates, double slowness, uint64_t seed)
{
    for (unsigned s = 0; s < 20; s++) {
        for (unsigned c = 0; c < CHOICES; c++) {
            uint64_t n = 100000 + (uint64_t)(world_random(&seed) * 1e6);
            uint64_t k = choice_is_sparse((enum choice)c) ? n / 100 : 0;
            estimate_select(estimates, (enum choice)c, n, k, 2, slowness * (double)n / 1e3);
            estimate_reduce(estimates, (enum choice)c, n, k, 2, slowness * (double)n / 2e3);
            estimate_exchange(estimates, (enum choice)c, (struct cost_load){n, k, 0}, n,
                slowness * (double)n / 1e2);
        }
        estimate_settle(estimates, 1000, 10, 5 * slowness);
        estimate_link(estimates, 100000, 1e4 * slowness, 20);
        estimate_gamma(estimates, 30, 10);
        for (uint32_t t = 0; t < estimates->tensors; t++) {
            estimate_arrival(estimates, t, 100.0 * t * slowness);
        }
        estimate_step(estimates, 5000 * slowness);
    }
}

/* Estimates that were packed and unpacked are the same, and pack to the same bytes. */
static void test_pack(void **state)
{
    size_t size = estimate_packed_size(TENSORS);
    uint8_t *bytes = malloc(size), *again = malloc(size);
    struct estimates from, to;
    struct error err;

    (void)state;
    assert_non_null(bytes);
    assert_non_null(again);
    begin(&from);
    begin(&to);
    estimate_pack(&from, bytes); /* nothing measured */
    assert_int_equal(estimate_unpack(&to, bytes, size, &err), ADTOPK_OK);
    fill(&from, 1, 5);
    from.arrival_us[3] = -1;
    from.arrival_us[4] = 1e300;
    estimate_pack(&from, bytes);
    assert_int_equal(estimate_unpack(&to, bytes, size, &err), ADTOPK_OK);
    estimate_pack(&to, again);
    assert_memory_equal(bytes, again, size);
    assert_int_equal(to.steps.count, 18);
    assert_near(to.steps.median_us, 5000, 0);
    assert_int_equal(to.plan, 7);
    assert_true(to.arrival_us[3] < 0);
    assert_memory_equal(&to.select[2].weight, &from.select[2].weight, 6 * sizeof(double));
    free(bytes);
    free(again);
    estimate_free(&from);
    estimate_free(&to);
}

static void refuse(struct estimates *estimates, const uint8_t *bytes, size_t size, const char *text)
{
    uint64_t plan = estimates->plan;
    struct error err;

    assert_int_equal(estimate_unpack(estimates, bytes, size, &err), ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(estimates->plan, plan);
}

/* Bytes that no correct peer packs are refused. The planner can work with all others. */
static void test_refuse(void **state)
{
    const size_t size = estimate_packed_size(TENSORS);
    uint8_t *good = malloc(size), *bad = malloc(size + 1);
    const double numbers[] = {NAN, INFINITY, -1, 1e200};
    struct estimates estimates;
    uint64_t random = 9;
    struct error err;

    (void)state;
    assert_non_null(good);
    assert_non_null(bad);
    begin(&estimates);
    fill(&estimates, 1, 5);
    estimate_pack(&estimates, good);
    for (size_t cut = 0; cut < size; cut++) {
        (void)memcpy(bad, good, cut);
        refuse(&estimates, bad, cut, "estimates: ");
    }
    (void)memcpy(bad, good, size);
    refuse(&estimates, bad, size + 1, "bytes instead of");
    bad[0]++;
    refuse(&estimates, bad, size, "version 3");
    for (unsigned field = 4; field <= 8; field += 4) {
        (void)memcpy(bad, good, size);
        bad[field]++;
        refuse(&estimates, bad, size, "where the job has 5 and 4");
    }
    for (size_t at = 24; at + 8 <= size - 4 * TENSORS; at += 8) {
        for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            (void)memcpy(bad, good, size);
            (void)memcpy(bad + at, &numbers[i], 8);
            refuse(&estimates, bad, size, "cannot be measurements");
        }
    }
    for (unsigned i = 0; i < 20000; i++) {
        (void)memcpy(bad, good, size);
        for (unsigned flips = 1 + i % 3; flips > 0; flips--) {
            bad[(size_t)(world_random(&random) * (double)size)] ^=
                (uint8_t)(1u << (unsigned)(world_random(&random) * 8));
        }
        if (estimate_unpack(&estimates, bad, size, &err) == ADTOPK_OK) {
            for (unsigned c = 0; c < CHOICES; c++) {
                struct line fit = estimate_line_fit(
                    &estimates.exchange[c], (struct line){.offset = 1, .slope = 1});
                assert_true(isfinite(fit.offset) && fit.offset >= 0);
                assert_true(isfinite(fit.slope) && fit.slope >= 0);
            }
        }
    }
    free(good);
    free(bad);
    estimate_free(&estimates);
}

/* A peer that claims steps of 1e-307 us is refused: the planner multiplies such times. */
static void test_step_of_no_time(void **state)
{
    const size_t size = estimate_packed_size(TENSORS);
    uint8_t *bytes = malloc(size);
    struct estimates estimates;
    struct error err;

    (void)state;
    assert_non_null(bytes);
    begin(&estimates);
    estimates.steps = (struct estimate_steps){
        .count = 40, .median_us = 1e-307, .least_us = 1e-307, .most_us = 1e-307};
    estimate_pack(&estimates, bytes);
    refuse(&estimates, bytes, size, "cannot be measurements");
    estimates.steps.median_us = 1;
    estimate_pack(&estimates, bytes);
    refuse(&estimates, bytes, size, "cannot be measurements");
    estimates.steps.least_us = estimates.steps.most_us = 1;
    estimate_pack(&estimates, bytes);
    assert_int_equal(estimate_unpack(&estimates, bytes, size, &err), ADTOPK_OK);
    free(bytes);
    estimate_free(&estimates);
}

/* A peer may claim numbers that are as small as numbers get: lines stay finite. */
static void test_next_to_nothing(void **state)
{
    const double tiny[] = {5e-324, 1e-310, 1e-200, 1e-20, 0};
    struct estimate_line line = {.weight = 0};

    (void)state;
    estimate_line_add(&line, 1000, 5, 1);
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned j = 0; j < 5; j++) {
            struct line fit =
                estimate_line_fit(&line, (struct line){.offset = tiny[i], .slope = tiny[j]});
            assert_true(isfinite(fit.offset) && fit.offset >= 0);
            assert_true(isfinite(fit.slope) && fit.slope >= 0);
        }
    }
}

/* Merged estimates are those of the slower node, in either order. */
static void test_merge(void **state)
{
    const struct line expected = {.offset = 20, .slope = 1};
    struct estimates one, other, merged;

    (void)state;
    begin(&one);
    begin(&other);
    begin(&merged);
    fill(&one, 1, 5);
    fill(&other, 3, 6);
    one.arrival_us[0] = 1e6;
    for (unsigned order = 0; order < 2; order++) {
        estimate_copy(&merged, order == 0 ? &one : &other);
        estimate_merge(&merged, order == 0 ? &other : &one);
        for (unsigned c = 0; c < CHOICES; c++) {
            assert_near(estimate_line_fit(&merged.select[c], expected).slope,
                estimate_line_fit(&other.select[c], expected).slope, 0);
        }
        assert_near(merged.arrival_us[0], 1e6, 0);
        assert_near(merged.arrival_us[4], other.arrival_us[4], 0);
        assert_near(merged.link_us_byte, one.link_us_byte, 0); /* the quicker */
        assert_near(estimate_line_fit(&merged.exchange[2], expected).slope,
            estimate_line_fit(&one.exchange[2], expected).slope, 0);
        assert_near(merged.steps.median_us, 15000, 0);
        assert_int_equal(merged.steps.count, 18);
    }
    estimate_plan(&other, 7); /* measured anew, as after a restart: too few steps for extremes */
    for (unsigned i = 0; i < ESTIMATE_WARMUP + ESTIMATE_RECENT - 1; i++) {
        estimate_step(&other, 1000);
    }
    estimate_copy(&merged, &one);
    estimate_merge(&merged, &other);
    assert_int_equal(merged.steps.count, ESTIMATE_RECENT - 1);
    assert_near(merged.steps.least_us, 0, 0);
    assert_near(merged.steps.most_us, 0, 0);
    estimate_plan(&other, 8); /* another plan, whose steps are not comparable */
    fill(&other, 3, 6);
    estimate_copy(&merged, &one);
    estimate_merge(&merged, &other);
    assert_int_equal(merged.steps.count, 0);
    estimate_free(&one);
    estimate_free(&other);
    estimate_free(&merged);
}

/* ------------------------------------------------------------------ choices */

static void test_text(void **state)
{
    static const char *const good[] = {
        "4194304:12a3d", "1:1d", "1099511627776:15c", "7:1d1h1a1b1o10c"};
    char text[CHOICES_TEXT_SIZE];
    struct choices choices;
    uint64_t random = 2;
    struct error err;

    (void)state;
    for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(choices_check(good[i], &err), ADTOPK_OK);
    }
    assert_true(choices_init(&choices, 15));
    assert_int_equal(choices_parse(&choices, good[0], &err), ADTOPK_OK);
    assert_int_equal(choices.bucket_bytes, 4194304);
    assert_int_equal(choices.choice[11], CHOICE_ALLGATHER);
    assert_int_equal(choices.choice[12], CHOICE_DENSE);
    choices_free(&choices);
    for (unsigned i = 0; i < 2000; i++) {
        struct choices from, to;
        uint32_t tensors = 1 + (uint32_t)(world_random(&random) * 300);
        assert_true(choices_init(&from, tensors));
        assert_true(choices_init(&to, tensors));
        from.bucket_bytes = 1 + (uint64_t)(world_random(&random) * 1e12);
        for (uint32_t t = 0; t < tensors; t++) {
            bool same = t > 0 && world_random(&random) < 0.7;
            from.choice[t] = same ? from.choice[t - 1] : (uint8_t)(world_random(&random) * CHOICES);
        }
        assert_true(choices_print(&from, text));
        assert_int_equal(choices_parse(&to, text, &err), ADTOPK_OK);
        assert_true(choices_equal(&from, &to));
        choices_free(&from);
        choices_free(&to);
    }
}

static void test_bad_text(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"", "begin with the bytes"}, {"12a3d", "begin with the bytes"},
        {"0:15a", "begin with the bytes"}, {"04:15a", "begin with the bytes"},
        {"1099511627777:15a", "begin with the bytes"},
        {"99999999999999999999999999:15a", "begin with the bytes"}, {"4:", "for 0 tensors"},
        {"4:15", "one of the letters dhaboc expected at character 4"},
        {"4:15x", "one of the letters dhaboc expected at character 4"},
        {"4:15a ", "a number of tensors expected at character 5"},
        {"4:a", "a number of tensors expected at character 2"},
        {"4:0a15b", "a number of tensors expected at character 2"},
        {"4:05a10b", "a number of tensors expected at character 2"},
        {"4:-5a", "a number of tensors expected at character 2"}, {"4:5a10a", "the same letter"},
        {"4:4294967296a", "a number of tensors"}, {"4:4294967295a1b", "for 4294967296 tensors"},
        {"4:14a", "the job has 15"}, {"4:5a11b", "for 16 tensors, the job has 15"}};
    struct choices choices;
    struct error err;
    char *text = malloc(2 * CHOICES_TEXT_SIZE);

    (void)state;
    assert_non_null(text);
    assert_true(choices_init(&choices, 15));
    choices.bucket_bytes = 99;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(choices_parse(&choices, bad[i].text, &err), ADTOPK_ERR_POLICY);
        if (strstr(err.text, bad[i].says) == NULL) {
            fail_msg("'%s': %s", bad[i].text, err.text);
        }
        assert_int_equal(choices.bucket_bytes, 99);
        assert_int_equal(choices.choice[0], CHOICE_DENSE);
    }
    (void)memset(text, '1', 2 * CHOICES_TEXT_SIZE - 1);
    text[2 * CHOICES_TEXT_SIZE - 1] = '\0';
    assert_int_equal(choices_parse(&choices, text, &err), ADTOPK_ERR_POLICY);
    assert_non_null(strstr(err.text, "longer than"));
    choices_free(&choices);
    assert_true(choices_init(&choices, 20000)); /* so many runs that they cannot be written */
    for (uint32_t t = 0; t < choices.tensors; t++) {
        choices.choice[t] = (uint8_t)(t % 2);
    }
    assert_false(choices_print(&choices, text));
    assert_string_equal(text, "");
    choices_free(&choices);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_line_of_one_size),
        cmocka_unit_test(test_line_far_slower),
        cmocka_unit_test(test_line_outlier),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_too_quick),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_refuse),
        cmocka_unit_test(test_step_of_no_time),
        cmocka_unit_test(test_next_to_nothing),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_bad_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
