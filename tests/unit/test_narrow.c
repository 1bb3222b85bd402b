/* Updates in 16 bits: rounding compared with a reference in double, and jobs that may not have
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/rests.h"
#include "daemon/compute/results.h"
#include "daemon/compute/settle.h"
#include "kernels/base/convert.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/narrow.h"
#include "lone_core.h"
#include "proto/local.h"

#define NUMEL 1000u
#define SHARED 640u /* elements of the first tensor of lone_begin_half() */

static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16};

static double largest(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 65504.0 : 0x1.fep127;
}

/* The distance between neighbouring numbers of the type at x. */
static double unit_at(double x, enum dtype dtype)
{
    const int bits = dtype == DTYPE_F16 ? 11 : 8, least = dtype == DTYPE_F16 ? -24 : -133;
    int exponent;

    (void)frexp(x, &exponent);
    return ldexp(1, exponent - bits > least ? exponent - bits : least);
}

/* Rounds in the plainest way: to a multiple of the unit, ties to the even one. */
static double round_in_double(double x, enum dtype dtype)
{
    const double unit = unit_at(x, dtype), most = largest(dtype);
    const double rounded = nearbyint(x / unit) * unit;

    return fabs(rounded) > most ? copysign(most, x) : rounded;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_value(float x, enum dtype dtype)
{
    const float rounded = narrow_value(x, dtype), rest = narrow_rest(x, dtype);
    float back = 1;

    if (!isfinite(x)) {
        assert_true(isnan(x) ? isnan(rounded) : rounded == x);
        assert_true(rest == 0);
        return;
    }
    if ((double)rounded != round_in_double((double)x, dtype)) {
        fail_msg("%a becomes %a", (double)x, (double)rounded);
    }
    if (fabs((double)x) <= largest(dtype)) {
        assert_true((double)rounded + (double)rest == (double)x);
    }
    narrow_add_rests(&back, &x, 1, dtype, 0.5f, 3);
    assert_true(back == 1 + rest * 0.5f * 3);
}

static void test_values(void **state)
{
    (void)state;
    srand(7);
    for (uint32_t high = 0; high < 65536; high++) {
        const uint32_t low[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001,
            0xffff, (uint32_t)rand() & 0xffffu};
        for (unsigned i = 0; i < sizeof low / sizeof low[0]; i++) {
            for (unsigned type = 0; type < 2; type++) {
                check_value(float_of(high << 16 | low[i]), types[type]);
            }
        }
    }
}

static float widened(uint16_t bits, enum dtype dtype)
{
    return dtype == DTYPE_F16 ? convert_f16(bits) : convert_bf16(bits);
}

static void run_backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    while (parts-- > 0) {
        part(arg, parts, caller);
    }
}

/* Both sources give the same update, in any number of parts. */
static void test_forms(void **state)
{
    const struct parallel threads[] = {
        {.threads = 1}, {.run = run_backwards, .threads = 7, .eager = true}};
    float dense[NUMEL] = {0}, value[NUMEL], shown[NUMEL];
    uint32_t index[NUMEL];
    uint16_t from_dense[NUMEL], from_list[NUMEL];
    uint64_t count = 0;

    (void)state;
    for (uint32_t i = 0; i < NUMEL; i += 3) {
        index[count] = NUMEL - 1 - i;
        value[count] = (float)(i + 1) * 1.2345f;
        dense[index[count]] = value[count];
        count++;
    }
    for (unsigned i = 0; i < 4; i++) {
        struct narrow narrow = {
            .dtype = types[i % 2], .numel = NUMEL, .dense = dense, .half = from_dense};

        memset(from_dense, 0xff, sizeof from_dense);
        memset(from_list, 0xff, sizeof from_list);
        narrow_update(&narrow, &threads[i / 2]);
        narrow = (struct narrow){.dtype = types[i % 2],
            .numel = NUMEL,
            .index = index,
            .value = value,
            .count = count,
            .half = from_list,
            .shown = shown};
        narrow_update(&narrow, &threads[i / 2]);
        assert_memory_equal(from_dense, from_list, sizeof from_list);
        for (uint32_t e = 0; e < NUMEL; e++) {
            assert_true((double)widened(from_list[e], types[i % 2]) ==
                        round_in_double((double)dense[e], types[i % 2]));
        }
        for (uint64_t e = 0; e < count; e++) {
            assert_true(shown[e] == widened(from_list[index[e]], types[i % 2]));
        }
    }
}

/* A dense bf16 residual cannot keep rests. */
static void test_rounded_residual(void **state)
{
    struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct lone_core lone;

    (void)state;
    spec.dtype = DTYPE_BF16;
    spec.forms = LOCAL_FORM_DENSE16;
    lone_open(&lone, 1, "{" LONE_EXACT ",\"residual\":\"bf16\"}", &spec, 1);
    (void)lone_rank_event(&lone, 0, (struct event){.type = EVENT_RANK_COMMIT});
    (void)lone_rank_event(&lone, 0, (struct event){.type = EVENT_RANK_MAPPED});
    assert_int_equal(lone.ready, 0);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_POLICY);
    assert_non_null(strstr(lone.failure.text, "16-bit updates of tensor 'w'"));
    lone_free(&lone);
}

/* Such a policy does not come into force during training either, and training goes on. */
static void test_rounded_residual_later(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin_half(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    (void)lone_change(&lone, 1, "{\"residual\":\"bf16\"}");
    lone_train(&lone, 4);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_POLICY);
    lone.rounded = false;
    lone_check(&lone);
    lone_free(&lone);
}

/* Updates change from entries to dense and back: the residual keeps the rounding errors of 16 bits.
 */
static void test_switches(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin_half(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 3);
    lone_must_change(&lone, "{\"sparsifier\":\"dense\"}");
    lone_train(&lone, 3);
    lone_check(&lone);
    lone_must_change(&lone, "{\"sparsifier\":\"topk\",\"density\":0.8}");
    lone_train(&lone, 3);
    lone_withdraw(&lone);
    lone_train(&lone, 3);
    lone_check(&lone);
    lone_free(&lone);
}

/* Updates contain the step's loss scale. Residuals, and the rests that return to them, do not. */
static void test_loss_scales(void **state)
{
    static const char *const policies[] = {
        "{" LONE_EXACT "}", "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}"};
    static const float scales[] = {4, 0.5f, 0, 16, 0.125f};
    struct lone_core lone;

    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        lone_begin_half(&lone, policies[p]);
        for (unsigned i = 0; i < sizeof scales / sizeof scales[0]; i++) {
            lone.scale = scales[i];
            lone_train(&lone, 1);
        }
        lone_check(&lone);
        lone_free(&lone);
    }
}

/* What comes back to one of two nodes, by element of the first tensor. */
static void collect_rests_of(const struct job *job, uint16_t place, float *by_position)
{
    const struct sparse *rests = &job->plan->tensor[0].update_rests.list;

    job->tensor[0].store->nodes = 2;
    job->tensor[0].store->place = place;
    rests_collect(job, 0, NULL);
    memset(by_position, 0, SHARED * sizeof(*by_position));
    for (size_t i = 0; i < rests->count; i++) {
        by_position[rests->position[i]] = rests->value[i];
    }
}

/* Puts the dense form in the place of the list: they share their room. */
static void make_dense(const struct job *job)
{
    struct local_update *update = results_update(job, 0);
    float dense[SHARED] = {0};

    for (uint64_t i = 0; i < update->count; i++) {
        dense[results_index(job, 0)[i]] = results_value(job, 0)[i];
    }
    memcpy(results_dense(job, 0), dense, sizeof dense);
    update->count = 0;
    update->forms = LOCAL_FORM_DENSE | LOCAL_FORM_DENSE16;
}

/* Nodes divide the rests of an update alike, whether they have it as a list or dense. A list may
 * have sums that are 0. */
static void test_shares(void **state)
{
    float listed[2][SHARED], dense[2][SHARED];
    const struct job *job;
    struct lone_core lone;

    (void)state;
    lone_begin_half(&lone, "{" LONE_EXACT "}");
    lone.host.hold = true;
    lone_push_all(&lone);
    lone_end_all(&lone);
    lone_compute_until(&lone, &work_settle);
    job = ((const struct work *)lone.host.held[0])->job;
    assert_true(results_update(job, 0)->count > 8);
    for (uint64_t i = 0; i < results_update(job, 0)->count; i++) {
        results_value(job, 0)[i] = i < 5 ? 0 : (float)(i + 1) * 1.2345f;
    }
    collect_rests_of(job, 0, listed[0]);
    collect_rests_of(job, 1, listed[1]);
    make_dense(job);
    collect_rests_of(job, 0, dense[0]);
    collect_rests_of(job, 1, dense[1]);
    assert_memory_equal(listed, dense, sizeof dense);
    lone_free(&lone);
}

/* Impossible descriptions are refused by name. */
static void test_refused(void **state)
{
    static const struct {
        enum dtype dtype;
        unsigned forms;
        const char *says;
    } cases[] = {{DTYPE_F32, LOCAL_FORM_DENSE16, "is f32"},
        {DTYPE_BF16, LOCAL_FORM_DENSE16 | LOCAL_FORM_DENSE, "in 16 bits and in f32"},
        {DTYPE_F32, LOCAL_FORM_DENSE16 | LOCAL_FORM_PENDING, "is f32"},
        {DTYPE_BF16, 16, "unknown forms"}};
    struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 1, NULL, &spec, 0);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct event event = {.type = EVENT_RANK_REGISTER, .spec = &spec};
        spec.dtype = cases[i].dtype;
        spec.forms = cases[i].forms;
        assert_int_equal(lone_rank_event(&lone, 0, event), ADTOPK_ERR_ARGUMENT);
        lone_assert_refused(&lone, ADTOPK_ERR_ARGUMENT, "'w'", cases[i].says);
    }
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_rounded_residual),
        cmocka_unit_test(test_rounded_residual_later),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_loss_scales),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
