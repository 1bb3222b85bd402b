/*
 * Every planted fault is found, each kernel without its fault passes. A run is a process of its
 * own, because what finds a fault ends it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/input.h"
#include "tests/cuda/planted.h"

enum { SCHEDULES = 30, WRONG = 3 };

/* Whether this build has what finds it. */
static bool planted_is_found(enum planted_finder finder)
{
#if defined(PLANTED_WITH_ADDRESS)
    return finder != PLANTED_THREAD;
#elif defined(PLANTED_WITH_THREAD)
    /* Races are found before their results can be. */
    return finder != PLANTED_ADDRESS;
#else
    return finder == PLANTED_RESULT || finder == PLANTED_SHIM;
#endif
}

/* A write to another's memory that nothing finds may end the process in any way, or in none. */
static bool planted_may_run(enum planted_finder finder)
{
    return finder != PLANTED_ADDRESS || planted_is_found(finder);
}

static bool planted_right(launch_kernel *kernel, bool fault, struct input *input)
{
    const struct launch how = input_launch(input);
    const uint32_t threads = how.blocks * LAUNCH_THREADS;
    uint32_t done = 0;
    const struct planted p = {.out = calloc(threads, sizeof *p.out),
        .part = calloc(how.blocks, sizeof *p.part),
        .done = &done,
        .fault = fault};
    bool right = p.out != NULL && p.part != NULL;
    launch(&how, kernel, &p);
    for (uint32_t i = 0; i < threads; i++) {
        right = right && p.out[i] == i / LAUNCH_THREADS + 256;
    }
    free(p.out);
    free(p.part);
    return right;
}

static int planted_child(launch_kernel *kernel, bool fault)
{
    const struct rlimit none = {0, 0};
    const int nowhere = open("/dev/null", O_WRONLY);
    struct input input = {.state = 1};
    (void)setrlimit(RLIMIT_CORE, &none);
    if (fault && nowhere >= 0) {
        (void)dup2(nowhere, STDERR_FILENO);
    }
    (void)signal(SIGABRT, SIG_DFL);
    for (int s = 0; s < SCHEDULES; s++) {
        if (!planted_right(kernel, fault, &input)) {
            return WRONG;
        }
    }
    return 0;
}

/* How the process ended. */
static int planted_run(launch_kernel *kernel, bool fault)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(planted_child(kernel, fault));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void planted_test(const char *name, launch_kernel *kernel, enum planted_finder finder)
{
    const int clean = planted_run(kernel, false);
    const int status = planted_may_run(finder) ? planted_run(kernel, true) : 0;
    if (clean != 0) {
        fail_msg("%s without its fault: status %#x", name, (unsigned)clean);
    }
    if ((status != 0) != planted_is_found(finder)) {
        fail_msg("%s: status %#x", name, (unsigned)status);
    }
    if (status != 0 && finder == PLANTED_SHIM) {
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

#define PLANTED_TEST(name, finder)                                                                 \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        planted_test(#name, run_##name, finder);                                                   \
    }
PLANTED(PLANTED_TEST)

int main(void)
{
#define PLANTED_UNIT(name, finder) cmocka_unit_test(test_##name),
    const struct CMUnitTest tests[] = {PLANTED(PLANTED_UNIT)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
