/* Statistics and questions about thresholds, compared with reading element by element and sorting.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/stats.h"
#include "kernels/cpu/survey.h"
#include "tests/host/survey_read.h"
#include "tests/unit/arrays.h"
#include "tests/unit/select_reference.h"

static float random_magnitude(void)
{
    switch (random_below(8)) {
    case 0: return 0x1p127f;
    case 1: return 0x1p-149f * (float)(1 + random_below(100));
    case 2: return FLT_MIN;
    default: return fabsf(random_value()) + 0x1p-100f;
    }
}

/* Finite elements of all kinds. */
static float *input_make(uint64_t n)
{
    const enum pattern pattern = (enum pattern)random_below(PATTERN_COUNT);
    float *x = pattern_make(pattern == NOT_FINITE ? RANDOM : pattern, n);
    const bool wild = random_below(3) == 0;
    for (uint64_t i = 0; i < n; i++) {
        if (wild && random_below(4) == 0) {
            x[i] = random_below(2) == 0 ? random_magnitude() : -random_magnitude();
        }
    }
    return x;
}

static bool reaches(float x, float threshold)
{
    return x != 0 && fabsf(x) >= threshold;
}

/* The elements that reach a threshold, with sums in the documented order. */
struct reference {
    uint64_t count;
    double sum;
    double sum_abs;
    double sum_squares;
    long double sum_log;
    double weight; /* sum of the logarithms' magnitudes */
    float most;
    float least;
};

/* Lane l after the 16 lanes were reduced to `left`. */
static double lanes_sum(const double *lane, unsigned left, unsigned l)
{
    return left == 16 ? lane[l]
                      : lanes_sum(lane, 2 * left, l) + lanes_sum(lane, 2 * left, l + left);
}

static struct reference reference_of(const float *x, uint64_t n, float threshold)
{
    struct reference r = {0};
    for (uint64_t first = 0; first < n; first += 4096) {
        double lane[3][16] = {{0}};
        for (uint64_t i = first; i < n && i < first + 4096; i++) {
            const double v = (double)x[i];
            if (!reaches(x[i], threshold)) {
                continue;
            }
            r.least = r.count == 0 || fabsf(x[i]) < r.least ? fabsf(x[i]) : r.least;
            r.most = fabsf(x[i]) > r.most ? fabsf(x[i]) : r.most;
            r.count++;
            r.sum_log += logl(fabsl((long double)v));
            r.weight += fabs(log(fabs(v))) + 1;
            lane[0][i % 16] += v;
            lane[1][i % 16] += fabs(v);
            lane[2][i % 16] += v * v;
        }
        r.sum += lanes_sum(lane[0], 1, 0);
        r.sum_abs += lanes_sum(lane[1], 1, 0);
        r.sum_squares += lanes_sum(lane[2], 1, 0);
    }
    return r;
}

static void assert_same_double(double a, double b)
{
    if (memcmp(&a, &b, sizeof a) != 0) {
        fail_msg("%a, not %a", a, b);
    }
}

static void assert_log(double found, const struct reference *r)
{
    const double error = (double)((long double)found - r->sum_log);
    if (!(fabs(error) <= 1e-15 * r->weight)) {
        fail_msg("%g too much in %g, weight %g", error, found, r->weight);
    }
}

static void check_stats(const struct cpu_survey *survey, const float *x, uint64_t n)
{
    const struct reference r = reference_of(x, n, 0);
    assert_ptr_equal(survey->x, x);
    assert_int_equal(survey->base.stats.n, n);
    assert_int_equal(survey->base.stats.zeros, n - r.count);
    assert_same_double(survey->base.stats.sum, r.sum);
    assert_same_double(survey->base.stats.sum_abs, r.sum_abs);
    assert_same_double(survey->base.stats.sum_squares, r.sum_squares);
    assert_log(survey->base.stats.sum_log, &r);
    assert_same_bits(&survey->base.stats.most, &r.most, 1);
}

/* A needed statistic does not depend on which others are needed. One that is not needed is 0. */
static void check_need(const struct cpu_survey *all, const struct stats_ops *ops, unsigned need)
{
    const uint64_t n = all->base.stats.n;
    void *scratch = allocate(1, survey_scratch(n));
    struct survey_stats some = all->base.stats;
    struct cpu_survey survey;
    some.zeros = need & SURVEY_ZEROS ? some.zeros : 0;
    some.sum = need & SURVEY_SUM ? some.sum : 0;
    some.sum_abs = need & SURVEY_MAGNITUDES ? some.sum_abs : 0;
    some.most = need & SURVEY_MAGNITUDES ? some.most : 0;
    some.sum_squares = need & SURVEY_SQUARES ? some.sum_squares : 0;
    some.sum_log = need & SURVEY_LOGARITHMS ? some.sum_log : 0;
    survey_read(&survey, ops, need, all->x, n, scratch);
    assert_int_equal(survey.base.stats.zeros, some.zeros);
    assert_same_double(survey.base.stats.sum, some.sum);
    assert_same_double(survey.base.stats.sum_abs, some.sum_abs);
    assert_same_double(survey.base.stats.sum_squares, some.sum_squares);
    assert_same_double(survey.base.stats.sum_log, some.sum_log);
    assert_same_bits(&survey.base.stats.most, &some.most, 1);
    free(scratch);
}

static void check_top(
    struct cpu_survey *survey, const struct ranked *ranked, uint64_t n, uint64_t k)
{
    struct sparse out = sparse_make(k);
    const uint64_t wanted = k < n ? k : n;
    struct ranked *best = allocate(wanted, sizeof *best);
    memcpy(best, ranked, wanted * sizeof *best);
    qsort(best, wanted, sizeof *best, by_position);
    survey_top(&survey->base, k, &out);
    assert_int_equal(out.count, wanted);
    assert_selected(&out, best, wanted);
    free(best);
    sparse_drop(&out);
}

/* ranked: all n elements, the largest first. */
static void check_threshold(struct cpu_survey *survey, const float *x, uint64_t n,
    const struct ranked *ranked, float threshold)
{
    const struct reference r = reference_of(x, n, threshold);
    const bool squares = random_below(2) == 0;
    const struct survey_tail tail = survey_tail(&survey->base, threshold, squares);
    const uint64_t most = random_below(3) == 0 ? random_below(n + 1) : r.count;
    const uint64_t wanted = r.count < most ? r.count : most;
    struct sparse out = sparse_make(most);
    struct ranked *best = allocate(wanted, sizeof *best);
    memcpy(best, ranked, wanted * sizeof *best);
    qsort(best, wanted, sizeof *best, by_position);

    assert_int_equal(survey_count(&survey->base, threshold, n), r.count);
    assert_int_equal(
        survey_count(&survey->base, threshold, most), r.count <= most ? r.count : most + 1);
    assert_int_equal(tail.count, r.count);
    assert_same_double(tail.sum_abs, r.sum_abs);
    assert_same_double(tail.sum_squares, squares ? r.sum_squares : 0);
    assert_same_bits(&tail.least, &r.least, 1);
    survey_take(&survey->base, threshold, most, &out);
    assert_int_equal(out.count, wanted);
    assert_selected(&out, best, wanted);
    free(best);
    sparse_drop(&out);
}

/* The rank-th of a sample, by sorting it. */
static void check_ranked(struct cpu_survey *survey, const float *x, uint64_t n)
{
    const uint64_t stride = 1 + random_below(random_below(2) == 0 ? 4 : n);
    const uint64_t start = random_below(n);
    uint64_t count = 0;
    struct ranked *sample = allocate(n, sizeof *sample);
    for (uint64_t i = start; i < n; i += stride) {
        sample[count++] = (struct ranked){.magnitude = fabs((double)x[i]), .position = (uint32_t)i};
    }
    qsort(sample, count, sizeof *sample, by_rank);
    const uint64_t rank = 1 + random_below(count);
    assert_same_double(
        (double)survey_ranked(&survey->base, start, stride, rank), sample[rank - 1].magnitude);
    free(sample);
}

static float random_threshold(const float *x, uint64_t n)
{
    const float near = n > 0 ? fabsf(x[random_below(n)]) : 1;
    switch (random_below(6)) {
    case 0: return FLT_MAX;
    case 1: return FLT_TRUE_MIN;
    case 2: return nextafterf(near, INFINITY);
    case 3: return near * 0.5f > 0 ? near * 0.5f : 1;
    default: return near > 0 ? near : 1;
    }
}

static void check_questions(struct cpu_survey *survey, const float *x, uint64_t n)
{
    uint64_t *map = reference_map(1, n, 1);
    struct ranked *ranked = reference_list(x, map, n);
    qsort(ranked, n, sizeof *ranked, by_rank);
    for (int question = 0; question < 6; question++) {
        check_threshold(survey, x, n, ranked, random_threshold(x, n));
        check_top(survey, ranked, n, random_count(n));
    }
    free(ranked);
    free(map);
}

static void check_read(uint64_t n)
{
    float *x = input_make(n);
    void *scratch = allocate(1, survey_scratch(n));
    for (size_t i = 0; stats_table[i] != NULL && stats_table[i]->supported(); i++) {
        struct cpu_survey survey;
        survey_read(&survey, stats_table[i], SURVEY_ALL, x, n, scratch);
        check_stats(&survey, x, n);
        check_need(&survey, stats_table[i], SURVEY_MAGNITUDES);
        check_need(&survey, stats_table[i], SURVEY_SQUARES);
        check_need(&survey, stats_table[i], SURVEY_MEANS);
        check_need(&survey, stats_table[i], SURVEY_MOMENTS);
        check_need(&survey, stats_table[i], SURVEY_SPREAD);
        check_need(&survey, stats_table[i], (unsigned)random_below(SURVEY_ALL + 1));
        check_questions(&survey, x, n);
        if (n > 0) {
            check_ranked(&survey, x, n);
        }
    }
    free(scratch);
    free(x);
}

static void test_read(void **state)
{
    (void)state;
    check_read(0);
    for (int round = 0; round < 1000; round++) {
        check_read(random_below(100));
    }
    for (int round = 0; round < 100; round++) {
        check_read(random_below(1000));
        check_read(4090 + random_below(12));
    }
    for (int round = 0; round < 10; round++) {
        check_read(100000 - random_below(9));
    }
}

/* Products of mantissas at the ends of their range do not overflow, nor do exponents. */
static void test_extremes(void **state)
{
    (void)state;
    enum { N = 40000 };
    static const float values[] = {
        1, 0x1.fffffep0f, 0x1.fffffep127f, -FLT_MIN, FLT_TRUE_MIN, 0x1.fffffcp-127f};
    float *x = allocate(N, sizeof *x);
    void *scratch = allocate(1, survey_scratch(N));
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        struct cpu_survey survey;
        for (unsigned i = 0; i < N; i++) {
            x[i] = values[v];
        }
        survey_read(&survey, NULL, SURVEY_ALL, x, N, scratch);
        check_stats(&survey, x, N);
        const double exact = N * log(fabs((double)values[v]));
        assert_true(fabs(survey.base.stats.sum_log - exact) <= 1e-14 * fabs(exact));
    }
    free(scratch);
    free(x);
}

/* For any input the answers are consistent. */
static void test_not_finite(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        const uint64_t n = 1 + random_below(300);
        float *x = pattern_make(NOT_FINITE, n);
        void *scratch = allocate(1, survey_scratch(n));
        struct cpu_survey survey;
        struct sparse out = sparse_make(n);
        uint64_t count = 0;
        for (uint64_t i = 0; i < n; i++) {
            count += !(fabsf(x[i]) < 2);
        }
        survey_read(&survey, NULL, SURVEY_ALL, x, n, scratch);
        assert_int_equal(survey_count(&survey.base, 2, n), count);
        assert_int_equal(survey_tail(&survey.base, 2, true).count, count);
        survey_take(&survey.base, 2, n, &out);
        assert_int_equal(out.count, count);
        sparse_drop(&out);
        free(scratch);
        free(x);
    }
}

static void test_logarithm(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        const double mantissa = 1.0 + (double)(random_next() >> 12) * 0x1p-52;
        const int64_t exponent = round % 2 == 0 ? 0 : (int64_t)random_below(2000) - 1000;
        const struct stats stats = {.mantissa = mantissa, .exponent = exponent};
        const double exact = log(mantissa) + (double)exponent * log(2.0);
        assert_true(fabs(stats_log(&stats) - exact) <= 0x1p-51 * (fabs(exact) + 0x1p-1));
    }
}

static void test_threshold(void **state)
{
    (void)state;
    static const double odd[] = {0, -0.0, 1e-60, 0x1p-149, 0x1.8p-149, 0x1p-126, 1, 0x1.fffffep127,
        0x1.fffffefp127, 0x1p128, 1e300};
    for (int round = 0; round < 20000; round++) {
        const double wanted =
            round < 22 ? odd[round / 2]
                       : (double)random_magnitude() * (1.0 + (double)random_below(3) * 0x1p-30);
        const bool strict = round % 2 != 0;
        const float t = survey_threshold(wanted, strict);
        const float around[] = {nextafterf(t, 0), t, nextafterf(t, INFINITY), (float)wanted};
        assert_true(t >= 0 && !signbit(t));
        for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
            const double x = fabs((double)around[i]);
            if (x <= FLT_MAX) {
                assert_int_equal(x >= (double)t, strict ? x > wanted : x >= wanted);
            }
        }
    }
    assert_true(survey_threshold(-1, true) == 0);
    assert_true(isinf(survey_threshold(NAN, false)));
    assert_true(isinf(survey_threshold(INFINITY, true)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_logarithm),
        cmocka_unit_test(test_threshold),
    };
    return cmocka_run_group_tests_name("survey", tests, NULL, NULL);
}
