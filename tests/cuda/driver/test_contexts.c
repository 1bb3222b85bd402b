/*
 * What contexts of workers take of a device: the daemon finds it at its start, and says it when it
 * refuses memory.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/driver/sides.h"

#define CONTEXT 6000000u
#define MEMORY (UINT64_C(1) << 30)

static char path[64];

static int share(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/adtopk-accounts-%d", (int)getpid());
    (void)setenv("ADTOPK_TEST_CUDA_ACCOUNTS", path, 1);
    (void)setenv("ADTOPK_TEST_CUDA_CONTEXT", "6000000", 1);
    return 0;
}

static int unshare(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unsetenv("ADTOPK_TEST_CUDA_ACCOUNTS");
    (void)unsetenv("ADTOPK_TEST_CUDA_CONTEXT");
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
    return 0;
}

static struct device_info found(void)
{
    struct device_info info;

    assert_true(device_info(sides.device, 0, &info));
    return info;
}

/* The sentence with which the device has no memory for another part. */
static void assert_refused(const char *expected)
{
    const struct device_part part = sides_part(OTHER, MEMORY);
    struct error err;

    assert_int_equal(device_open_part(sides.device, &part, &(struct device_left){.store = 0}, &err),
        ADTOPK_ERR_MEMORY);
    if (strstr(err.text, expected) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.text, expected);
    }
}

/* The feeder starts the next worker in its own time. */
static void wait_for_contexts(uint64_t bytes)
{
    for (unsigned waited = 0; found().use.contexts != bytes; waited++) {
        assert_true(waited < WAIT_MS);
        (void)usleep(1000);
    }
}

/* Contexts count as long as their workers run. */
static void test_context_is_measured(void **state)
{
    (void)state;
    sides_prepare(1000);
    sides_start("late", "", 0);
    assert_int_equal(found().context, CONTEXT);
    assert_int_equal(found().use.contexts, 0);
    assert_refused("0 to work and exchange, 0 for contexts and 0 for NCCL, and other processes");
    sides_close();
    sides_open("late", "", 0, 1000);
    for (uint64_t step = 1; step < 4; step++) {
        sides_step(step, step == 2 ? sides_kill : NULL);
        wait_for_contexts(CONTEXT);
    }
    assert_refused("to work and exchange, 6000000 for contexts and 0 for NCCL, and other processes "
                   "have the rest");
    sides_close();
}

/* A driver that does not say what is left, or a device that has room for one context only or for
 * one process's kernels, is used all the same. */
static void test_context_is_unknown(void **state)
{
    (void)state;
    sides_open("late", "cuMemGetInfo_v2:1:999", 0, 1000);
    sides_step(1, NULL);
    assert_int_equal(found().context, 0);
    assert_refused("exchange, an unknown number for contexts and 0 for NCCL");
    sides_close();
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "11000000", 1);
    sides_prepare(1000);
    sides_start("late", "", 0);
    assert_int_equal(found().context, 0);
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
    sides_prepare(1000);
    sides_start("late", "cuModuleLoadData:1:2", 0);
    assert_int_equal(found().context, 0);
    sides_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_context_is_measured, share, unshare),
        cmocka_unit_test_setup_teardown(test_context_is_unknown, share, unshare),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
