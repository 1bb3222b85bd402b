/* Batches that have come meanwhile go to a worker together, and leave the bits of one batch. */
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
    for (unsigned t = 0; t < TENSORS; t++) {
        engine_batch_free(&batch[t]);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_together),
        cmocka_unit_test(test_batches_that_do_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
