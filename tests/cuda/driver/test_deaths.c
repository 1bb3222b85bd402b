/*
 * Workers that die between two steps of the conversation with their feeder. The next one does what
 * the one before did not, and nothing that was lost counts as good.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/driver/sides.h"

/* The worker that finds memory empty clears it, and is killed before it can say so. The next one
 * may not take what it cleared for residuals. */
static void test_killed_before_it_says_so(void **state)
{
    static const unsigned numbers[] = {MAIN, RANK, VELOCITIES, RESIDUALS};
    char path[] = "/tmp/adtopk-forgets-XXXXXX";
    const int file = mkstemp(path);
    struct device_worker_info info;

    (void)state;
    assert_true(file >= 0);
    (void)close(file);
    sides_prepare(SIDES_MEDIUM);
    sides_start("early", "", 0);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sides_open_part(numbers[i], sides_size(numbers[i]));
    }
    sides_step(1, NULL);
    assert_int_equal(setenv("ADTOPK_TEST_CUDA_FORGETS", path, 1), 0);
    assert_int_equal(setenv("ADTOPK_TEST_CUDA_FAIL", "cuStreamSynchronize:2:hang", 1), 0);
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    while (info.starts < 2 || info.pid == 0) {
        (void)usleep(1000);
        assert_true(device_worker_info(sides.device, 0, &info));
    }
    (void)usleep(1500000); /* it has looked, and waits for the stream that clears */
    (void)unlink(path);
    assert_int_equal(unsetenv("ADTOPK_TEST_CUDA_FORGETS"), 0);
    assert_int_equal(setenv("ADTOPK_TEST_CUDA_FAIL", "", 1), 0);
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    for (unsigned t = 0; t < TENSORS; t++) {
        (void)sides_order(&sides.cuda, ENGINE_SUMS, t);
    }
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    assert_int_equal(sides_event().type, DEVICE_DONE);
    sides_losses_told(true);
    engine_batch_clear(&sides.cuda.batch);
    sides_close();
}

/* The worker dies as it maps a part, and the feeder learns it when an aborted operation is next:
 * another worker is started, with a page and a socket of its own. */
static void test_dies_before_an_aborted_operation(void **state)
{
    uint8_t name[CARGO_NAME_SIZE * CARGO_DEVICES];
    struct cargo cargo = {.kind = CARGO_NAME, .job = JOB, .group = {.devices = 1}, .input = name};
    struct device_worker_info info;

    (void)state;
    sides_open("late", "cuMemImportFromShareableHandle:5:hang", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_size(OTHER));
    atomic_store(&cargo.aborted, true);
    device_carrier.start(sides.device, &cargo);
    (void)usleep(500000); /* the feeder waits for the part */
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(setenv("ADTOPK_TEST_CUDA_FAIL", "", 1), 0);
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    assert_int_equal(sides_event().type, DEVICE_CARRIED);
    sides_step(1, NULL); /* the next worker has all parts */
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(info.starts, 2);
    sides_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_before_it_says_so),
        cmocka_unit_test(test_dies_before_an_aborted_operation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
