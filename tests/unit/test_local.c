/* The client library and the daemon's sessions, over real sockets: calls that succeed, and calls
 * that the library itself refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/src/context.h"
#include "local_daemon.h"

#define NUMEL 1000u

static struct daemon daemon_;

static int start(void **state)
{
    (void)state;
    return daemon_start(&daemon_, 64);
}

static int stop(void **state)
{
    const int status = daemon_.pid > 0 ? daemon_stop(&daemon_) : 0;

    (void)state;
    daemon_remove(&daemon_);
    return status;
}

static void assert_status(
    const adtopk_context *context, enum adtopk_status got, enum adtopk_status expected)
{
    if (got != expected) {
        fail_msg("status %s (%s), not %s", adtopk_status_name(got), adtopk_message(context),
            adtopk_status_name(expected));
    }
}

static void assert_says(const adtopk_context *context, const char *word)
{
    if (strstr(adtopk_message(context), word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", adtopk_message(context), word);
    }
}

static adtopk_context *open_job(const char *job)
{
    const struct adtopk_options options = {.size = sizeof options,
        .address = daemon_.address,
        .job = job,
        .has_rank = 1,
        .world_size = 1};
    adtopk_context *context = NULL;

    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_OK);
    return context;
}

static adtopk_context *open_ready(const char *job, uint32_t tensors, unsigned forms)
{
    adtopk_context *context = open_job(job);
    char name[16];

    for (uint32_t i = 0; i < tensors; i++) {
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name,
            .dims = 2,
            .shape = {10, NUMEL / 10},
            .forms = forms};
        uint32_t number;

        (void)snprintf(name, sizeof name, "w%u", i);
        assert_status(context, adtopk_register(context, &spec, &number), ADTOPK_OK);
        assert_int_equal(number, i);
    }
    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    return context;
}

/* Some of a gradient's elements are 0, so that lists are shorter. */
static float element(uint64_t step, uint32_t tensor, uint32_t i)
{
    return i % 3 == 0 ? 0.0f : (float)(step * 31 + tensor * 7 + i) * 0.25f;
}

static void fill(float *gradient, uint64_t step, uint32_t tensor)
{
    for (uint32_t i = 0; i < NUMEL; i++) {
        gradient[i] = element(step, tensor, i);
    }
}

static void assert_update(adtopk_context *context, uint64_t step, uint32_t tensor, unsigned forms)
{
    struct adtopk_update update = {.size = sizeof update};
    float parameters[NUMEL] = {0};

    assert_status(context, adtopk_update(context, tensor, &update), ADTOPK_OK);
    assert_int_equal(update.numel, NUMEL);
    assert_int_equal(update.step, step);
    assert_int_equal(update.dense != NULL, (forms & ADTOPK_FORM_DENSE) != 0);
    assert_int_equal(update.index != NULL, (forms & ADTOPK_FORM_LIST) != 0);
    adtopk_apply_sgd(parameters, &update, -1.0f);
    for (uint32_t i = 0; i < NUMEL; i++) {
        const double expected = (double)element(step, tensor, i);
        if (fabs((double)parameters[i] - expected) > 0 ||
            (update.dense != NULL && fabs((double)update.dense[i] - expected) > 0)) {
            fail_msg("step %llu tensor %u element %u", (unsigned long long)step, tensor, i);
        }
    }
}

static void train(adtopk_context *context, uint32_t tensors, unsigned forms)
{
    float gradient[NUMEL];
    const uint64_t step = adtopk_step(context);

    for (uint32_t i = 0; i < tensors; i++) {
        if (i % 2 == 0) {
            fill(gradient, step, i);
            assert_status(context, adtopk_push_tensor(context, i, gradient), ADTOPK_OK);
            memset(gradient, 0, sizeof gradient); /* the push copied it */
        } else {
            fill(adtopk_gradient(context, i), step, i);
            assert_status(context, adtopk_push_tensor(context, i, NULL), ADTOPK_OK);
        }
    }
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_int_equal(adtopk_step(context), step + 1);
    for (uint32_t i = 0; i < tensors; i++) {
        assert_update(context, step, i, forms);
    }
}

/* ---- what works ---- */

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
            train(context, 3, forms[i]);
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
        train(context, 1, ADTOPK_FORM_DENSE);
    }
    adtopk_close(context);
}

static void test_many_tensors(void **state)
{
    adtopk_context *context = open_job("many");

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
    fill(adtopk_gradient(context, 0), 0, 0);
    fill(adtopk_gradient(context, 1), 0, 1);
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
    assert_status(context, adtopk_wait(context, 0), ADTOPK_OK);
    assert_update(context, 0, 0, ADTOPK_FORM_DENSE);
    assert_status(context, adtopk_update(context, 1, &update), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_push_tensor(context, 1, NULL), ADTOPK_OK);
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    assert_status(context, adtopk_wait(context, 1), ADTOPK_OK); /* after the end too */
    assert_update(context, 0, 1, ADTOPK_FORM_DENSE);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_update(context, 0, 0, ADTOPK_FORM_DENSE);
    adtopk_close(context);
}

static void test_nonfinite(void **state)
{
    adtopk_context *context = open_ready("nan", 2, ADTOPK_FORM_DENSE);
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    train(context, 2, ADTOPK_FORM_DENSE);
    fill(adtopk_gradient(context, 0), 1, 0);
    fill(adtopk_gradient(context, 1), 1, 1);
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
    train(context, 2, ADTOPK_FORM_DENSE);
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
    train(context, 1, ADTOPK_FORM_DENSE);
    free(bytes);
    free(values);
    adtopk_close(context);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

/* Every system call may be interrupted. */
static void test_signals(void **state)
{
    struct sigaction action = {.sa_handler = on_alarm};
    const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    adtopk_context *context;

    (void)state;
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    context = open_ready("signals", 2, 0);
    for (int step = 0; step < 300; step++) {
        train(context, 2, ADTOPK_FORM_DENSE);
    }
    assert_status(context, adtopk_barrier(context), ADTOPK_OK);
    adtopk_close(context);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_true(alarms > 0);
}

/* ---- what the library refuses ---- */

static void test_wrong_tensors(void **state)
{
    static const struct {
        struct adtopk_tensor_spec spec;
        const char *word;
    } wrong[] = {
        {{.name = NULL, .dims = 1, .shape = {1}}, "name"},
        {{.name = "", .dims = 1, .shape = {1}}, "name"},
        {{.name = "a\tb", .dims = 1, .shape = {1}}, "control"},
        {{.name = "a\x7f", .dims = 1, .shape = {1}}, "control"},
        {{.name = "a\xc2\x85", .dims = 1, .shape = {1}}, "control"},
        {{.name = "a\xff", .dims = 1, .shape = {1}}, "not UTF-8"},
        {{.name = "a\xc3", .dims = 1, .shape = {1}}, "not UTF-8"},
        {{.name = "x", .dims = 0}, "0 dimensions"},
        {{.name = "x", .dims = 9, .shape = {1, 1, 1, 1, 1, 1, 1, 1}}, "9 dimensions"},
        {{.name = "x", .dims = 2, .shape = {4, 0}}, "shape[1]"},
        {{.name = "x", .dims = 2, .shape = {1u << 16, 1u << 16}}, "elements"},
        {{.name = "x", .dims = 2, .shape = {UINT64_MAX, 2}}, "elements"},
        {{.name = "x", .dims = 1, .shape = {1}, .dtype = (enum adtopk_dtype)3}, "dtype"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 16}, "forms"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 4}, "f32"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 12}, "f32"},
        {{.name = "x", .dims = 1, .shape = {1}, .dtype = ADTOPK_F16, .forms = 6}, "one of them"},
        {{.name = "w", .dims = 1, .shape = {1}}, "already"},
        {{.name = "x", .dims = 1, .shape = {1}, .memory = ADTOPK_CUDA}, "CUDA memory"},
        {{.name = "x", .dims = 1, .shape = {1}, .memory = (enum adtopk_memory)2}, "memory 2"},
        {{.name = "x", .dims = 1, .shape = {2}, .global_shape = {4}}, "shard (global_shape"},
        {{.name = "x", .dims = 1, .shape = {2}, .global_offset = {2}}, "shard (global_shape"},
    };
    adtopk_context *context = open_job("wrong");
    const struct adtopk_tensor_spec right = {
        .size = sizeof right, .name = "w", .dims = 1, .shape = {NUMEL}};
    char long_name[129];
    struct adtopk_tensor_spec too_long = {
        .size = sizeof too_long, .name = long_name, .dims = 1, .shape = {1}};
    uint32_t tensor = 99;

    (void)state;
    memset(long_name, 'n', 128);
    long_name[128] = '\0';
    assert_status(context, adtopk_register(context, &right, &tensor), ADTOPK_OK);
    assert_int_equal(tensor, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct adtopk_tensor_spec spec = wrong[i].spec;

        spec.size = sizeof spec;
        assert_status(context, adtopk_register(context, &spec, &tensor), ADTOPK_ERR_ARGUMENT);
        assert_says(context, wrong[i].word);
    }
    assert_status(context, adtopk_register(context, &too_long, &tensor), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_register(context, NULL, &tensor), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_commit(context), ADTOPK_OK); /* nothing has changed */
    train(context, 1, ADTOPK_FORM_DENSE);
    adtopk_close(context);
}

static void test_wrong_order(void **state)
{
    const struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = "w0", .dims = 1, .shape = {NUMEL}};
    adtopk_context *context = open_job("order");
    struct adtopk_update update = {.size = sizeof update};
    uint32_t tensor;
    float gradient[NUMEL] = {0};

    (void)state;
    assert_status(context, adtopk_push_tensor(context, 0, gradient), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_step_end(context), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_STATE);
    assert_says(context, "adtopk_step_wait()");
    assert_status(context, adtopk_barrier(context), ADTOPK_ERR_STATE);
    assert_null(adtopk_gradient(context, 0));
    assert_status(context, adtopk_register(context, &spec, &tensor), ADTOPK_OK);
    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_register(context, &spec, &tensor),
        ADTOPK_ERR_ARGUMENT); /* its name is taken */
    assert_null(adtopk_gradient(context, 1));
    assert_int_equal((uintptr_t)adtopk_gradient(context, 0) % 64, 0);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_push_tensor(context, 1, gradient), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_wait(context, 0), ADTOPK_ERR_STATE); /* never pushed */
    assert_says(context, "w0");
    assert_status(context, adtopk_push_tensor(context, 0, gradient), ADTOPK_OK);
    assert_status(context, adtopk_push_tensor(context, 0, gradient), ADTOPK_ERR_STATE); /* twice */
    assert_says(context, "w0");
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    assert_status(context, adtopk_step_end(context), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_push_tensor(context, 0, gradient), ADTOPK_ERR_STATE);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_OK);
    assert_status(context, adtopk_update(context, 1, &update), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_update(context, 0, NULL), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_push_tensor(context, 0, gradient), ADTOPK_OK);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_STATE); /* released */
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    train(context, 1, ADTOPK_FORM_DENSE);
    adtopk_close(context);
    assert_int_equal(adtopk_push_tensor(NULL, 0, gradient), ADTOPK_ERR_ARGUMENT);
    adtopk_close(NULL);
}

static void test_refused_open(void **state)
{
    const struct adtopk_options nowhere = {.size = sizeof nowhere,
        .address = "unix:/nonexistent/adtopk",
        .world_size = 1,
        .connect_timeout_ms = -1};
    const struct adtopk_options refused = {
        .size = sizeof refused, .address = daemon_.address, .job = "refused", .world_size = 1};
    const struct adtopk_options late = {.size = sizeof late,
        .address = "unix:/tmp/adtopk-nobody",
        .world_size = 1,
        .connect_timeout_ms = 60};
    adtopk_context *context = NULL;

    (void)state;
    assert_status(NULL, adtopk_open(&nowhere, &context), ADTOPK_ERR_UNREACHABLE);
    assert_says(NULL, "/nonexistent/adtopk");
    assert_status(NULL, adtopk_open(&late, &context), ADTOPK_ERR_UNREACHABLE);
    assert_status(NULL, adtopk_open(&refused, &context), ADTOPK_ERR_DENIED);
    assert_says(NULL, "refused");
    assert_status(NULL, adtopk_open(&refused, NULL), ADTOPK_ERR_ARGUMENT);
    assert_null(context);
}

static void test_memory(void **state)
{
    const int descriptors = daemon_descriptors(&daemon_);
    adtopk_context *context = open_job("huge");

    (void)state;
    for (int i = 0; i < 64; i++) { /* a TiB */
        char name[8];
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name,
            .dims = 1,
            .shape = {UINT32_MAX},
            .forms = ADTOPK_FORM_LIST};
        uint32_t tensor;

        (void)snprintf(name, sizeof name, "w%d", i);
        assert_status(context, adtopk_register(context, &spec, &tensor), ADTOPK_OK);
    }
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_MEMORY);
    assert_says(context, "1099512"); /* bytes needed */
    assert_says(context, "bytes of memory left");
    /* The session has its socket, its process, a ring and a page. */
    assert_int_equal(daemon_settle(&daemon_, descriptors + 2, 2, 1000), 0);
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_MEMORY); /* may be tried again */
    adtopk_close(context);
    context = open_ready("huge", 1, 0);
    train(context, 1, ADTOPK_FORM_DENSE);
    adtopk_close(context);
}

/* ---- ends ---- */

static void test_job_fails(void **state)
{
    adtopk_context *context = open_ready("failing", 1, 0);
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    /* The error stays. */
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_PEER);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    adtopk_close(context);
}

/* If a structure ended in padding, a field of a later version there would read bytes that an old
 * program left undefined. */
#define ENDS_WITH(type, field)                                                                     \
    (sizeof(type) == offsetof(type, field) + sizeof(((const type *)NULL)->field))
static_assert(ENDS_WITH(struct adtopk_options, reserved) &&
                  ENDS_WITH(struct adtopk_tensor_spec, global_offset) &&
                  ENDS_WITH(struct adtopk_push_spec, flags) &&
                  ENDS_WITH(struct adtopk_lookahead_spec, reserved) &&
                  ENDS_WITH(struct adtopk_update, dense16),
    "a structure ends in padding");

/* Wrong fields in a look-ahead change nothing. */
static void test_lookahead_fields(void **state)
{
    adtopk_context *without = open_ready("without", 1, ADTOPK_FORM_DENSE);
    adtopk_context *context = open_ready("lookahead", 1, ADTOPK_FORM_PENDING);
    float parameters[NUMEL], shifted[NUMEL];
    struct adtopk_lookahead_spec spec = {
        .size = sizeof spec, .parameters = parameters, .shifted = shifted, .reserved = 1};

    (void)state;
    fill(parameters, 0, 0);
    assert_status(context, adtopk_lookahead(context, 0, &spec), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "reserved");
    spec.reserved = 0;
    spec.second_moment = shifted;
    spec.correction = 1;
    assert_status(context, adtopk_lookahead(context, 0, &spec), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "shifted");
    spec.second_moment = parameters;
    assert_status(without, adtopk_lookahead(without, 0, &spec), ADTOPK_ERR_ARGUMENT);
    assert_says(without, "tensor \"w0\" was registered without ADTOPK_FORM_PENDING");
    adtopk_close(without);
    assert_status(context, adtopk_lookahead(context, 0, &spec), ADTOPK_OK);
    assert_memory_equal(shifted, parameters, sizeof shifted);
    adtopk_close(context);
}

/* adtopk_push() has fields that adtopk_push_tensor() lacks. */
static void test_push(void **state)
{
    adtopk_context *context = open_ready("push", 1, 0);
    float gradient[NUMEL];
    struct adtopk_push_spec push = {.size = sizeof push, .gradient = gradient, .scale = -2};
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    fill(gradient, 0, 0);
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "loss scale is -2");
    push.scale = NAN;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    push.scale = 1024;
    push.flags = 4;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "flags is 4");
    push.flags = 0;
    push.memory = ADTOPK_CUDA;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "CUDA memory");
    push.memory = ADTOPK_HOST;
    push.tensor = 1;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    push.tensor = 0;
    push.size = 7;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "sizeof(struct adtopk_push_spec)");
    assert_status(context, adtopk_push(context, NULL), ADTOPK_ERR_ARGUMENT);
    push.size = sizeof push;
    assert_status(context, adtopk_push(context, &push), ADTOPK_OK);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_update(context, 0, 0, ADTOPK_FORM_DENSE);
    update.size = 0;
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "sizeof(struct adtopk_update)");
    adtopk_close(context);
}

/* A second context of the same rank is another job, as long as the first one lives. */
static void test_two_contexts(void **state)
{
    adtopk_context *first = open_ready("twice", 1, 0), *second = open_ready("twice", 1, 0);
    adtopk_context *third = open_ready("failing", 1, 0);
    char longest[CLIENT_KEY_MAX + 1];
    struct adtopk_options options = {.size = sizeof options,
        .address = daemon_.address,
        .job = longest,
        .has_rank = 1,
        .world_size = 1};

    (void)state;
    assert_string_equal(first->place.job, "twice");
    assert_string_equal(second->place.job, "twice#2");
    train(second, 1, ADTOPK_FORM_DENSE);
    train(first, 1, ADTOPK_FORM_DENSE);
    adtopk_close(first);
    first = open_ready("twice", 1, 0);
    assert_string_equal(first->place.job, "twice");
    adtopk_close(first);
    adtopk_close(second);
    assert_status(third, adtopk_step_wait(third), ADTOPK_ERR_PEER);
    first = open_job("failing"); /* it failed: a new run of the same job */
    assert_string_equal(first->place.job, "failing");
    adtopk_close(first);
    adtopk_close(third);
    memset(longest, 'j', CLIENT_KEY_MAX);
    longest[CLIENT_KEY_MAX] = '\0';
    first = open_job(longest);
    assert_status(NULL, adtopk_open(&options, &second), ADTOPK_ERR_ARGUMENT);
    assert_says(NULL, "set options.job");
    adtopk_close(first);
}

/* The job has ended, and the daemon does not know it yet when it takes the next entry. The rank
 * must learn why the job ended, not that nobody knows it. */
static void test_job_fails_meanwhile(void **state)
{
    const struct local_entry entry[] = {{.type = LOCAL_STEP_END, .number = 0},
        {.type = LOCAL_PUSH, .number = 1}, {.type = LOCAL_PUSH, .number = 1}};
    adtopk_context *context = open_ready("failing", 1, 0);

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        ring_writer_put(&context->ring, &entry[i]);
    }
    client_wake(context);
    context->step_state = CLIENT_STEP_ENDED;
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    adtopk_close(context);
}

/* Starts a child that sends a process a signal after `ms`. */
static pid_t kill_later(pid_t victim, int ms)
{
    const pid_t child = fork();

    if (child == 0) {
        sleep_ms(ms);
        (void)kill(victim, SIGKILL);
        _exit(0);
    }
    return child;
}

static void test_daemon_dies(void **state)
{
    adtopk_context *context = open_ready("silent", 1, 0);
    adtopk_context *other = open_ready("other", 1, 0);
    pid_t killer;

    (void)state;
    killer = kill_later(daemon_.pid, 50);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_UNREACHABLE);
    assert_says(context, daemon_.path);
    (void)waitpid(killer, NULL, 0);
    (void)waitpid(daemon_.pid, NULL, 0);
    daemon_.pid = 0;
    /* The other rank can still write to memory that nobody reads, without SIGPIPE or SIGBUS. */
    assert_status(other, adtopk_push_tensor(other, 0, NULL), ADTOPK_OK);
    assert_status(other, adtopk_step_wait(other), ADTOPK_ERR_UNREACHABLE);
    adtopk_close(other);
    adtopk_close(context);
}

static void test_daemon_stops(void **state)
{
    adtopk_context *context = open_ready("silent", 1, 0);

    (void)state;
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    assert_int_equal(daemon_stop(&daemon_), 0);
    assert_int_equal(access(daemon_.path, F_OK), -1);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_UNREACHABLE);
    assert_says(context, "stops");
    adtopk_close(context);
}

static void test_forked_child(void **state)
{
    adtopk_context *context = open_ready("fork", 1, 0);
    int status = -1;
    pid_t child;

    (void)state;
    train(context, 1, ADTOPK_FORM_DENSE);
    child = fork();
    if (child == 0) {
        const bool refused = adtopk_push_tensor(context, 0, NULL) == ADTOPK_ERR_STATE &&
                             adtopk_step_wait(context) == ADTOPK_ERR_STATE &&
                             strstr(adtopk_message(context), "forked") != NULL;
        adtopk_close(context); /* its copy only */
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    train(context, 1, ADTOPK_FORM_DENSE);
    adtopk_close(context);
}

static void test_closing_frees_everything(void **state)
{
    const int descriptors = daemon_descriptors(&daemon_);

    (void)state;
    for (int i = 0; i < 20; i++) {
        adtopk_context *context = open_ready("closing", 2, 0);

        train(context, 2, ADTOPK_FORM_DENSE);
        adtopk_close(context);
    }
    assert_int_equal(daemon_settle(&daemon_, descriptors, 0, 1000), 0);
    assert_int_equal(daemon_.view->lost, 0); /* all have left */
    assert_int_equal(daemon_.view->stats.door.sessions, 0);
    assert_int_equal(daemon_.view->stats.gradient_bytes, 0);
    assert_int_equal(daemon_.view->stats.result_bytes, 0);
    assert_int_equal(daemon_.view->stats.store_bytes, 0);
}

#define LOCAL_TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

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
        LOCAL_TEST(test_wrong_tensors),
        LOCAL_TEST(test_wrong_order),
        LOCAL_TEST(test_refused_open),
        LOCAL_TEST(test_memory),
        LOCAL_TEST(test_lookahead_fields),
        LOCAL_TEST(test_push),
        LOCAL_TEST(test_two_contexts),
        LOCAL_TEST(test_job_fails),
        LOCAL_TEST(test_job_fails_meanwhile),
        LOCAL_TEST(test_daemon_dies),
        LOCAL_TEST(test_daemon_stops),
        LOCAL_TEST(test_forked_child),
        LOCAL_TEST(test_closing_frees_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
