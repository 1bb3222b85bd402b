/* Batches that have come meanwhile go to a worker together, and leave the bits of one batch. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/device/state.h"
#include "daemon/engine/engine.h"
#include "tests/cuda/driver/sides.h"

/* A batch for each tensor. */
static void apart_make(struct engine_batch batch[TENSORS], uint64_t stamp)
{
    const struct engine_batch whole = sides.cuda.batch;

    for (unsigned t = 0; t < TENSORS; t++) {
        assert_true(engine_batch_init(&sides.cuda.batch, &sides.cuda.memory, 1, RANKS));
        sides_add_plain(&sides.cuda, t, stamp, "topk");
        batch[t] = sides.cuda.batch;
    }
    sides.cuda.batch = whole;
}

static void apart_free(struct engine_batch batch[TENSORS])
{
    for (unsigned t = 0; t < TENSORS; t++) {
        engine_batch_free(&batch[t]);
    }
}

/* Each comes back once; the results of all are those of one batch. */
static void apart_run(struct engine_batch batch[TENSORS], void (*beside)(void))
{
    unsigned done[TENSORS] = {0};

    for (unsigned t = 0; t < TENSORS; t++) {
        engine_cuda.submit(sides.device, &batch[t]);
    }
    if (beside != NULL) {
        beside();
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        const struct device_event event = sides_event();
        assert_int_equal(event.type, DEVICE_DONE);
        done[event.batch - batch]++;
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        assert_int_equal(done[t], 1);
        assert_true(batch[t].took_us > 0);
        sides.cuda.batch.result[t] = batch[t].result[0];
    }
}

/* Batches that have come meanwhile are fed together, and each comes back. The first three have come
 * when the worker is there. */
static void apart(uint64_t stamp, void (*beside)(void))
{
    struct engine_batch batch[TENSORS];

    apart_make(batch, stamp);
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_add_plain(&sides.host, t, stamp, "topk");
        sides_add_plain(&sides.cuda, t, stamp, "topk");
    }
    apart_run(batch, beside);
    engine_host.run(NULL, &sides.host.batch, &(struct parallel){.threads = 0});
    sides_compare();
    apart_free(batch);
}

static void test_batches_together(void **state)
{
    struct device_worker_info info;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    apart(1, NULL);
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(info.launches, 5); /* as for one batch: test_engine.c, test_launches() */
    assert_int_equal(info.batches, TENSORS);
    for (uint64_t stamp = 2; stamp < CASES(12, 4); stamp++) {
        apart(stamp, sides_kill);
    }
    sides_close();
}

/* Together they need more memory than there is: then they go one by one. */
static void test_batches_that_do_not_fit(void **state)
{
    struct device_worker_info info;

    (void)state;
    sides_open("late", "cuMemAlloc_v2:1:2", 0, SIDES_MEDIUM);
    apart(1, NULL);
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(info.starts, 1);
    assert_int_equal(info.batches, TENSORS);
    assert_int_equal(info.launches, TENSORS * 5);
    sides_close();
}

static uint64_t scratch_of(void)
{
    return device_use(sides.device, 0, NULL).scratch;
}

/* Scratch memory that a worker was refused is not counted as its own, nor asked for again. */
static void test_refused_memory(void **state)
{
    uint64_t together;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    apart(1, NULL);
    together = scratch_of();
    sides_close();
    sides_open("late", "cuMemAlloc_v2:1:2", 0, SIDES_MEDIUM);
    for (uint64_t stamp = 1; stamp < 12; stamp++) {
        apart(stamp, NULL);
        assert_in_range(scratch_of(), 1, together - 1);
    }
    sides_close();
}

#define SMALL 1000u

/* A batch with two orders for each of the first tensors. */
static void part_of(unsigned tensors, uint64_t stamp)
{
    for (unsigned t = 0; t < tensors; t++) {
        sides_add_plain(&sides.host, t, stamp, "topk");
        sides_add_plain(&sides.cuda, t, stamp, "topk");
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(NULL);
    sides_compare();
}

/* The same for all tensors. Returns how many kernels it took. */
static uint64_t whole(uint64_t stamp)
{
    struct device_worker_info info;
    uint64_t before;

    assert_true(device_worker_info(sides.device, 0, &info));
    before = info.launches;
    part_of(TENSORS, stamp);
    assert_true(device_worker_info(sides.device, 0, &info));
    return info.launches - before;
}

/* Other programs leave so much of the device's memory. */
static void others_leave(const char *path, uint64_t size)
{
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)((UINT64_C(1) << 30) - size)), 0);
    (void)close(fd);
}

/* A worker that was refused scratch memory goes on with smaller runs, also while it asks again in
 * vain. When memory is free again, its runs are whole again. */
static void test_memory_that_is_free_again(void **state)
{
    char path[64];
    uint64_t stamp = 1, together, launches;

    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/adtopk-others-%d", (int)getpid());
    (void)setenv("ADTOPK_TEST_CUDA_OTHERS", path, 1);
    (void)setenv("ADTOPK_TEST_CUDA_GRANULE", "4096", 1);
    sides_open("late", "", 0, SMALL);
    launches = whole(1);
    together = scratch_of();
    sides_close();
    sides_open("late", "", 0, SMALL);
    others_leave(path, together * 2 / 3);
    for (; stamp < 45; stamp++) {
        assert_in_range(whole(stamp), launches + 1, 4 * launches);
    }
    assert_int_equal(unlink(path), 0);
    while (whole(stamp) != launches) {
        assert_true(++stamp < 300);
    }
    assert_int_equal(scratch_of(), together);
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_OTHERS");
    (void)unsetenv("ADTOPK_TEST_CUDA_GRANULE");
}

/* A worker gives back what it has to get more, and others take it in the meantime. What is left is
 * enough for some orders at a time. */
static void test_others_take_it_meanwhile(void **state)
{
    char path[64];
    uint64_t had;

    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/adtopk-others-%d", (int)getpid());
    (void)setenv("ADTOPK_TEST_CUDA_OTHERS", path, 1);
    (void)setenv("ADTOPK_TEST_CUDA_GRANULE", "4096", 1);
    sides_open("late", "", 0, SMALL);
    others_leave(path, UINT64_C(245000));
    part_of(TENSORS, 1); /* a worker that has nothing yet goes on with what there is */
    assert_int_equal(unlink(path), 0);
    sides_close();
    sides_open("late", "", 0, SMALL);
    part_of(1, 1);
    part_of(TENSORS - 1, 2);
    had = scratch_of();
    assert_true(had > UINT64_C(245000));
    others_leave(path, UINT64_C(245000));
    part_of(TENSORS, 3);
    assert_int_equal(unlink(path), 0);
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_OTHERS");
    (void)unsetenv("ADTOPK_TEST_CUDA_GRANULE");
}

/* Another worker is being started, so batches that come now go to it together. */
static void restart(const char *fails)
{
    struct device_worker_info info;
    uint64_t starts;

    (void)setenv("ADTOPK_TEST_CUDA_FAIL", fails, 1);
    assert_true(device_worker_info(sides.device, 0, &info));
    starts = info.starts;
    (void)kill(info.pid, SIGKILL);
    while (info.starts == starts) {
        (void)usleep(100);
        assert_true(device_worker_info(sides.device, 0, &info));
    }
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", "", 1);
}

/* A worker has lost its memory's content. A later one has no memory for all batches together, and
 * dies while they go one by one. False: on a busy machine they did not come together. */
static bool losses_apart(struct engine_batch batch[TENSORS])
{
    struct device_worker_info info;

    sides_step(1, NULL);
    sides_forget();
    sides_run(NULL); /* nothing, but the workers before have not all failed in a row */
    restart("cuMemAlloc_v2:1:2,cuLaunchKernel:12:719");
    apart_run(batch, NULL);
    assert_true(device_worker_info(sides.device, 0, &info));
    return info.starts == 4;
}

/* The results of all say what was lost. */
static void test_losses_apart(void **state)
{
    bool done = false;

    (void)state;
    for (unsigned tries = 0; !done; tries++) {
        struct engine_batch batch[TENSORS];

        assert_true(tries < 20);
        sides_open("late", "", 0, SIDES_MEDIUM);
        apart_make(batch, 2);
        done = losses_apart(batch);
        for (unsigned t = 0; t < TENSORS && done; t++) {
            assert_int_equal(batch[t].result[0].status, ADTOPK_OK);
            assert_int_equal(batch[t].result[0].emptied, 1);
        }
        apart_free(batch);
        sides_close();
    }
}

/* A pass that is repeated behind a later one over the same residual would spoil the ledger. */
static void test_passes_once(void **state)
{
    struct engine_batch *batch = &sides.host.batch;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_add(&sides.host, 0, 1);
    sides_read(&sides.host, 0);
    sides_add(&sides.host, 1, 1);
    assert_true(engine_passes_once(batch));
    sides_read(&sides.host, 1);
    sides_add(&sides.host, 1, 2);
    assert_false(engine_passes_once(batch));
    batch->order[batch->count - 1].residual.element.arena = RANK;
    assert_true(engine_passes_once(batch));
    sides_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_together),
        cmocka_unit_test(test_batches_that_do_not_fit),
        cmocka_unit_test(test_refused_memory),
        cmocka_unit_test(test_memory_that_is_free_again),
        cmocka_unit_test(test_others_take_it_meanwhile),
        cmocka_unit_test(test_losses_apart),
        cmocka_unit_test(test_passes_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
