/*
 * The verdict on a tensor's ledger. A plain simulation trains the tensors. A ledger with nothing
 * but rounding is in balance. If a contribution was lost or repeated it is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/verdict.h"

enum fault {
    FAULT_NONE,
    FAULT_LOST_STEP,  /* one step's gradient does not reach the residual */
    FAULT_TWICE,      /* one step's gradient reaches the residual twice */
    FAULT_LOST_ENTRY, /* one entry leaves the residual, but is not applied */
    FAULT_COUNT
};

struct trial {
    uint64_t elements;
    uint64_t steps;
    double mean; /* mean of a gradient's elements, in units of their spread */
    double spread;
    double cut;     /* entries larger than this leave the residual; in units of the spread */
    bool half;      /* they are rounded to 8 bits, as bf16 */
    bool all;       /* in the last steps all entries are sent */
    bool one_entry; /* one entry is enough to show a fault */
};

static uint64_t state_of_random;

static double random_uniform(void)
{
    uint64_t z = state_of_random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53 * 2 - 1;
}

static double sign_of(uint64_t i)
{
    return ((i * 0x9e3779b97f4a7c15u) >> 40 & 1u) != 0 ? -1 : 1;
}

static float rounded(float x, bool half)
{
    int exponent;
    double mantissa;

    if (!half) {
        return x;
    }
    mantissa = frexp((double)x, &exponent);
    return (float)ldexp(nearbyint(mantissa * 256) / 256, exponent);
}

static void add(double sums[2], double x, uint64_t i)
{
    sums[0] += x;
    sums[1] += x * sign_of(i);
}

struct trained {
    uint64_t numel;
    struct verified verified;
};

/* Trains one tensor; a fault happens in the middle of it. */
static struct trained train(const struct trial *trial, enum fault fault)
{
    struct trained info = {.numel = trial->elements, .verified.step = trial->steps - 1};
    float *residual = calloc(trial->elements, sizeof(*residual));

    assert_non_null(residual);
    state_of_random = 7;
    for (uint64_t s = 0; s < trial->steps; s++) {
        bool now = s == trial->steps / 2;
        double cut = trial->all && s + 5 > trial->steps ? -1 : trial->cut;

        for (uint64_t i = 0; i < trial->elements; i++) {
            float g = (float)(trial->spread * (random_uniform() + trial->mean));

            add(info.verified.input, (double)g, i);
            for (int k = now && fault == FAULT_LOST_STEP ? 1
                         : now && fault == FAULT_TWICE   ? -1
                                                         : 0;
                 k < 1; k++) {
                residual[i] += g;
            }
            if (fabs((double)residual[i]) > cut * trial->spread) {
                float sent = rounded(residual[i], trial->half);

                residual[i] -= sent;
                if (s < trial->steps / 2 || fault != FAULT_LOST_ENTRY) {
                    add(info.verified.applied, (double)sent, i);
                } else {
                    fault = FAULT_COUNT; /* only once */
                }
            }
        }
    }
    for (uint64_t i = 0; i < trial->elements; i++) {
        add(info.verified.residual, (double)residual[i], i);
        info.verified.magnitude += fabs((double)residual[i]);
    }
    free(residual);
    return info;
}

static const struct trial trials[] = {
    {100, 10, 0, 1, 3, false, false, true},          /* small */
    {1, 1000, 0, 1, 3, true, false, true},           /* a scalar */
    {10000, 300, 0, 1e-6, 8, true, false, true},     /* sparse, no bias */
    {10000, 300, 0.3, 1e3, 20, true, false, false},  /* all gradients lean to one side */
    {500, 20000, 0, 1, 60, true, false, true},       /* for long */
    {500, 20000, 0, 1, 60, true, true, true},        /* for long, and in the end all is sent */
    {2000, 1000, 0, 1, 0.001, true, false, true},    /* only rounding errors of bf16 stay */
    {2000, 1000, 0, 1, -1, false, false, true},      /* all is sent, so nothing stays */
    {2000, 1000, 0, 1e-3, 1e9, false, false, false}, /* nothing is ever sent */
};

#define TRIALS (sizeof(trials) / sizeof(trials[0]))

static void test_rounding_is_balanced(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRIALS; i++) {
        struct trained info = train(&trials[i], FAULT_NONE);
        struct verdict verdict = verdict_of(&info.verified, info.numel);

        if (!verdict.balanced) {
            fail_msg("trial %zu: off by %g and %g, tolerance %g", i, verdict.off[0], verdict.off[1],
                verdict.tolerance);
        }
    }
}

static void test_faults_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRIALS; i++) {
        for (int fault = FAULT_LOST_STEP; fault < FAULT_COUNT; fault++) {
            struct trained info = train(&trials[i], (enum fault)fault);
            struct verdict verdict = verdict_of(&info.verified, info.numel);

            if (fault == FAULT_LOST_ENTRY && !trials[i].one_entry) {
                continue;
            }
            if (verdict.balanced) {
                fail_msg("trial %zu, fault %d: off by %g and %g, tolerance %g", i, fault,
                    verdict.off[0], verdict.off[1], verdict.tolerance);
            }
        }
    }
}

static void test_no_numbers(void **state)
{
    struct trained info = {.numel = 10, .verified.step = 5, .verified.magnitude = 1};

    (void)state;
    assert_true(verdict_of(&info.verified, info.numel).balanced);
    info.verified.residual[1] = NAN;
    assert_false(verdict_of(&info.verified, info.numel).balanced);
    info.verified.residual[1] = INFINITY;
    assert_false(verdict_of(&info.verified, info.numel).balanced);
    info = (struct trained){.numel = 10, .verified.input = {INFINITY, 0}};
    assert_false(verdict_of(&info.verified, info.numel).balanced);
}

/* An emptied residual leaves its rounding errors in the sums, which may cancel by chance. */
static void test_emptied_residual(void **state)
{
    struct trained info = {.numel = 1280,
        .verified.step = 30,
        .verified.input = {-8e-7, 2e-4},
        .verified.applied = {-6.6e-7, 1.984e-4}};

    (void)state;
    assert_false(verdict_of(&info.verified, info.numel).balanced);
    info.verified.most_magnitude = 64;
    assert_true(verdict_of(&info.verified, info.numel).balanced);
    info.verified.applied[1] = 1e-4;
    assert_false(verdict_of(&info.verified, info.numel).balanced);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_is_balanced),
        cmocka_unit_test(test_faults_are_found),
        cmocka_unit_test(test_no_numbers),
        cmocka_unit_test(test_emptied_residual),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
