/* The survey of a fused pass, compared with adding element by element and surveying by reading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/stats.h"
#include "kernels/cpu/survey.h"
#include "tests/host/fused_run.h"
#include "tests/host/survey_read.h"
#include "tests/unit/arrays.h"
#include "tests/unit/push.h"
#include "tests/unit/select_reference.h"

/* One input and its expected result. */
struct expectation {
    uint64_t n;
    struct push push;
    float *before;
    float *after;
    double sums[2];
    uint64_t left_out;
    struct cpu_survey survey; /* made by reading the expected residual */
    void *scratch;
};

static struct expectation expect(uint64_t n, float *residual, struct push push)
{
    struct expectation e = {.n = n, .push = push, .before = residual, .sums = {3.0, -5.0}};
    float *added = allocate(n, sizeof *added);
    e.after = allocate(n, sizeof *e.after);
    memcpy(e.after, e.before, n * sizeof *e.after);
    e.left_out = reference_accumulate(e.after, added, &e.push);
    reference_ledger(added, n, e.sums);
    free(added);
    e.scratch = allocate(1, survey_scratch(n));
    survey_read(&e.survey, stats_table[0], SURVEY_ALL, e.after, n, e.scratch);
    return e;
}

static void expect_drop(struct expectation *e)
{
    free(e->before);
    free(e->after);
    free(e->scratch);
    push_drop(&e->push);
}

/* Memory of exactly the documented sizes. */
struct bench {
    struct fused pass;
    struct cpu_survey survey;
    double sums[2];
};

static void bench_resize(struct bench *bench, uint64_t n)
{
    const size_t size = fused_rule_scratch(n, bench->pass.k, bench->pass.ranges);
    free(bench->pass.scratch);
    bench->pass.scratch = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(bench->pass.scratch);
    memset(bench->pass.scratch, 0xab, size);
}

static struct bench bench_make(const struct expectation *e, uint64_t k, float guess)
{
    struct bench bench = {.sums = {3.0, -5.0}};
    bench.pass = (struct fused){.residual = allocate(e->n, sizeof(float)),
        .view = {.fibres = 1, .length = e->n, .stride = 1},
        .k = k,
        .rule = true,
        .need = SURVEY_ALL,
        .guess = guess,
        .gradients = (const void *const *)e->push.gradients,
        .count = e->push.ranks,
        .dtype = e->push.dtype,
        .stamp = 1 + random_below(5),
        .progress = allocate(1, progress_size(e->n)),
        .ranges = 1 + (unsigned)random_below(4)};
    memcpy(bench.pass.residual, e->before, e->n * sizeof(float));
    bench_resize(&bench, e->n);
    return bench;
}

static void bench_drop(struct bench *bench)
{
    free(bench->pass.residual);
    free(bench->pass.progress);
    free(bench->pass.scratch);
}

static void bench_run(struct bench *bench, const struct expectation *e)
{
    static struct journal journal;
    assert_int_equal(fused_run(&bench->pass, &journal, bench->sums), e->left_out);
    assert_same_bits(bench->pass.residual, e->after, e->n);
    assert_memory_equal(bench->sums, e->sums, sizeof e->sums);
    fused_survey(&bench->pass, &bench->survey);
}

static void assert_same_list(const struct sparse *a, const struct sparse *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->position, b->position, a->count * sizeof *a->position);
    assert_same_bits(a->value, b->value, a->count);
}

static void assert_same_tail(const struct survey_tail *a, const struct survey_tail *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(&a->sum_abs, &b->sum_abs, sizeof a->sum_abs);
    assert_memory_equal(&a->sum_squares, &b->sum_squares, sizeof a->sum_squares);
    assert_same_bits(&a->least, &b->least, 1);
}

static void assert_same_stats(const struct survey_stats *a, const struct survey_stats *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->zeros, b->zeros);
    assert_memory_equal(&a->sum, &b->sum, sizeof a->sum);
    assert_memory_equal(&a->sum_abs, &b->sum_abs, sizeof a->sum_abs);
    assert_memory_equal(&a->sum_squares, &b->sum_squares, sizeof a->sum_squares);
    assert_memory_equal(&a->sum_log, &b->sum_log, sizeof a->sum_log);
    assert_same_bits(&a->most, &b->most, 1);
}

/* Asks both the same random question. */
static void check_question(struct cpu_survey *found, struct cpu_survey *expected)
{
    const uint64_t n = expected->base.stats.n;
    const uint64_t k = random_below(3) == 0 ? random_count(n) : random_below(n / 50 + 2);
    const float value = n > 0 ? expected->x[random_below(n)] : 1;
    const float share = random_below(2) == 0 ? 1 : (float)random_below(100) / 100;
    const float threshold =
        share * (random_below(2) == 0 ? expected->base.stats.most : fabsf(value));
    struct sparse a = sparse_make(k);
    struct sparse b = sparse_make(k);
    survey_top(&found->base, k, &a);
    survey_top(&expected->base, k, &b);
    assert_same_list(&a, &b);
    const bool squares = random_below(2) == 0;
    if (threshold > 0) {
        const struct survey_tail ends[2] = {survey_tail(&found->base, threshold, squares),
            survey_tail(&expected->base, threshold, squares)};
        assert_same_tail(&ends[0], &ends[1]);
        assert_int_equal(
            survey_count(&found->base, threshold, k), survey_count(&expected->base, threshold, k));
        survey_take(&found->base, threshold, k, &a);
        survey_take(&expected->base, threshold, k, &b);
        assert_same_list(&a, &b);
    }
    sparse_drop(&a);
    sparse_drop(&b);
}

static void check_ranked(struct cpu_survey *found, struct cpu_survey *expected)
{
    const uint64_t n = expected->base.stats.n;
    const uint64_t stride = 1 + random_below(random_below(2) == 0 ? 5 : n);
    const uint64_t start = random_below(n);
    const uint64_t count = (n - start - 1) / stride + 1;
    const uint64_t rank = 1 + random_below(random_below(2) == 0 ? count : count / 50 + 1);
    const float a = survey_ranked(&found->base, start, stride, rank);
    const float b = survey_ranked(&expected->base, start, stride, rank);
    assert_same_bits(&a, &b, 1);
}

/* Runs parts in an unusual order, as many as possible. */
static void run_backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    for (unsigned p = parts; p > 0; p--) {
        part(arg, p - 1, caller);
    }
}

static const struct parallel backwards = {.run = run_backwards, .threads = 3, .eager = true};

static void check_answers(struct bench *bench, struct expectation *e)
{
    if (random_below(2) == 0) {
        bench->survey.parallel = backwards;
    }
    assert_same_stats(&bench->survey.base.stats, &e->survey.base.stats);
    if (e->n > 0) {
        check_ranked(&bench->survey, &e->survey);
    }
    for (int question = 0; question < 4; question++) {
        check_question(&bench->survey, &e->survey);
    }
}

static void check_pass(struct expectation *e, uint64_t k, float guess)
{
    struct bench bench = bench_make(e, k, guess);
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        bench.pass.ops = chunk_table[i]->supported() ? chunk_table[i] : bench.pass.ops;
    }
    for (size_t i = 0; stats_table[i] != NULL && stats_table[i]->supported(); i++) {
        /* From the second time on it is a repetition, perhaps without the gradients and with
         * another guess. */
        bench.pass.surveyed = stats_table[i];
        bench_run(&bench, e);
        check_answers(&bench, e);
        bench.pass.ranges = 1 + (unsigned)random_below(5);
        bench.pass.count = random_below(2) == 0 ? 0 : e->push.ranks;
        bench.pass.guess = random_below(2) == 0 ? guess : guess * 0.5f;
        bench_resize(&bench, e->n);
    }
    bench_drop(&bench);
}

/* A statistic that is not needed is 0, and the others are as expected. */
static void check_need(struct expectation *e)
{
    struct bench bench = bench_make(e, 1 + random_below(10), 0);
    const struct survey_stats all = e->survey.base.stats;
    struct survey_stats sums = all;
    const struct survey_stats nothing = {.n = e->n};
    sums.sum = sums.sum_log = 0;
    bench.pass.need = SURVEY_SPREAD;
    bench_run(&bench, e);
    assert_same_stats(&bench.survey.base.stats, &sums);
    bench.pass.need = SURVEY_NO_STATS;
    bench_run(&bench, e);
    assert_same_stats(&bench.survey.base.stats, &nothing);
    bench_drop(&bench);
}

static struct expectation expect_random(uint64_t n, enum pattern pattern)
{
    const enum dtype dtype = (enum dtype)random_below(DTYPE_COUNT);
    const unsigned ranks = (unsigned)random_below(4);
    struct push push = push_make(dtype, ranks, n);
    for (unsigned r = 0; r < ranks && random_below(2) == 0; r++) {
        if (push.gradients[r] != NULL) {
            memset(push.gradients[r], 0, n * dtype_size(dtype));
        }
    }
    return expect(n, pattern_make(pattern == NOT_FINITE ? RANDOM : pattern, n), push);
}

static void check_random(uint64_t n)
{
    struct expectation e = expect_random(n, (enum pattern)random_below(PATTERN_COUNT));
    const float near = n > 0 ? fabsf(e.after[random_below(n)]) : 0;
    const float guess = random_below(3) == 0 ? 0 : near * (float)random_below(3) / 2;
    check_pass(&e, random_below(n / 8 + 2), guess);
    check_need(&e);
    expect_drop(&e);
}

static void test_small(void **state)
{
    (void)state;
    check_random(0);
    for (int round = 0; round < 1000; round++) {
        check_random(random_below(300));
    }
    for (int round = 0; round < 100; round++) {
        check_random(random_below(10000));
    }
}

static void test_large(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        check_random(65537 + random_below(35000));
    }
}

/* A good guess is answered from the candidates. A guess that is far too low drops some of them. */
static void test_guess(void **state)
{
    (void)state;
    enum { N = 300000, K = 600 };
    struct expectation e = expect(N, pattern_make(RANDOM, N), (struct push){.n = N});
    struct sparse top = sparse_make(K);
    survey_top(&e.survey.base, K, &top);
    float last = INFINITY;
    for (size_t i = 0; i < K; i++) {
        last = fminf(last, fabsf(top.value[i]));
    }
    const struct {
        float guess;
        uint64_t k;
        bool met; /* the K best are among the candidates */
        bool all; /* none of them was dropped */
    } cases[] = {{last, K, true, true}, {0, K, true, true}, {last * 0.99f, K, true, true},
        {0x1p-100f, K, true, false}, {last * 1.01f, K, false, true}, {last, 0, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench = bench_make(&e, cases[i].k, cases[i].guess);
        bench_run(&bench, &e);
        assert_int_equal(bench.survey.complete <= bits_of(last), cases[i].met);
        assert_int_equal(bench.survey.complete == bench.pass.least, cases[i].all);
        check_answers(&bench, &e);
        bench_drop(&bench);
    }
    sparse_drop(&top);
    expect_drop(&e);
}

/* Lists of ranges that are complete from different magnitudes on. The last range's list is full. */
static void test_uneven(void **state)
{
    (void)state;
    enum { N = 200000 };
    const struct push none = push_make(DTYPE_F32, 0, N);
    float *x = allocate(N, sizeof *x);
    for (int i = 0; i < N; i++) {
        x[i] = (i < N / 2 ? 1.0f : 10.0f) * (1 + fabsf(random_value()));
    }
    struct expectation e = expect(N, x, none);
    struct bench bench = bench_make(&e, 2000, 1.8f);
    bench.pass.ranges = 2;
    bench_resize(&bench, N);
    bench_run(&bench, &e);
    assert_true(bench.pass.complete[0] < bench.pass.complete[1]);
    for (uint64_t stride = 2; stride < 200; stride += 7) {
        for (uint64_t rank = 1; rank < N / 2 / stride; rank += 1 + rank / 4) {
            const float found = survey_ranked(&bench.survey.base, 1, stride, rank);
            const float expected = survey_ranked(&e.survey.base, 1, stride, rank);
            assert_same_bits(&found, &expected, 1);
        }
    }
    for (int question = 0; question < 20; question++) {
        check_answers(&bench, &e);
    }
    bench_drop(&bench);
    expect_drop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_guess),
        cmocka_unit_test(test_uneven),
    };
    return cmocka_run_group_tests_name("rule", tests, NULL, NULL);
}
