/* The passes that add more than plain gradients (scaled, with momentum) or that take values out.
 * Compared with the definitions in double precision, rounded where floats round. */
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

#include "kernels/base/convert.h"
#include "kernels/base/parallel.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/momentum.h"
#include "kernels/cpu/stats.h"
#include "tests/host/fused_run.h"
#include "tests/unit/arrays.h"
#include "tests/unit/push.h"
#include "tests/unit/select_reference.h"

/* Memory of exactly the documented sizes. */
struct bench {
    struct fused pass;
    struct journal *journal;
    struct sparse out;
    double sums[2];
};

static const struct chunk_ops *random_ops(void)
{
    size_t count = 0;
    while (chunk_table[count] != NULL && chunk_table[count]->supported()) {
        count++;
    }
    return chunk_table[random_below(count)];
}

static struct bench bench_make(uint64_t n, uint64_t k)
{
    const struct view view = {.fibres = 1, .length = n, .stride = 1};
    const size_t scratch = fused_scratch(&view, k, false, 3);
    struct bench bench = {.out = sparse_make(k)};
    bench.pass = (struct fused){.residual = pattern_make(RANDOM, n),
        .view = view,
        .k = k,
        .stamp = 1,
        .progress = allocate(1, progress_size(n)),
        .ranges = 3,
        .ops = random_ops(),
        .scratch = aligned_alloc(64, (scratch + 63) / 64 * 64 + 64)};
    assert_non_null(bench.pass.scratch);
    bench.journal = aligned_alloc(64, sizeof *bench.journal);
    assert_non_null(bench.journal);
    memset(bench.journal, 0, sizeof *bench.journal);
    return bench;
}

static void bench_drop(struct bench *bench)
{
    free(bench->pass.residual);
    free(bench->pass.progress);
    free(bench->pass.scratch);
    free(bench->pass.momentum);
    free(bench->journal);
    sparse_drop(&bench->out);
}

/* Runs the pass twice, as a retry does the second time; both leave the same. */
static uint64_t bench_run(struct bench *bench)
{
    struct fused pass = bench->pass;
    pass.out = pass.k > 0 ? &bench->out : NULL;
    const uint64_t left_out = fused_run(&pass, bench->journal, bench->sums);
    pass = bench->pass;
    pass.out = pass.k > 0 ? &bench->out : NULL;
    pass.count = random_below(2) == 0 ? 0 : pass.count;
    pass.ranges = 1 + (unsigned)random_below(pass.ranges);
    assert_int_equal(fused_run(&pass, bench->journal, bench->sums), left_out);
    return left_out;
}

static float *copy_of(const float *x, uint64_t n)
{
    float *copy = allocate(n, sizeof *copy);
    memcpy(copy, x, n * sizeof *copy);
    return copy;
}

/* The sum of the gradients of one element, scaled; NaN if it is not finite. */
static float scaled_sum(const struct push *push, uint64_t i, float scale)
{
    float sum = -0.0f;
    for (unsigned r = 0; r < push->ranks; r++) {
        sum += push->gradients[r] != NULL ? element_of(push->gradients[r], push->dtype, i) : -0.0f;
    }
    const bool finite = fabs((double)sum) < 0x1p120;
    sum = (float)((double)sum * (double)(scale == 0 ? 1 : scale));
    return finite && fabs((double)sum) < 0x1p120 ? sum : NAN;
}

/* A product or a sum of two floats has no rounding in double, or a harmless one. Rounding it once
 * more gives the bits of the float operation. */
static float product(float a, float b)
{
    return (float)((double)a * (double)b);
}

static float plus(float a, float b)
{
    return (float)((double)a + (double)b);
}

/* The growth of the residual, and the momentum. */
static float reference_step(const struct fused *pass, float g, float *m)
{
    if (pass->momentum == NULL) {
        return isnan(g) ? -0.0f : g;
    }
    g = isnan(g) ? 0 : g;
    if (pass->nesterov) {
        *m = product(pass->mu, plus(*m, g));
        return plus(*m, g);
    }
    *m = plus(product(pass->mu, *m), g);
    return *m;
}

static struct push push_random(uint64_t n)
{
    struct push push =
        push_make((enum dtype)random_below(DTYPE_COUNT), (unsigned)random_below(4), n);
    for (unsigned r = 0; r < push.ranks && push.dtype == DTYPE_BF16; r++) {
        /* Below 2^100, so that momentum does not reach the limit. */
        for (uint64_t i = 0; push.gradients[r] != NULL && i < n; i++) {
            ((uint16_t *)push.gradients[r])[i] &= 0xf1ff;
        }
    }
    return push;
}

static void check_selection(const struct bench *bench)
{
    const struct fused *pass = &bench->pass;
    const uint64_t n = view_size(&pass->view);
    struct sparse expected = sparse_make(pass->k);
    void *scratch = allocate(1, select_scratch(n));
    select_top(pass->residual, &pass->view, pass->k, &expected, scratch);
    if (pass->k > 0) {
        assert_int_equal(bench->out.count, expected.count);
        assert_memory_equal(bench->out.position, expected.position, 4 * expected.count);
        assert_same_bits(bench->out.value, expected.value, expected.count);
    }
    free(scratch);
    sparse_drop(&expected);
}

static void assert_near(float found, float expected, double scale)
{
    if (!(fabs((double)found - (double)expected) <= 0x1p-22 * scale + 0x1p-140)) {
        fail_msg("%a, not %a (of %g)", (double)found, (double)expected, scale);
    }
}

/* Undoes the pass: residual and momentum are as before, to rounding. */
static void check_withdraw(
    struct bench *bench, const struct push *push, const float *v, const float *m)
{
    struct fused *pass = &bench->pass;
    const uint64_t n = view_size(&pass->view);
    float *v_after = copy_of(pass->residual, n);
    float *m_after = m != NULL ? copy_of(pass->momentum, n) : NULL;
    const double sums[2] = {bench->sums[0], bench->sums[1]};
    pass->k = 0;
    pass->withdraw = true;
    pass->stamp++;
    (void)bench_run(bench);
    for (uint64_t i = 0; i < n; i++) {
        const double g = fabs((double)scaled_sum(push, i, pass->scale));
        const double size = (isnan(g) ? 0 : g) + fabs((double)v[i]) + fabs((double)v_after[i]);
        if (m == NULL) {
            assert_near(pass->residual[i], v[i], size);
            continue;
        }
        const double moved = size + fabs((double)m[i]) + fabs((double)m_after[i]);
        assert_near(pass->residual[i], v[i], 2 * moved);
        if (pass->mu > 0) {
            assert_near(pass->momentum[i], m[i], 4 * moved / (double)pass->mu);
        } else {
            assert_true(pass->momentum[i] == 0);
        }
    }
    assert_true(isfinite(sums[0]) && isfinite(bench->sums[0]));
    free(v_after);
    free(m_after);
}

/* Takes one step, and sometimes withdraws it. */
static void check_step(struct bench *bench)
{
    struct fused *pass = &bench->pass;
    const uint64_t n = view_size(&pass->view);
    struct push push = push_random(n);
    float *v = copy_of(pass->residual, n);
    float *m = pass->momentum != NULL ? copy_of(pass->momentum, n) : NULL;
    float *v_expected = copy_of(v, n);
    float *m_expected = m != NULL ? copy_of(m, n) : NULL;
    float *added = allocate(n, sizeof *added);
    double sums[2] = {bench->sums[0], bench->sums[1]};
    uint64_t left_out = 0;
    for (uint64_t i = 0; i < n; i++) {
        const float g = scaled_sum(&push, i, pass->scale);
        left_out += isnan(g) ? 1 : 0;
        added[i] = reference_step(pass, g, m != NULL ? &m_expected[i] : NULL);
        v_expected[i] = plus(v[i], added[i]);
    }
    reference_ledger(added, n, sums);
    pass->gradients = (const void *const *)push.gradients;
    pass->count = push.ranks;
    pass->dtype = push.dtype;
    pass->stamp++;
    assert_int_equal(bench_run(bench), left_out);
    assert_same_bits(pass->residual, v_expected, n);
    if (m != NULL) {
        assert_same_bits(pass->momentum, m_expected, n);
    }
    assert_memory_equal(bench->sums, sums, sizeof sums);
    check_selection(bench);
    if (random_below(2) == 0) {
        const uint64_t k = pass->k;
        check_withdraw(bench, &push, v, m);
        pass->withdraw = false;
        pass->k = k;
    }
    free(v);
    free(m);
    free(v_expected);
    free(m_expected);
    free(added);
    push_drop(&push);
}

static void check_steps(uint64_t n, uint64_t k, bool momentum)
{
    static const float scales[] = {0, 1, 0.5f, 0x1.99999ap-4f, 1024, 0x1.5p-20f};
    static const float mus[] = {0.9f, 0.99f, 0.5f, 0};
    struct bench bench = bench_make(n, k);
    bench.pass.momentum = momentum ? allocate(n, sizeof(float)) : NULL;
    bench.pass.mu = mus[random_below(4)];
    bench.pass.nesterov = random_below(2) == 0;
    for (int step = 0; step < 3; step++) {
        bench.pass.scale = scales[random_below(6)];
        check_step(&bench);
    }
    bench_drop(&bench);
}

static void test_scale(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const uint64_t n = random_below(300);
        check_steps(n, random_count(n), false);
    }
    check_steps(9000, 90, false);
}

static void test_momentum(void **state)
{
    (void)state;
    for (int round = 0; round < 600; round++) {
        const uint64_t n = random_below(300);
        check_steps(n, random_count(n), true);
    }
    for (int round = 0; round < 20; round++) {
        const uint64_t n = 4000 + random_below(9000);
        check_steps(n, n / 100, true);
    }
    check_steps(100000, 1000, true);
}

/* The sample for the bracket takes account of the momentum to come. */
static void test_sample_with_momentum(void **state)
{
    (void)state;
    enum { N = 200000, K = 1000 };
    struct bench bench = bench_make(N, K);
    struct fused *pass = &bench.pass;
    float *gradient = pattern_make(RANDOM, N);
    const void *const gradients[] = {gradient};
    pass->momentum = pattern_make(RANDOM, N);
    for (unsigned i = 0; i < N; i++) {
        pass->momentum[i] *= 100;
    }
    pass->mu = 0.9f;
    pass->gradients = gradients;
    pass->count = 1;
    pass->out = &bench.out;
    (void)fused_run(pass, bench.journal, bench.sums);
    assert_int_equal(pass->mode, FUSED_BRACKET);
    size_t candidates = 0;
    for (unsigned r = 0; r < pass->ranges; r++) {
        assert_false(pass->of_list[r].overflow);
        candidates += pass->candidate[r].count;
    }
    assert_true(candidates >= K && candidates < 3 * K);
    check_selection(&bench);
    free(gradient);
    bench_drop(&bench);
}

/* A step of a pass with decay: what an element becomes, and what is lost of it. */
static float decayed(float decay, float v, float g, float *lost)
{
    const float gone = product(decay, v);
    const bool whole = !isnan(g) && fabs((double)plus(g, -gone)) < 0x1p120;
    *lost = whole ? gone : 0;
    return isnan(g) ? v : plus(v, whole ? plus(g, -gone) : g);
}

/* Sums of what came in, and of what was lost. */
struct accounts {
    double in[2], lost[2], weight;
};

static void note(struct accounts *accounts, uint64_t i, float g, float lost)
{
    for (int k = 0; k < 2; k++) {
        const double sign = k == 0 ? 1 : ledger_sign(i);
        accounts->in[k] += isnan(g) ? 0 : sign * (double)g;
        accounts->lost[k] += sign * (double)lost;
    }
    accounts->weight += (isnan(g) ? 0 : fabs((double)g)) + fabs((double)lost);
}

static void check_accounts(const struct bench *bench, const struct accounts *accounts)
{
    for (int k = 0; k < 2; k++) {
        /* The sums of earlier steps may be far larger than this step's values. */
        const double before = fabs(accounts->in[k]) + fabs(accounts->lost[k]);
        const double allowed = 0x1p-20 * accounts->weight + 0x1p-50 * before + 0x1p-120;
        assert_true(fabs(bench->sums[k] - accounts->in[k]) <= allowed);
        assert_true(fabs(bench->pass.decay.lost[k] - accounts->lost[k]) <= allowed);
    }
}

/* After a withdrawal the elements, and the sums, are as before, to rounding. What a decay of 1 took
 * does not come back. */
static void check_decay_withdrawn(
    struct bench *bench, const struct push *push, const float *v, const double lost[2])
{
    struct fused *pass = &bench->pass;
    const uint64_t n = view_size(&pass->view);
    const double kept = 1 - (double)pass->decay.share;
    double weight = 0;
    float *after = copy_of(pass->residual, n);
    pass->k = 0;
    pass->withdraw = true;
    pass->stamp++;
    (void)bench_run(bench);
    for (uint64_t i = 0; i < n; i++) {
        const double size = 2 * fabs((double)v[i]) + 2 * fabs((double)after[i]);
        const bool comes_back = kept > 0 || isnan(scaled_sum(push, i, pass->scale));
        weight += size;
        assert_near(
            pass->residual[i], comes_back ? v[i] : 0, kept > 0 ? 2 * size / kept : 4 * size);
    }
    for (int k = 0; k < 2 && kept > 0; k++) {
        const double allowed = 0x1p-20 * weight / kept + 0x1p-50 * fabs(lost[k]) + 0x1p-120;
        assert_true(fabs(pass->decay.lost[k] - lost[k]) <= allowed);
    }
    free(after);
}

static void check_decay_step(struct bench *bench, struct push *push)
{
    struct fused *pass = &bench->pass;
    const uint64_t n = view_size(&pass->view);
    const double lost[2] = {pass->decay.lost[0], pass->decay.lost[1]};
    struct accounts accounts = {.in = {bench->sums[0], bench->sums[1]}, .lost = {lost[0], lost[1]}};
    float *v = copy_of(pass->residual, n);
    float *expected = allocate(n, sizeof *expected);
    for (uint64_t i = 0; i < n; i++) {
        const float g = scaled_sum(push, i, pass->scale);
        float gone;
        expected[i] = decayed(pass->decay.share, v[i], g, &gone);
        note(&accounts, i, g, gone);
        accounts.weight += fabs((double)v[i]);
    }
    pass->gradients = (const void *const *)push->gradients;
    pass->count = push->ranks;
    pass->dtype = push->dtype;
    pass->stamp++;
    (void)bench_run(bench);
    assert_same_bits(pass->residual, expected, n);
    check_accounts(bench, &accounts);
    check_selection(bench);
    if (random_below(2) == 0) {
        const uint64_t k = pass->k;
        check_decay_withdrawn(bench, push, v, lost);
        pass->withdraw = false;
        pass->k = k;
    }
    free(v);
    free(expected);
}

static void check_decay(uint64_t n, uint64_t k)
{
    static const float scales[] = {0, 1, 0.5f, 1024};
    static const float decays[] = {0.5f, 0.25f, 0.01f, 0.9f, 1};
    double lost[2] = {0, 0};
    struct bench bench = bench_make(n, k);
    bench.pass.decay.share = decays[random_below(5)];
    bench.pass.decay.lost = lost;
    for (int step = 0; step < 3; step++) {
        struct push push = push_random(n);
        bench.pass.scale = scales[random_below(4)];
        check_decay_step(&bench, &push);
        push_drop(&push);
    }
    bench_drop(&bench);
}

static void test_decay(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const uint64_t n = random_below(300);
        check_decay(n, random_count(n));
    }
    for (int round = 0; round < 10; round++) {
        const uint64_t n = 4000 + random_below(9000);
        check_decay(n, n / 100);
    }
    check_decay(100000, 1000);
}

/* All implementations give the same bits, forward and back. */
static void test_momentum_implementations(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const unsigned n = (unsigned)random_below(600);
        const struct momentum_rule rule = {
            .mu = round % 10 == 0 ? 0 : 0.9f, .nesterov = random_below(2) == 0};
        const enum pattern pattern = (enum pattern)random_below(PATTERN_COUNT);
        float *g = pattern_make(pattern, n);
        float *m = pattern_make(pattern == NOT_FINITE ? RANDOM : pattern, n);
        float *m_plain = copy_of(m, n);
        float *sums[2] = {allocate(n, sizeof(float)), allocate(n, sizeof(float))};
        const struct momentum_ops *ops[2] = {momentum_best(), momentum_table[0]};
        assert_int_equal(
            ops[0]->step(rule, m, g, sums[0], n), ops[1]->step(rule, m_plain, g, sums[1], n));
        assert_same_bits(m, m_plain, n);
        assert_same_bits(sums[0], sums[1], n);
        assert_int_equal(
            ops[0]->undo(rule, m, g, sums[0], n), ops[1]->undo(rule, m_plain, g, sums[1], n));
        assert_same_bits(m, m_plain, n);
        assert_same_bits(sums[0], sums[1], n);
        free(g);
        free(m);
        free(m_plain);
        free(sums[0]);
        free(sums[1]);
    }
}

/* Momentum that explodes starts again and is reported. No value stays infinite. */
static void test_momentum_limit(void **state)
{
    (void)state;
    enum { N = 100 };
    struct bench bench = bench_make(N, 0);
    struct fused *pass = &bench.pass;
    float *gradient = allocate(N, sizeof *gradient);
    const void *const gradients[] = {gradient};
    pass->momentum = allocate(N, sizeof(float));
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        gradient[7] = 0x1.8p119f;
        gradient[8] = -0x1.8p119f;
        gradient[9] = NAN;
        pass->mu = 0.99f;
        pass->nesterov = nesterov != 0;
        pass->gradients = gradients;
        pass->count = 1;
        uint64_t left_out = 0;
        for (int step = 0; step < 4; step++) {
            pass->stamp++;
            left_out += bench_run(&bench);
        }
        assert_true(left_out > 4);
        for (unsigned i = 0; i < N; i++) {
            assert_true(fabsf(pass->momentum[i]) < 0x1p120f);
            assert_true(isfinite(pass->residual[i]));
        }
    }
    free(gradient);
    bench_drop(&bench);
}

/* A loop on threads that take the parts from the last to the first. */
static void run_backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    for (unsigned p = parts; p > 0; p--) {
        part(arg, p - 1, caller);
    }
}

static void test_norm(void **state)
{
    (void)state;
    const struct parallel alone = {.run = NULL};
    const struct parallel backwards = {.run = run_backwards, .threads = 2};
    for (int round = 0; round < 400; round++) {
        const uint64_t most = round == 7 ? 1100000 : round % 20 == 0 ? 10000 : 200;
        const uint64_t n = round == 7 ? most : random_below(most);
        struct push push = push_random(n);
        struct fused pass = {.view = {.fibres = 1, .length = n, .stride = 1},
            .gradients = (const void *const *)push.gradients,
            .count = push.ranks,
            .dtype = push.dtype,
            .scale = 0.5f};
        long double squares = 0;
        double norms[2] = {0, 0};
        for (uint64_t i = 0; i < n; i++) {
            const long double g = (long double)scaled_sum(&push, i, 1);
            squares += isnan(g) ? 0 : g * g;
        }
        norms[0] = fused_gradient_norm(&pass, &alone);
        pass.ops = chunk_table[0];
        pass.surveyed = stats_table[0];
        norms[1] = fused_gradient_norm(&pass, &backwards);
        assert_memory_equal(&norms[0], &norms[1], sizeof norms[0]);
        const double exact = (double)sqrtl(squares);
        assert_true(fabs(norms[0] - exact) <= 1e-14 * exact);
        push_drop(&push);
    }
}

/* The value that a receiver gets for x. */
static float sent_of(enum fused_take take, float x)
{
    switch (take) {
    case FUSED_TAKE_BF16: return convert_bf16(convert_to_bf16(x));
    case FUSED_TAKE_F16: return isfinite(x) ? convert_f16(convert_to_f16(x)) : x;
    case FUSED_TAKE_RESTS: return 0;
    default: return x;
    }
}

static void check_take(uint64_t n, enum pattern pattern)
{
    struct bench bench = bench_make(n, 0);
    struct fused *pass = &bench.pass;
    free(pass->residual);
    pass->residual = pattern_make(pattern, n);
    pass->take = (enum fused_take)(1 + random_below(FUSED_TAKE_RESTS));
    float *expected = allocate(n, sizeof *expected);
    long double sums[2] = {0, 0};
    long double weight = 0;
    uint64_t left_out = 0;
    for (uint64_t i = 0; i < n; i++) {
        const float sent = sent_of(pass->take, pass->residual[i]);
        left_out += isfinite(sent) ? 0 : 1;
        expected[i] = isfinite(sent) ? plus(pass->residual[i], -sent) : 0;
        if (isfinite(sent)) {
            sums[0] -= (long double)sent;
            sums[1] -= (long double)sent * (long double)ledger_sign(i);
            weight += fabsl((long double)sent);
        }
    }
    assert_int_equal(bench_run(&bench), left_out);
    for (uint64_t i = 0; i < n; i++) {
        assert_true(
            pass->residual[i] == expected[i] || (isnan(pass->residual[i]) && isnan(expected[i])));
        assert_false(pass->residual[i] == 0 && signbit(pass->residual[i]));
    }
    assert_true(fabsl((long double)bench.sums[0] - sums[0]) <= 0x1p-18L * weight);
    assert_true(fabsl((long double)bench.sums[1] - sums[1]) <= 0x1p-18L * weight);
    free(expected);
    bench_drop(&bench);
}

static void test_take(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        check_take(random_below(300), (enum pattern)random_below(PATTERN_COUNT));
        check_take(4000 + random_below(300), (enum pattern)random_below(PATTERN_COUNT));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_sample_with_momentum),
        cmocka_unit_test(test_decay),
        cmocka_unit_test(test_momentum_implementations),
        cmocka_unit_test(test_momentum_limit),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_take),
    };
    return cmocka_run_group_tests_name("gradient", tests, NULL, NULL);
}
