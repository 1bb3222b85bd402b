/* The fused pass against adding element by element and sorting, for every implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "tests/host/fused_run.h"
#include "tests/unit/arrays.h"
#include "tests/unit/push.h"
#include "tests/unit/select_reference.h"

/* One input and its expected result. */
struct expectation {
    struct view view;
    uint64_t n;
    uint64_t k;
    bool per_fibre;
    struct push push;
    float *before; /* the residual */
    float *after;  /* with the gradients */
    float *added;  /* the sum of the finite gradients */
    uint64_t left_out;
    double sums[2];
    uint64_t entries;
    struct ranked *list; /* `entries` of the selected elements, in order */
};

static void expect_list(struct expectation *e)
{
    const uint64_t span = e->per_fibre ? e->view.length : e->n;
    const uint64_t spans = e->per_fibre ? e->view.fibres : 1;
    const uint64_t wanted = e->k < span ? e->k : span;
    uint64_t *map = reference_map(e->view.fibres / e->view.stride, e->view.length, e->view.stride);
    struct ranked *all = reference_list(e->after, map, e->n);
    e->entries = spans * wanted;
    e->list = allocate(e->entries, sizeof *e->list);
    for (uint64_t s = 0; s < spans && wanted > 0; s++) {
        reference_select(all + s * span, span, wanted);
        memcpy(e->list + s * wanted, all + s * span, wanted * sizeof *e->list);
    }
    free(all);
    free(map);
}

/* Takes over residual and push. */
static struct expectation expect(
    struct view view, uint64_t k, bool per_fibre, float *residual, struct push push)
{
    struct expectation e = {.view = view,
        .n = view_size(&view),
        .k = k,
        .per_fibre = per_fibre,
        .push = push,
        .before = residual,
        .sums = {3.0, -5.0}};
    e.after = allocate(e.n, sizeof *e.after);
    e.added = allocate(e.n, sizeof *e.added);
    memcpy(e.after, e.before, e.n * sizeof *e.after);
    e.left_out = reference_accumulate(e.after, e.added, &e.push);
    reference_ledger(e.added, e.n, e.sums);
    expect_list(&e);
    return e;
}

static void expect_drop(struct expectation *e)
{
    free(e->before);
    free(e->after);
    free(e->added);
    free(e->list);
    push_drop(&e->push);
}

/* Memory of exactly the documented sizes, so that the address sanitizer sees every overrun. */
struct bench {
    struct fused pass;
    struct journal *journal;
    struct sparse out;
    double sums[2];
};

/* A clock that pleases itself. */
static uint64_t random_ns(void)
{
    return random_below(1000);
}

/* What the passes below have learned of this machine: nothing, or the one or the other. */
static struct ahead *bench_learned(void)
{
    static struct ahead learned = {.now_ns = random_ns};
    static const int points[] = {0, -16, 16};
    atomic_store(&learned.of[AHEAD_F32].points, points[random_below(3)]);
    return random_below(4) == 0 ? NULL : &learned;
}

static struct bench bench_make(
    const struct expectation *e, const struct chunk_ops *ops, unsigned ranges)
{
    struct bench bench = {.sums = {3.0, -5.0}, .out = sparse_make(e->entries)};
    const size_t scratch = fused_scratch(&e->view, e->k, e->per_fibre, ranges);
    bench.pass = (struct fused){.residual = allocate(e->n, sizeof(float)),
        .view = e->view,
        .k = e->k,
        .per_fibre = e->per_fibre,
        .gradients = (const void *const *)e->push.gradients,
        .count = e->push.ranks,
        .dtype = e->push.dtype,
        .stamp = 1 + random_below(5),
        .progress = allocate(1, progress_size(e->n)),
        .ranges = ranges,
        .ops = ops,
        .scratch = aligned_alloc(64, (scratch + 63) / 64 * 64)};
    assert_non_null(bench.pass.scratch);
    memset(bench.pass.scratch, 0xab, scratch);
    memcpy(bench.pass.residual, e->before, e->n * sizeof(float));
    bench.journal = aligned_alloc(64, sizeof *bench.journal);
    assert_non_null(bench.journal);
    memset(bench.journal, 0, sizeof *bench.journal);
    if (random_below(2) == 0) {
        bench.pass.hints = allocate(e->view.fibres + 1, sizeof(float));
        for (uint64_t f = 0; f <= e->view.fibres; f++) {
            bench.pass.hints[f] = random_below(3) == 0 ? 0.0f : random_value() + 0.5f;
        }
    }
    return bench;
}

static void bench_drop(struct bench *bench)
{
    free(bench->pass.residual);
    free(bench->pass.progress);
    free(bench->pass.scratch);
    free(bench->pass.hints);
    free(bench->journal);
    sparse_drop(&bench->out);
}

static void run_backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    while (parts-- > 0) {
        part(arg, parts, caller);
    }
}

/* Runs the pass, its ranges in a random rotation, its last part alone or shared. */
static uint64_t bench_run(struct bench *bench)
{
    struct fused *pass = &bench->pass;
    const unsigned shift = (unsigned)random_below(pass->ranges);
    pass->out = &bench->out;
    pass->parallel = (struct parallel){.run = random_below(2) == 0 ? run_backwards : NULL,
        .threads = 2,
        .eager = true,
        .ahead = bench_learned()};
    if (random_below(3) == 0) {
        return fused_run(pass, bench->journal, bench->sums);
    }
    fused_start(pass, bench->sums);
    for (unsigned r = 0; r < pass->ranges; r++) {
        fused_range(pass, (r + shift) % pass->ranges, random_below(2) == 0 ? bench->journal : NULL);
    }
    return fused_finish(pass, bench->sums);
}

static void assert_as_expected(const struct bench *bench, const struct expectation *e)
{
    assert_same_bits(bench->pass.residual, e->after, e->n);
    assert_memory_equal(bench->sums, e->sums, sizeof e->sums);
    if (e->k > 0) {
        assert_int_equal(bench->out.count, e->entries);
        assert_selected(&bench->out, e->list, e->entries);
    }
}

static void check_withdraw(struct bench *bench, const struct expectation *e)
{
    float *expected = allocate(e->n, sizeof *expected);
    for (uint64_t i = 0; i < e->n; i++) {
        expected[i] = e->after[i] - e->added[i];
    }
    bench->pass.k = 0;
    bench->pass.withdraw = true;
    bench->pass.stamp++;
    assert_int_equal(bench_run(bench), e->left_out);
    assert_same_bits(bench->pass.residual, expected, e->n);
    double sums[2] = {e->sums[0], e->sums[1]};
    for (uint64_t i = 0; i < e->n; i++) {
        e->added[i] = -e->added[i];
    }
    reference_ledger(e->added, e->n, sums);
    for (uint64_t i = 0; i < e->n; i++) {
        e->added[i] = -e->added[i];
    }
    assert_memory_equal(bench->sums, sums, sizeof sums);
    free(expected);
}

static void check_pass(const struct expectation *e, const struct chunk_ops *ops)
{
    struct bench bench = bench_make(e, ops, 1 + (unsigned)random_below(4));
    assert_int_equal(bench_run(&bench), e->left_out);
    assert_as_expected(&bench, e);

    /* A repetition, perhaps with another number of workers, and without the gradients. */
    const unsigned ranges = 1 + (unsigned)random_below(bench.pass.ranges);
    bench.pass.ranges = ranges;
    bench.pass.count = random_below(2) == 0 ? 0 : bench.pass.count;
    assert_int_equal(bench_run(&bench), e->left_out);
    assert_as_expected(&bench, e);

    bench.pass.count = e->push.ranks;
    check_withdraw(&bench, e);
    bench_drop(&bench);
}

static void check_all(struct expectation e)
{
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        if (chunk_table[i]->supported()) {
            check_pass(&e, chunk_table[i]);
        }
    }
    expect_drop(&e);
}

/* ---- inputs ---- */

/* A residual with a pattern, and gradients that leave it visible: often none, or only zeros. */
static struct expectation expect_random(
    struct view view, uint64_t k, bool per_fibre, enum pattern pattern)
{
    const uint64_t n = view_size(&view);
    const enum dtype dtype = (enum dtype)random_below(DTYPE_COUNT);
    const unsigned ranks = (unsigned)random_below(4);
    float *residual = pattern_make(pattern, n);
    struct push push = push_make(dtype, ranks, n);
    if (random_below(2) == 0) {
        for (unsigned r = 0; r < ranks; r++) {
            if (push.gradients[r] != NULL) {
                memset(push.gradients[r], 0, n * dtype_size(dtype));
            }
        }
    }
    /* The pattern is the gradient. */
    if (dtype == DTYPE_F32 && ranks == 1 && push.gradients[0] != NULL && random_below(2) == 0) {
        memcpy(push.gradients[0], residual, n * sizeof(float));
        memset(residual, 0, n * sizeof(float));
    }
    return expect(view, k, per_fibre, residual, push);
}

static void check_random(uint64_t outer, uint64_t length, uint64_t stride)
{
    const struct view view = {.fibres = outer * stride, .length = length, .stride = stride};
    const bool per_fibre = random_below(2) == 0;
    const uint64_t span = per_fibre ? length : view_size(&view);
    /* Mostly sparse, because the pass selects only that. */
    const uint64_t k = random_below(3) == 0 ? random_count(span) : random_below(span / 8 + 2);
    check_all(expect_random(view, k, per_fibre, (enum pattern)random_below(PATTERN_COUNT)));
}

static void test_small(void **state)
{
    (void)state;
    for (int round = 0; round < 1500; round++) {
        check_random(random_below(5), random_below(70), 1 + random_below(3));
    }
    for (int round = 0; round < 300; round++) {
        check_random(1 + random_below(5), random_below(1000), 1);
        check_random(1, random_below(9000), 1);
    }
}

static void test_rows(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        const uint64_t length = 120 + random_below(1500);
        const struct view view = {.fibres = 1 + random_below(12), .length = length, .stride = 1};
        check_all(expect_random(
            view, 1 + random_below(length / 8), true, (enum pattern)random_below(PATTERN_COUNT)));
    }
    for (int round = 0; round < 12; round++) { /* rows longer than a chunk */
        const struct view view = {
            .fibres = 1 + random_below(4), .length = 4000 + random_below(20000), .stride = 1};
        check_all(expect_random(view, 1 + random_below(200), true, RANDOM));
    }
}

static void test_bracket(void **state)
{
    (void)state;
    for (int round = 0; round < 25; round++) {
        for (int pattern = 0; pattern < PATTERN_COUNT; pattern++) {
            const uint64_t n = 16385 + random_below(9000);
            const struct view view = {.fibres = 1, .length = n, .stride = 1};
            check_all(expect_random(view, 1 + random_below(n / 8), false, (enum pattern)pattern));
        }
    }
}

static void test_large(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        check_random(1, 100000 - random_below(9), 1);
    }
    check_random(300, 300, 1);
    check_random(10, 1000, 9);
}

/* The inputs take the paths for which they are made. */
static void test_modes(void **state)
{
    (void)state;
    static const struct {
        struct view view;
        uint64_t k;
        bool per_fibre;
        enum fused_mode mode;
    } cases[] = {
        {{1, 100000, 1}, 1000, false, FUSED_BRACKET},
        {{1, 100000, 1}, 50000, false, FUSED_AFTER},
        {{1, 4096, 1}, 40, false, FUSED_ROWS},
        {{8, 512, 1}, 40, false, FUSED_ROWS},
        {{1, 15, 1}, 1, false, FUSED_AFTER},
        {{100, 1000, 1}, 10, true, FUSED_ROWS},
        {{100, 1000, 10}, 10, true, FUSED_SLABS},
        {{100, 1000, 1}, 1000, false, FUSED_BRACKET},
        {{100, 1000, 1}, 0, true, FUSED_NOTHING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *residual = pattern_make(RANDOM, view_size(&cases[i].view));
        struct push push = {.dtype = DTYPE_F32, .n = view_size(&cases[i].view)};
        struct expectation e =
            expect(cases[i].view, cases[i].k, cases[i].per_fibre, residual, push);
        struct bench bench = bench_make(&e, NULL, 2);
        (void)bench_run(&bench);
        assert_int_equal(bench.pass.mode, cases[i].mode);
        assert_as_expected(&bench, &e);
        assert_true(strcmp(bench.pass.ops->name, chunk_best()->name) == 0);
        bench_drop(&bench);
        expect_drop(&e);
    }
}

/* The sample contains the large elements only, so there are fewer candidates than wanted. */
static void test_misled_sample(void **state)
{
    (void)state;
    enum { N = 131072, K = 8000 };
    const struct view view = {.fibres = 1, .length = N, .stride = 1};
    float *residual = pattern_make(RANDOM, N);
    for (uint64_t i = 0; i < N; i++) {
        residual[i] += i / 64 % 32 == 16 ? 100.0f : 0.0f; /* the blocks that the sample reads */
    }
    struct expectation e =
        expect(view, K, false, residual, (struct push){.dtype = DTYPE_F32, .n = N});
    struct bench bench = bench_make(&e, NULL, 1);
    float *const own = bench.pass.hints; /* one of those at random may be right */
    bench.pass.hints = NULL;
    (void)bench_run(&bench);
    bench.pass.hints = own;
    assert_int_equal(bench.pass.mode, FUSED_BRACKET);
    assert_true(bench.pass.candidate[0].count < K);
    assert_as_expected(&bench, &e);
    bench_drop(&bench);
    expect_drop(&e);
}

/* The bound of the last turn: almost right, too high for a small sample to show, or useless. */
static void test_hints(void **state)
{
    (void)state;
    enum { N = 131072, K = 200 };
    static const float useless[] = {1e-30f, -1.0f, INFINITY, NAN, 0x1p-149f};
    const struct view view = {.fibres = 1, .length = N, .stride = 1};
    struct expectation e =
        expect(view, K, false, pattern_make(RANDOM, N), (struct push){.dtype = DTYPE_F32, .n = N});
    float threshold = INFINITY;
    for (uint64_t i = 0; i < e.entries; i++) {
        const float magnitude = fabsf(e.after[e.list[i].position]);
        threshold = magnitude < threshold ? magnitude : threshold;
    }
    for (size_t i = 0; i < 2 + sizeof useless / sizeof *useless; i++) {
        struct bench bench = bench_make(&e, NULL, 1 + (unsigned)random_below(3));
        float hint = i == 0 ? threshold : i == 1 ? 2 * threshold : useless[i - 2];
        float *const own = bench.pass.hints;
        bench.pass.hints = &hint;
        bench.pass.out = &bench.out;
        (void)fused_run(&bench.pass, bench.journal, bench.sums);
        assert_int_equal(bench.pass.mode, FUSED_BRACKET);
        assert_as_expected(&bench, &e);
        /* The bound that it keeps separates the selected elements from the others: it is at most
         * the least of them. */
        assert_true(i == 1 ? hint == 0 : hint <= threshold && hint > 0.9f * threshold);
        bench.pass.hints = own;
        bench_drop(&bench);
    }
    expect_drop(&e);
}

/* More ranges than chunks, and the most possible. */
static void test_many_ranges(void **state)
{
    (void)state;
    static const struct view views[] = {
        {1, 20000, 1}, {1, 500000, 1}, {70, 1024, 1}, {3, 30000, 1}};
    for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
        const bool per_fibre = views[v].fibres > 1;
        struct expectation e = expect_random(views[v], views[v].length / 100, per_fibre, RANDOM);
        struct bench bench = bench_make(&e, NULL, FUSED_MAX_RANGES);
        assert_int_equal(bench_run(&bench), e.left_out);
        assert_as_expected(&bench, &e);
        bench_drop(&bench);
        expect_drop(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bracket),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_misled_sample),
        cmocka_unit_test(test_hints),
        cmocka_unit_test(test_many_ranges),
    };
    return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
