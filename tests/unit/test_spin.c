/* When the loop pauses, yields and sleeps, with a simulated clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/loop/spin.h"

#define START UINT64_C(1000000)

static void test_alone(void **state)
{
    struct spin spin = {.active_us = START};

    (void)state;
    assert_int_equal(spin_choose(&spin, START), SPIN_PAUSE);
    assert_int_equal(spin_choose(&spin, START + 1), SPIN_YIELD);
    assert_int_equal(spin_choose(&spin, START + 49), SPIN_YIELD);
    assert_int_equal(spin_choose(&spin, START + 50), SPIN_SLEEP);
    spin_yielded(&spin, START, START + 200); /* long, but shorter than a turn of the scheduler */
    assert_int_equal(spin_choose(&spin, START + 49), SPIN_YIELD);
}

static void test_crowded(void **state)
{
    struct spin spin = {.active_us = START};
    uint64_t relief = START + 201 + 10000;

    (void)state;
    spin_yielded(&spin, START, START + 201);
    spin.active_us = START + 300;
    assert_int_equal(spin_choose(&spin, START + 304), SPIN_PAUSE);
    assert_int_equal(spin_choose(&spin, START + 305), SPIN_SLEEP);
    spin.active_us = relief - 10;
    assert_int_equal(spin_choose(&spin, relief - 1), SPIN_SLEEP);
    assert_int_equal(spin_choose(&spin, relief), SPIN_YIELD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_crowded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
