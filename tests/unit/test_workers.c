/* Worker threads: every compute runs once and is handed back once. Stopping waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/loop/workers.h"

#define COMPUTES 2000u

struct counted {
    struct compute compute; /* first, so that a compute is a pointer to its job */
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

    assert_int_equal(poll(&entry, 1, 60000), 1);
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
            item->plain = 100; /* would show a second return */
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

/* With one thread computes finish in the order in which they were submitted. That holds also when
 * the rings of the queues wrap and grow. */
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

/* Computes of one thread, in the order in which they were run. */
struct ordered {
    struct workers *workers;
    struct compute slow;
    struct counted item[40];
    unsigned order[40];
    int fd;
};

static void ordered_begin(struct ordered *ordered)
{
    memset(ordered, 0, sizeof(*ordered));
    ordered->fd = eventfd(0, EFD_CLOEXEC);
    ordered->slow.run = run_slow;
    ordered->workers = workers_create(1, notify, &ordered->fd, NULL);
    assert_non_null(ordered->workers);
    atomic_store(&slow_started, false);
    atomic_store(&slow_may_end, false);
    assert_true(workers_submit(ordered->workers, &ordered->slow));
    while (!atomic_load(&slow_started)) {
        (void)usleep(1000);
    }
}

static void ordered_submit(struct ordered *ordered, unsigned i, uint64_t job, uint64_t place)
{
    ordered->item[i].compute.run = run_counted;
    ordered->item[i].compute.class = (struct share_class){.job = job, .place = place};
    assert_true(workers_submit(ordered->workers, &ordered->item[i].compute));
}

static void ordered_end(struct ordered *ordered, unsigned count)
{
    unsigned back = 0;

    atomic_store(&slow_may_end, true);
    while (back <= count) {
        struct compute *done = workers_take(ordered->workers);

        if (done != NULL && done != &ordered->slow) {
            ordered->order[back - 1] = (unsigned)((struct counted *)done - ordered->item);
        }
        back += done != NULL ? 1 : 0;
    }
    workers_destroy(ordered->workers);
    (void)close(ordered->fd);
}

/* Within a job the lowest place is next. But every (SHARE_PASSES + 1)-th turn is for the oldest. */
static void test_places(void **state)
{
    struct ordered ordered;

    (void)state;
    ordered_begin(&ordered);
    for (unsigned i = 0; i < 20; i++) {
        ordered_submit(&ordered, i, 1, 100 - i);
    }
    ordered_end(&ordered, 20);
    for (unsigned i = 0; i < SHARE_PASSES; i++) {
        assert_int_equal(ordered.order[i], 19 - i);
    }
    assert_int_equal(ordered.order[SHARE_PASSES], 0);
    assert_int_equal(ordered.order[SHARE_PASSES + 1], 19 - SHARE_PASSES);
}

/* A job with one compute does not wait for all earlier computes of another job. */
static void test_jobs_share(void **state)
{
    struct ordered ordered;

    (void)state;
    ordered_begin(&ordered);
    for (unsigned i = 0; i < 39; i++) {
        ordered_submit(&ordered, i, 1, 0);
    }
    ordered_submit(&ordered, 39, 2, 1000);
    ordered_end(&ordered, 40);
    assert_int_equal(ordered.order[0], 0);
    assert_int_equal(ordered.order[1], 39);
}

/* The question of the watchdog: how long has the oldest compute been running? */
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
    assert_true(workers_submit(workers, &quick.compute)); /* on the other thread */
    await_notification(fd);
    assert_ptr_equal(workers_take(workers), &quick.compute);
    before = workers_longest_us(workers);
    (void)usleep(30000);
    assert_true(workers_longest_us(workers) >= before + 30000);
    atomic_store(&slow_may_end, true);
    await_notification(fd);
    assert_ptr_equal(workers_take(workers), &slow);
    assert_int_equal(workers_longest_us(workers), 0);
    assert_int_equal(workers_count(workers), 2);
    assert_true(workers_busy_us(workers) >= before + 30000);
    workers_destroy(workers);
    (void)close(fd);
}

/* ------------------------------------------------------------------ loops */

#define PARTS_MAX 200u
#define LOOPS 300u

/* A compute with loops in it. */
struct looping {
    struct compute compute;
    struct parallel parallel;
    unsigned parts;
    unsigned ran[PARTS_MAX];                  /* which thread ran each part: 1 + its number */
    unsigned scratch[CONFIG_WORKERS_MAX + 1]; /* one per thread: no other thread may be in it */
    unsigned before;
    atomic_uint wrong;
    bool nested;
};

static void run_part(void *arg, unsigned p, unsigned thread)
{
    struct looping *looping = arg;

    looping->wrong += looping->before != 77 || p >= looping->parts ? 1 : 0;
    looping->scratch[thread]++;
    looping->ran[p] += 1 + thread;
}

struct inner {
    struct looping *outer;
    unsigned p;
    unsigned parts[7];
};

static void run_inner(void *arg, unsigned p, unsigned thread)
{
    struct inner *inner = arg;

    (void)thread;
    inner->parts[p] = inner->p + p;
}

/* A part that runs a loop of its own. */
static void run_outer(void *arg, unsigned p, unsigned thread)
{
    struct looping *looping = arg;
    struct parallel parallel = looping->parallel;
    struct inner inner = {.outer = looping, .p = p};

    parallel.caller = thread;
    parallel_for(&parallel, run_inner, &inner, 7);
    for (unsigned i = 0; i < 7; i++) {
        if (inner.parts[i] != p + i) {
            return; /* the part is then missing */
        }
    }
    run_part(arg, p, thread);
}

static void run_looping(struct compute *compute)
{
    struct looping *looping = (struct looping *)compute;

    looping->parallel.caller = compute->thread;
    looping->before = 77;
    parallel_for(
        &looping->parallel, looping->nested ? run_outer : run_part, looping, looping->parts);
    for (unsigned p = 0; p < PARTS_MAX; p++) {
        looping->wrong += (looping->ran[p] != 0) != (p < looping->parts) ? 1 : 0;
        looping->wrong += looping->ran[p] > looping->parallel.threads ? 1 : 0;
    }
}

/* Every part of every loop runs once, whether its workers are idle or all in loops themselves. */
static void all_parts_run(unsigned threads, bool nested)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(threads, notify, &fd, NULL);
    struct looping *looping = calloc(LOOPS, sizeof(*looping));
    unsigned back = 0;

    assert_non_null(workers);
    assert_non_null(looping);
    assert_int_equal(parallel_threads(&(struct parallel){.threads = 5}), 1);
    for (unsigned i = 0; i < LOOPS; i++) {
        looping[i].compute.run = run_looping;
        looping[i].parallel = workers_parallel(workers);
        looping[i].parts = i % PARTS_MAX;
        looping[i].nested = nested;
        assert_int_equal(parallel_threads(&looping[i].parallel), threads + 1);
        assert_true(workers_submit(workers, &looping[i].compute));
        if (i % 16 == 0) { /* the owner has loops too */
            struct looping *own = calloc(1, sizeof(*own));
            assert_non_null(own);
            own->parallel = workers_parallel(workers);
            own->parts = PARTS_MAX;
            own->nested = nested;
            run_looping(&own->compute);
            assert_int_equal(own->wrong, 0);
            free(own);
        }
    }
    while (back < LOOPS) {
        struct compute *done;

        await_notification(fd);
        while ((done = workers_take(workers)) != NULL) {
            assert_int_equal(((struct looping *)done)->wrong, 0);
            back++;
        }
    }
    assert_int_equal(workers_longest_us(workers), 0);
    workers_destroy(workers);
    free(looping);
    (void)close(fd);
}

static void test_loops(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads++) {
        all_parts_run(threads, false);
        all_parts_run(threads, true);
    }
}

/* Two parts that wait for each other. Only two threads at the same time can end the loop. */
static void meet(void *arg, unsigned p, unsigned thread)
{
    atomic_uint *arrived = arg;

    (void)p;
    (void)thread;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2) {
        (void)usleep(100);
    }
}

static void test_idle_workers_help(void **state)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(1, notify, &fd, NULL);
    struct parallel parallel;

    (void)state;
    assert_non_null(workers);
    parallel = workers_parallel(workers);
    for (unsigned i = 0; i < 50; i++) {
        atomic_uint arrived = 0;
        parallel_for(&parallel, meet, &arrived, 2);
        assert_int_equal(atomic_load(&arrived), 2);
    }
    workers_destroy(workers);
    (void)close(fd);
}

static atomic_uint slow_parts;

static void slow_part(void *arg, unsigned p, unsigned thread)
{
    (void)arg;
    (void)p;
    (void)thread;
    (void)usleep(1000);
    atomic_fetch_add(&slow_parts, 1);
}

static void run_slow_loop(struct compute *compute)
{
    const struct looping *looping = (struct looping *)compute;

    atomic_store(&slow_started, true);
    parallel_for(&looping->parallel, slow_part, NULL, 60);
    atomic_store(&slow_ended, true);
}

/* The pool is destroyed in the middle of a loop. The caller of the loop ends it, whichever threads
 * helped. */
static void test_destroy_waits_for_a_loop(void **state)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    struct workers *workers = workers_create(3, notify, &fd, NULL);
    static struct looping slow = {.compute = {.run = run_slow_loop}};

    (void)state;
    assert_non_null(workers);
    slow.parallel = workers_parallel(workers);
    atomic_store(&slow_started, false);
    atomic_store(&slow_ended, false);
    assert_true(workers_submit(workers, &slow.compute));
    while (!atomic_load(&slow_started)) {
        (void)usleep(100);
    }
    (void)usleep(5000);
    workers_destroy(workers);
    assert_true(atomic_load(&slow_ended));
    assert_int_equal(atomic_load(&slow_parts), 60);
    (void)close(fd);
}

static void test_bad_count(void **state)
{
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    assert_null(workers_create(0, notify, NULL, &err));
    assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
    assert_null(workers_create(CONFIG_WORKERS_MAX + 1, notify, NULL, &err));
    assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
    workers_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_four_threads),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_jobs_share),
        cmocka_unit_test(test_destroy_waits_for_the_running_one),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_idle_workers_help),
        cmocka_unit_test(test_destroy_waits_for_a_loop),
        cmocka_unit_test(test_bad_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
