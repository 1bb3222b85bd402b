/* The processor time of threads by their names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/loop/threads.h"

#define BURN_US 200000
#define SLACK_US 30000 /* ticks on both sides */

static uint64_t burned_us(void)
{
    struct timespec now;

    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* A name with a bracket and a space in it: /proc does not escape them. */
static void *burner(void *context)
{
    atomic_bool *stop = context;

    assert_int_equal(prctl(PR_SET_NAME, "burner) R 1"), 0);
    while (burned_us() < BURN_US) {
    }
    atomic_store(stop, true);
    while (atomic_load(stop)) {
        const struct timespec pause = {.tv_nsec = 1000000};

        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

static void test_time_of_a_name(void **state)
{
    atomic_bool burned = false;
    pthread_t thread;
    uint64_t us;

    (void)state;
    assert_int_equal(threads_cpu_us("burner"), 0);
    assert_int_equal(pthread_create(&thread, NULL, burner, &burned), 0);
    while (!atomic_load(&burned)) {
    }
    us = threads_cpu_us("burner");
    assert_int_equal(threads_cpu_us("other"), 0);
    atomic_store(&burned, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_in_range(us, BURN_US - SLACK_US, 10 * BURN_US);
    assert_int_equal(threads_cpu_us("burner"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_time_of_a_name)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
