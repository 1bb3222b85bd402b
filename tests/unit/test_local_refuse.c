/* Calls that the client library or the daemon refuses, and that change nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "local_rank.h"

#define NUMEL 1000u

static adtopk_context *open_ready(const char *job, uint32_t tensors, unsigned forms)
{
    return rank_ready(job, (struct rank_wish){.tensors = tensors, .numel = NUMEL, .forms = forms});
}

/* If a structure ended in padding, a field of a later version there would read bytes that an old
 * program left undefined. */
#define ENDS_WITH(type, field)                                                                     \
    (sizeof(type) == offsetof(type, field) + sizeof(((const type *)NULL)->field))
static_assert(ENDS_WITH(struct adtopk_options, comes_back) &&
                  ENDS_WITH(struct adtopk_tensor_spec, device) &&
                  ENDS_WITH(struct adtopk_push_spec, reserved) &&
                  ENDS_WITH(struct adtopk_lookahead_spec, reserved) &&
                  ENDS_WITH(struct adtopk_update, device_value),
    "a structure ends in padding");

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
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 64}, "forms"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 33}, "without ADTOPK_FORM_DEVICE and"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 16}, "ADTOPK_FORM_DEVICE"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 4}, "f32"},
        {{.name = "x", .dims = 1, .shape = {1}, .forms = 12}, "f32"},
        {{.name = "x", .dims = 1, .shape = {1}, .dtype = ADTOPK_F16, .forms = 6}, "one of them"},
        {{.name = "w", .dims = 1, .shape = {1}}, "already"},
        {{.name = "x", .dims = 1, .shape = {1}, .memory = ADTOPK_CUDA},
            "in CUDA memory and tensor \"w\" in host memory"},
        {{.name = "x", .dims = 1, .shape = {1}, .memory = (enum adtopk_memory)2}, "memory 2"},
        {{.name = "x", .dims = 1, .shape = {1}, .device = "GPU-1"}, "is not ADTOPK_CUDA"},
        {{.name = "x", .dims = 1, .shape = {2}, .global_shape = {4}}, "shard (global_shape"},
        {{.name = "x", .dims = 1, .shape = {2}, .global_offset = {2}}, "shard (global_shape"},
    };
    adtopk_context *context = rank_open("wrong");
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
    rank_train(context);
    adtopk_close(context);
}

static void test_wrong_order(void **state)
{
    const struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = "w0", .dims = 1, .shape = {NUMEL}};
    adtopk_context *context = rank_open("order");
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
    rank_train(context);
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
    adtopk_context *context = rank_open("huge");

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
    assert_int_equal(daemon_settle(&daemon_, descriptors + 2, 2, PATIENCE_MS), 0);
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_MEMORY); /* may be tried again */
    adtopk_close(context);
    context = open_ready("huge", 1, 0);
    rank_train(context);
    adtopk_close(context);
}

/* Wrong fields in a look-ahead change nothing. */
static void test_lookahead_fields(void **state)
{
    adtopk_context *without = open_ready("without", 1, ADTOPK_FORM_DENSE);
    adtopk_context *context = open_ready("lookahead", 1, ADTOPK_FORM_PENDING);
    float parameters[NUMEL], shifted[NUMEL];
    struct adtopk_lookahead_spec spec = {
        .size = sizeof spec, .parameters = parameters, .shifted = shifted, .reserved = 1};

    (void)state;
    rank_fill(parameters, NUMEL, 0, 0);
    assert_status(context, adtopk_lookahead(context, 0, &spec), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "reserved");
    spec.reserved = 0;
    spec.rate = 2e30f;
    assert_status(context, adtopk_lookahead(context, 0, &spec), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "adtopk_lookahead() of \"w0\": rate is not from 0 to 1e30");
    spec.rate = 0;
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
    rank_fill(gradient, NUMEL, 0, 0);
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "loss scale is -2");
    push.scale = NAN;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    push.scale = 1024;
    push.flags = 4;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "flags is 4");
    push.flags = 0;
    push.reserved = 3;
    assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "reserved is 3");
    push.reserved = 0;
    for (unsigned i = 0; i < 3; i++) {
        push.lookahead = (const float[]){-0.5f, NAN, 0.25f}[i]; /* the last one is for GPUs */
        assert_status(context, adtopk_push(context, &push), ADTOPK_ERR_ARGUMENT);
        assert_says(context, "lookahead is");
    }
    push.lookahead = 0;
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
    rank_assert_update(context, 0, 0);
    update.size = 0;
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_ARGUMENT);
    assert_says(context, "sizeof(struct adtopk_update)");
    adtopk_close(context);
}

#define LOCAL_TEST(name) cmocka_unit_test_setup_teardown(name, rank_daemon_start, rank_daemon_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOCAL_TEST(test_wrong_tensors),
        LOCAL_TEST(test_wrong_order),
        LOCAL_TEST(test_refused_open),
        LOCAL_TEST(test_memory),
        LOCAL_TEST(test_lookahead_fields),
        LOCAL_TEST(test_push),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
