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

/* A wait of so long, of which the last moment before the event was asked about. */
static void wait_for(struct spin *spin, uint64_t us)
{
    (void)spin_choose(spin, spin->active_us + us);
    spin_active(spin, spin->active_us + us);
}

/* Whether the next wait is spun through. */
static bool spins(struct spin *spin)
{
    const bool yields = spin_choose(spin, spin->active_us + 49) == SPIN_YIELD;

    assert_int_equal(spin_choose(spin, spin->active_us + 4), SPIN_YIELD);
    return yields;
}

/* After three long waits in a row the loop sleeps early, but for one wait of nine. */
static void test_vain(void **state)
{
    struct spin spin = {.active_us = START};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(spins(&spin));
        spin_woken(&spin, spin.active_us + 1000);
        wait_for(&spin, 2); /* short ones tell nothing */
    }
    for (unsigned i = 0; i < 90; i++) {
        assert_int_equal(spins(&spin), i % 9 == 8);
        wait_for(&spin, 1000);
    }
}

/* Trials that meet an event end that. */
static void test_no_longer_vain(void **state)
{
    struct spin spin = {.active_us = START, .vain = 1};
    unsigned waits = 0;

    (void)state;
    for (; !spins(&spin) || spin.vain > 0.5f; waits++) {
        wait_for(&spin, 20);
    }
    assert_int_equal(waits, 3 * 9);
    for (unsigned i = 0; i < 20; i++) {
        wait_for(&spin, 20);
        assert_true(spins(&spin));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_vain),
        cmocka_unit_test(test_no_longer_vain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
