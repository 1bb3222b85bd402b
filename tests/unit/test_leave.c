/* Sent entries leave the residual, compared with the plain definition. Doing it twice has the same
 * effect as once. */
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

#include "kernels/base/quantise.h"
#include "kernels/cpu/leave.h"
#include "kernels/cpu/plain.h"
#include "tests/unit/arrays.h"

static const struct parallel alone;

/* A loop whose parts run on different threads, the last part first. */
static void backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    (void)caller;
    while (parts-- > 0) {
        part(arg, parts, parts % 3);
    }
}

/* One random case. */
struct leaving {
    struct view view;
    uint64_t n;
    float *residual;
    float *momentum;
    struct sparse sent;
    float *before;
    uint8_t *accepted;
};

static struct view random_view(void)
{
    const uint64_t stride = 1 + random_below(4);
    return (struct view){.fibres = stride * (1 + random_below(60)),
        .length = 1 + random_below(80),
        .stride = stride};
}

/* Quarters of small integers: nothing rounds. */
static float random_quarters(void)
{
    return (float)((int)random_below(401) - 200) * 0.25f;
}

static struct leaving leaving_make(void)
{
    struct leaving l = {.view = random_view()};
    l.n = view_size(&l.view);
    l.residual = allocate(l.n, sizeof *l.residual);
    l.momentum = allocate(l.n, sizeof *l.momentum);
    l.sent = sparse_make(l.n);
    l.before = allocate(l.n, sizeof *l.before);
    l.accepted = allocate(l.n / 8 + 1, 1);
    for (uint64_t i = 0; i < l.n; i++) {
        l.residual[i] = random_quarters();
        l.momentum[i] = random_quarters();
    }
    for (uint64_t p = 0; p < l.n; p++) {
        if (random_below(5) > 0) {
            continue;
        }
        const size_t i = l.sent.count++;
        l.before[i] = l.residual[view_element(&l.view, p)];
        l.sent.position[i] = (uint32_t)p;
        l.sent.value[i] = l.before[i] + (float)random_below(3) * 0.25f; /* as if coded with loss */
        l.accepted[i / 8] = (uint8_t)(l.accepted[i / 8] | (random_below(2) << i % 8));
    }
    return l;
}

static void leaving_drop(struct leaving *l)
{
    free(l->residual);
    free(l->momentum);
    sparse_drop(&l->sent);
    free(l->before);
    free(l->accepted);
}

static void check(bool partly, bool masking)
{
    struct leaving l = leaving_make();
    const uint8_t *accepted = partly ? l.accepted : NULL;
    float *residual = allocate(l.n, sizeof *residual);
    float *momentum = allocate(l.n, sizeof *momentum);
    double expected[2] = {100, 200};
    double sums[2] = {100, 200};
    memcpy(residual, l.residual, l.n * sizeof *residual);
    memcpy(momentum, l.momentum, l.n * sizeof *momentum);
    for (size_t i = 0; i < l.sent.count; i++) {
        if (partly && (l.accepted[i / 8] >> i % 8 & 1) == 0) {
            continue;
        }
        const uint64_t element = view_element(&l.view, l.sent.position[i]);
        residual[element] -= l.sent.value[i];
        momentum[element] = masking ? 0 : momentum[element];
        expected[0] += (double)l.sent.value[i];
        expected[1] += (double)l.sent.value[i] * ledger_sign(element);
    }
    const struct leave leave = {&l.view, &l.sent, accepted};
    leave_sums(&leave, sums, &alone);
    assert_true(sums[0] == expected[0] && sums[1] == expected[1]);
    for (int times = 0; times < 2; times++) {
        leave_residual(l.residual, masking ? l.momentum : NULL, &leave, l.before, &alone);
        assert_same_bits(l.residual, residual, l.n);
        assert_same_bits(l.momentum, momentum, l.n);
    }
    free(residual);
    free(momentum);
    leaving_drop(&l);
}

static void test_leaving(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        check(round % 2 == 0, round % 4 < 2);
    }
}

/* A list that is cut in parts. The sum, which rounds, has the order of its parts. */
static void test_parts(void **state)
{
    (void)state;
    const struct parallel threads = {.run = backwards, .threads = 3};
    for (uint64_t n = 8191; n < 40000; n += 1 + random_below(9000)) {
        struct view view = {.fibres = 1, .length = 3 * n, .stride = 1};
        struct sparse sent = sparse_make(n);
        float *residual = allocate(3 * n, sizeof *residual);
        float *momentum = allocate(3 * n, sizeof *momentum);
        float *before = allocate(n, sizeof *before);
        double expected[2] = {0, 0}, size = 0;
        for (size_t i = 0; i < n; i++) {
            sent.position[i] = (uint32_t)(3 * i + random_below(3));
            sent.value[i] = random_value();
            residual[sent.position[i]] = before[i] = sent.value[i] + 1;
            momentum[sent.position[i]] = 1;
            expected[0] += (double)sent.value[i];
            expected[1] += (double)sent.value[i] * ledger_sign(sent.position[i]);
            size += fabs((double)sent.value[i]);
        }
        sent.count = n;
        const struct leave leave = {&view, &sent, NULL};
        double sums[2] = {0, 0}, again[2] = {0, 0};
        leave_sums(&leave, sums, &alone);
        leave_sums(&leave, again, &threads);
        assert_memory_equal(sums, again, sizeof sums);
        assert_true(fabs(sums[0] - expected[0]) <= size * 0x1p-40);
        assert_true(fabs(sums[1] - expected[1]) <= size * 0x1p-40);
        for (int times = 0; times < 2; times++) {
            leave_residual(residual, momentum, &leave, before, &threads);
            size_t next = 0;
            for (uint32_t e = 0; e < 3 * n; e++) {
                const bool left = next < n && sent.position[next] == e;
                assert_true(residual[e] == (left ? before[next] - sent.value[next] : 0));
                assert_true(momentum[e] == 0);
                next += left;
            }
        }
        free(residual);
        free(momentum);
        free(before);
        sparse_drop(&sent);
    }
}

/* A residual that has become infinite is sent once, with any type of values, and does not stay
 * infinite. Finite residuals lose nothing, whatever f16 cannot hold. */
static void test_not_finite(void **state)
{
    enum { VALUES = 8 };
    const struct view view = {.fibres = 1, .length = VALUES, .stride = 1};
    const float before[VALUES] = {INFINITY, -INFINITY, NAN, 3, 1e6f, -0x1p126f, FLT_MAX, -FLT_MAX};
    uint32_t position[VALUES] = {0, 1, 2, 3, 4, 5, 6, 7};

    (void)state;
    for (unsigned type = QUANTISE_F32; type <= QUANTISE_INT3; type++) {
        float residual[VALUES], value[VALUES];
        const struct sparse sent = {position, value, VALUES, VALUES};

        memcpy(residual, before, sizeof residual);
        memcpy(value, before, sizeof value);
        quantise_values(value, VALUES, (enum quantisation)type, 1);
        const struct leave leave = {&view, &sent, NULL};
        leave_residual(residual, NULL, &leave, before, &alone);
        for (int i = 0; i < VALUES; i++) {
            const double rest = (double)before[i] - (double)value[i];

            assert_true(isfinite(residual[i]));
            assert_true((double)residual[i] == (isfinite(rest) ? (double)(float)rest : 0));
        }
    }
}

static void test_nothing(void **state)
{
    (void)state;
    const struct view view = {.fibres = 3, .length = 5, .stride = 1};
    const struct sparse none = {.count = 0};
    double sums[2] = {1, 2};
    const struct leave leave = {&view, &none, NULL};
    leave_sums(&leave, sums, &alone);
    leave_residual(NULL, NULL, &leave, NULL, &alone);
    assert_true(sums[0] == 1 && sums[1] == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests_name("leave", tests, NULL, NULL);
}
