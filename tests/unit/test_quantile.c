/* The quantiles of distributions, compared with tables, with the tails themselves, and with each
 * other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "daemon/sparsify/quantile.h"
#include "tests/unit/sparsify_reference.h"

static void assert_near(double value, double expected, double relative)
{
    if (!(fabs(value - expected) <= relative * fabs(expected))) {
        fail_msg("%.17g, not %.17g", value, expected);
    }
}

static void test_normal(void **state)
{
    (void)state;
    /* Tables of the normal distribution. */
    assert_near(quantile_normal(0.025), 1.959963984540054, 1e-14);
    assert_near(quantile_normal(0.005), 2.575829303548901, 1e-14);
    assert_near(quantile_normal(5e-7), 4.891638475698590, 1e-13);
    assert_true(fabs(quantile_normal(0.5)) < 1e-15);
    assert_near(quantile_normal(0.975), -1.959963984540054, 1e-13);
    for (double tail = 0.49; tail > 1e-9; tail *= 0.9) {
        assert_near(quantile_normal(tail), normal_tail(tail), 1e-12);
    }
}

static void test_gamma(void **state)
{
    (void)state;
    /* Shape 1 is the exponential distribution, shape 1/2 half the square of a normal variable. */
    for (double tail = 0.99; tail > 1e-6; tail *= 0.8) {
        const double z = quantile_normal(tail / 2);
        assert_near(quantile_gamma(1, tail), -log(tail), 1e-8);
        assert_near(quantile_gamma(0.5, tail), z * z / 2, 1e-8);
    }
    for (double shape = 0.3; shape < 900; shape *= 1.7) {
        for (double tail = 0.9; tail > 1e-5; tail *= 0.3) {
            assert_near(quantile_gamma(shape, tail), gamma_tail(shape, tail), 1e-8);
        }
    }
}

/* Extremely large shapes, up to where another formula takes over. */
static void test_extreme_shapes(void **state)
{
    (void)state;
    for (double tail = 0.9; tail > 1e-5; tail *= 0.3) {
        assert_near(quantile_gamma(1000.001, tail), quantile_gamma(1000, tail), 2e-5);
        assert_near(quantile_gamma(1e12, tail), 1e12, 1e-5);
        const double small = quantile_gamma(1e-3, tail);
        assert_true(small >= 0 && small < 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_gamma),
        cmocka_unit_test(test_extreme_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
