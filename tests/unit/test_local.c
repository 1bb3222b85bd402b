/* A rank on a daemon's node, over real sockets: steps, and operations on all ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local_rank.h"

#define NUMEL 1000u

static adtopk_context *open_ready(const char *job, uint32_t tensors, unsigned forms)
{
    return rank_ready(job, (struct rank_wish){.tensors = tensors, .numel = NUMEL, .forms = forms});
}

static void test_steps(void **state)
{
    static const unsigned forms[] = {
        ADTOPK_FORM_DENSE, ADTOPK_FORM_LIST, ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        adtopk_context *context = open_ready("steps", 3, forms[i]);

        assert_int_equal(adtopk_rank(context), 0);
        assert_int_equal(adtopk_world_size(context), 1);
        for (int step = 0; step < 400; step++) { /* the ring goes round more than once */
            rank_train(context);
        }
        adtopk_close(context);
    }
}

/* The daemon sleeps before each step. */
static void test_asleep(void **state)
{
    adtopk_context *context = open_ready("asleep", 1, ADTOPK_FORM_DENSE);

    (void)state;
    for (int step = 0; step < 50; step++) {
        sleep_ms(3);
        rank_train(context);
    }
    adtopk_close(context);
}

static void test_many_tensors(void **state)
{
    adtopk_context *context = rank_open("many");

    (void)state;
    for (unsigned i = 0; i < 3000; i++) { /* several messages; more than the ring takes */
        char name[128];
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name,
            .dims = 4,
            .shape = {2, 1, 1, 2},
            .dtype = ADTOPK_F32};
        uint32_t tensor;

        (void)snprintf(name, sizeof name, "%0100u", i);
        assert_status(context, adtopk_register(context, &spec, &tensor), ADTOPK_OK);
    }
    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    for (int step = 0; step < 3; step++) {
        for (unsigned i = 0; i < 3000; i++) {
            const float gradient[4] = {(float)i, 1, 2, (float)step};
            assert_status(context, adtopk_push_tensor(context, i, gradient), ADTOPK_OK);
        }
        assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
        for (unsigned i = 0; i < 3000; i += 123) {
            struct adtopk_update update = {.size = sizeof update};
            assert_status(context, adtopk_update(context, i, &update), ADTOPK_OK);
            assert_true(fabs((double)update.dense[0] - i) < 1e-9);
            assert_true(fabs((double)update.dense[3] - step) < 1e-9);
        }
    }
    adtopk_close(context);
}

static void test_wait_for_a_tensor(void **state)
{
    adtopk_context *context = open_ready("wait", 2, ADTOPK_FORM_DENSE);
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    rank_fill(adtopk_gradient(context, 0), NUMEL, 0, 0);
    rank_fill(adtopk_gradient(context, 1), NUMEL, 0, 1);
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
    assert_status(context, adtopk_wait(context, 0), ADTOPK_OK);
    rank_assert_update(context, 0, 0);
    assert_status(context, adtopk_update(context, 1, &update), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_push_tensor(context, 1, NULL), ADTOPK_OK);
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    assert_status(context, adtopk_wait(context, 1), ADTOPK_OK); /* after the end too */
    rank_assert_update(context, 0, 1);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    rank_assert_update(context, 0, 0);
    adtopk_close(context);
}

static void test_nonfinite(void **state)
{
    adtopk_context *context = open_ready("nan", 2, ADTOPK_FORM_DENSE);
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    rank_train(context);
    rank_fill(adtopk_gradient(context, 0), NUMEL, 1, 0);
    rank_fill(adtopk_gradient(context, 1), NUMEL, 1, 1);
    ((float *)adtopk_gradient(context, 1))[NUMEL - 1] = NAN;
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
    assert_status(context, adtopk_push_tensor(context, 1, NULL), ADTOPK_OK);
    assert_status(context, adtopk_wait(context, 1), ADTOPK_NONFINITE);
    assert_says(context, "w1");
    assert_status(context, adtopk_update(context, 1, &update), ADTOPK_ERR_STATE);
    assert_says(context, "not finite");
    assert_status(context, adtopk_step_wait(context), ADTOPK_NONFINITE);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_STATE);
    assert_says(context, "withdrawn");
    assert_int_equal(adtopk_step(context), 2);
    rank_train(context);
    adtopk_close(context);
}

static void test_operations(void **state)
{
    adtopk_context *context = open_ready("ops", 1, 0);
    const size_t size = (5u << 20) / 2 + 3; /* three pieces */
    uint8_t *bytes = malloc(size);
    float *values = malloc(size);

    (void)state;
    assert_true(bytes != NULL && values != NULL);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(i * 13);
    }
    for (size_t i = 0; i < size / 4; i++) {
        values[i] = (float)i;
    }
    assert_status(context, adtopk_broadcast(context, bytes, size, 0), ADTOPK_OK);
    assert_status(context, adtopk_barrier(context), ADTOPK_OK);
    assert_status(context, adtopk_allreduce(context, values, size / 4), ADTOPK_OK);
    for (size_t i = 0; i < size; i++) {
        assert_int_equal(bytes[i], (uint8_t)(i * 13));
    }
    for (size_t i = 0; i < size / 4; i++) { /* one rank: the sum is the value */
        assert_true(fabs((double)values[i] - (double)(float)i) < 1e-9);
    }
    assert_status(context, adtopk_broadcast(context, bytes, 1, 1), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_broadcast(context, bytes, 1, -1), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_broadcast(context, NULL, 1, 0), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_allreduce(context, NULL, 1), ADTOPK_ERR_ARGUMENT);
    assert_status(
        context, adtopk_allreduce(context, values, SIZE_MAX / 4 + 2), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "floats");
    assert_status(context, adtopk_allreduce(context, values, SIZE_MAX), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_broadcast(context, bytes, SIZE_MAX, 0), ADTOPK_ERR_ARGUMENT);
    rank_train(context);
    free(bytes);
    free(values);
    adtopk_close(context);
}

/* Every system call may be interrupted. */
static void test_signals(void **state)
{
    adtopk_context *context;

    (void)state;
    rank_alarm_every(300);
    context = open_ready("signals", 2, 0);
    for (int step = 0; step < 300; step++) {
        rank_train(context);
    }
    assert_status(context, adtopk_barrier(context), ADTOPK_OK);
    adtopk_close(context);
    rank_alarm_every(0);
    assert_true(rank_alarms > 0);
}

#define LOCAL_TEST(name) cmocka_unit_test_setup_teardown(name, rank_daemon_start, rank_daemon_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOCAL_TEST(test_steps),
        LOCAL_TEST(test_asleep),
        LOCAL_TEST(test_many_tensors),
        LOCAL_TEST(test_wait_for_a_tensor),
        LOCAL_TEST(test_nonfinite),
        LOCAL_TEST(test_operations),
        LOCAL_TEST(test_signals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
