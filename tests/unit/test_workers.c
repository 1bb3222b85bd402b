/* Worker threads: every compute runs once, is handed back once, and stopping waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/workers.h"

#define COMPUTES 2000u

struct counted {
    struct compute compute; /* first: a compute is turned back into its job */
    atomic_uint runs;
    unsigned plain; /* written by the worker, read by the owner: races show under TSan */
};

static void run_counted(struct compute *compute)
{
    struct counted *counted = (struct counted *)compute;

    counted->plain++;
    atomic_fetch_add(&counted->runs, 1);
}

/* Like uv_async_send(): coalesces, and can be waited for. */
static void notify(void *context)
{
    uint64_t one = 1;
    int *fd = context;

    if (write(*fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
        abort();
    }
}

static void await_notification(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    uint64_t count;

    assert_int_equal(poll(&entry, 1, 10000), 1);
    assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
}

static void all_come_back_once(unsigned threads)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(threads, notify, &fd, NULL);
    struct counted *counted = calloc(COMPUTES, sizeof(*counted));
    unsigned back = 0;

    assert_non_null(workers);
    assert_non_null(counted);
    for (unsigned i = 0; i < COMPUTES; i++) {
        counted[i].compute.run = run_counted;
        assert_true(workers_submit(workers, &counted[i].compute));
    }
    while (back < COMPUTES) {
        struct compute *done;

        await_notification(fd);
        while ((done = workers_take(workers)) != NULL) {
            struct counted *item = (struct counted *)done;

            assert_int_equal(item->plain, 1);
            item->plain = 100; /* a second return would show */
            back++;
        }
    }
    assert_false(workers_finished(workers));
    assert_null(workers_take(workers));
    workers_destroy(workers);
    for (unsigned i = 0; i < COMPUTES; i++) {
        assert_int_equal(atomic_load(&counted[i].runs), 1);
        assert_int_equal(counted[i].plain, 100);
    }
    free(counted);
    (void)close(fd);
}

static void test_one_thread(void **state)
{
    (void)state;
    all_come_back_once(1);
}

static void test_four_threads(void **state)
{
    (void)state;
    all_come_back_once(4);
}

/* With one thread computes finish in the order in which they were submitted, also when the rings
 * of the queues wrap and grow. */
static void test_order(void **state)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(1, notify, &fd, NULL);
    struct counted *counted = calloc(COMPUTES, sizeof(*counted));
    unsigned submitted = 0;
    unsigned back = 0;

    (void)state;
    assert_non_null(workers);
    assert_non_null(counted);
    while (back < COMPUTES) {
        struct compute *done;

        for (unsigned i = 0; i < 1 + back % 40 && submitted < COMPUTES; i++, submitted++) {
            counted[submitted].compute.run = run_counted;
            assert_true(workers_submit(workers, &counted[submitted].compute));
        }
        done = workers_take(workers);
        if (done != NULL) {
            assert_ptr_equal(done, &counted[back].compute);
            back++;
        }
    }
    workers_destroy(workers);
    free(counted);
    (void)close(fd);
}

static atomic_bool slow_started;
static atomic_bool slow_may_end;
static atomic_bool slow_ended;

static void run_slow(struct compute *compute)
{
    (void)compute;
    atomic_store(&slow_started, true);
    while (!atomic_load(&slow_may_end)) {
        (void)usleep(1000);
    }
    (void)usleep(20000);
    atomic_store(&slow_ended, true);
}

static void test_destroy_waits_for_the_running_one(void **state)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(1, notify, &fd, NULL);
    struct compute slow = {.run = run_slow};
    struct counted waiting = {.compute.run = run_counted};

    (void)state;
    assert_non_null(workers);
    assert_true(workers_submit(workers, &slow));
    assert_true(workers_submit(workers, &waiting.compute));
    while (!atomic_load(&slow_started)) {
        (void)usleep(1000);
    }
    atomic_store(&slow_may_end, true);
    workers_destroy(workers);
    assert_true(atomic_load(&slow_ended));
    assert_int_equal(atomic_load(&waiting.runs), 0);
    (void)close(fd);
}

/* The watchdog's question: how long has the oldest compute been running? */
static void test_longest(void **state)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(2, notify, &fd, NULL);
    struct compute slow = {.run = run_slow};
    struct counted quick = {.compute.run = run_counted};
    uint64_t before;

    (void)state;
    assert_non_null(workers);
    assert_int_equal(workers_longest_us(workers), 0);
    atomic_store(&slow_started, false);
    atomic_store(&slow_may_end, false);
    assert_true(workers_submit(workers, &slow));
    while (!atomic_load(&slow_started)) {
        (void)usleep(1000);
    }
    assert_true(workers_submit(workers, &quick.compute)); /* by the other thread */
    await_notification(fd);
    assert_ptr_equal(workers_take(workers), &quick.compute);
    before = workers_longest_us(workers);
    (void)usleep(30000);
    assert_true(workers_longest_us(workers) >= before + 30000);
    atomic_store(&slow_may_end, true);
    await_notification(fd);
    assert_ptr_equal(workers_take(workers), &slow);
    assert_int_equal(workers_longest_us(workers), 0);
    workers_destroy(workers);
    (void)close(fd);
}

static void test_bad_count(void **state)
{
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_null(workers_create(0, notify, NULL, &err));
    assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
    assert_null(workers_create(WORKERS_MAX + 1, notify, NULL, &err));
    assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
    workers_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_four_threads),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_destroy_waits_for_the_running_one),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_bad_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
