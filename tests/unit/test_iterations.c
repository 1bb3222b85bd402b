/* The longest iteration of a thread, in CPU time. Work counts, sleep does not, and an iteration is
 * forgotten after a while. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "daemon/loop/iterations.h"

#define START UINT64_C(1000000000)

static uint64_t clock_us(clockid_t clock)
{
    struct timespec now;

    assert_int_equal(clock_gettime(clock, &now), 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void burn(uint64_t us)
{
    const uint64_t end = clock_us(CLOCK_THREAD_CPUTIME_ID) + us;

    while (clock_us(CLOCK_THREAD_CPUTIME_ID) < end) {
    }
}

static void test_work_counts(void **state)
{
    struct iterations iterations;

    (void)state;
    iterations_begin(&iterations, clock_us(CLOCK_MONOTONIC));
    for (unsigned i = 0; i < 20; i++) {
        burn(500);
        iterations_end(&iterations, clock_us(CLOCK_MONOTONIC));
    }
    burn(5000);
    iterations_end(&iterations, clock_us(CLOCK_MONOTONIC));
    assert_in_range(iterations.longest_us, 5000, 9000);
    assert_int_equal(iterations_last_minute_us(&iterations), iterations.longest_us);
}

static void test_sleep_does_not(void **state)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    struct iterations iterations;

    (void)state;
    iterations_begin(&iterations, clock_us(CLOCK_MONOTONIC));
    assert_int_equal(nanosleep(&nap, NULL), 0);
    iterations_end(&iterations, clock_us(CLOCK_MONOTONIC));
    assert_in_range(iterations.longest_us, 0, 5000);
}

/* Only differences between the wall clock's values matter. */
static void test_it_passes(void **state)
{
    struct iterations iterations;
    uint64_t now_us = START;

    (void)state;
    iterations_begin(&iterations, now_us);
    burn(3000);
    iterations_end(&iterations, now_us += 10000);
    assert_in_range(iterations.longest_us, 3000, 9000);
    for (unsigned second = 0; second < 59; second++) {
        iterations_end(&iterations, now_us += 1000000);
    }
    assert_true(iterations_last_minute_us(&iterations) >= 3000);
    for (unsigned second = 0; second < 12; second++) {
        iterations_end(&iterations, now_us += 1000000);
    }
    assert_in_range(iterations_last_minute_us(&iterations), 0, 1000);
    assert_true(iterations.longest_us >= 3000);
    iterations_end(&iterations, now_us += 1000 * UINT64_C(1000000)); /* nothing happened for long */
    assert_in_range(iterations_last_minute_us(&iterations), 0, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_counts),
        cmocka_unit_test(test_sleep_does_not),
        cmocka_unit_test(test_it_passes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
