/*
 * Streams of a trainer that wait for updates, against a daemon of this test (fake.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <adtopk/stream.h>

#include "tests/cuda/driver/captures.h"
#include "tests/cuda/driver/fake.h"

static adtopk_context *context;
static CUstream stream;

static int scene_begin(void **state)
{
    (void)state;
    context = NULL;
    return fake_start();
}

static int scene_end(void **state)
{
    (void)state;
    adtopk_close(context);
    fake_stop();
    return 0;
}

/* ---- the rank ---- */

static void rank_register(unsigned forms)
{
    char address[96];
    struct adtopk_options options = {
        .size = sizeof options, .address = address, .world_size = 1, .answer_timeout_ms = 5000};

    (void)snprintf(address, sizeof address, "unix:%s", fake.path);
    if (adtopk_open(&options, &context) != ADTOPK_OK) {
        fail_msg("%s", adtopk_message(NULL));
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        const char *const name[] = {"a", "b", "c"};
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name[t],
            .dims = 1,
            .shape = {NUMEL},
            .forms = forms,
            .memory = ADTOPK_CUDA,
            .device = fake.device.uuid};
        assert_int_equal(adtopk_register(context, &spec, NULL), ADTOPK_OK);
    }
}

static void rank_join(void)
{
    rank_register(ADTOPK_FORM_LIST | ADTOPK_FORM_DEVICE);
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    stream = NULL;
}

static void rank_push(uint32_t tensor)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = tensor, .memory = ADTOPK_CUDA, .stream = stream};

    assert_int_equal(adtopk_push(context, &push), ADTOPK_OK);
}

/* The streams are those of the device's primary context. */
static CUresult rank_query(void)
{
    CUcontext primary, popped;
    CUresult result;

    assert_int_equal(fake.driver.cuDevicePrimaryCtxRetain(&primary, fake.device.handle), 0);
    assert_int_equal(fake.driver.cuCtxPushCurrent_v2(primary), 0);
    result = fake.driver.cuStreamQuery(stream);
    assert_int_equal(fake.driver.cuCtxPopCurrent_v2(&popped), 0);
    assert_int_equal(fake.driver.cuDevicePrimaryCtxRelease_v2(fake.device.handle), 0);
    return result;
}

static void assert_blocked(void)
{
    assert_int_equal(rank_query(), CUDA_ERROR_NOT_READY);
}

static void assert_done(void)
{
    for (int waited = 0; rank_query() == CUDA_ERROR_NOT_READY && waited < 10000; waited++) {
        (void)usleep(1000);
    }
    assert_int_equal(rank_query(), CUDA_SUCCESS);
}

static bool is_right(const struct adtopk_verdict *verdict)
{
    return *(const volatile uint32_t *)verdict->word == verdict->right;
}

static void assert_refused(enum adtopk_status got, enum adtopk_status expected, const char *words)
{
    assert_int_equal(got, expected);
    if (strstr(adtopk_message(context), words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", adtopk_message(context), words);
    }
}

/* ---- tests ---- */

/* No call of the library spoils a graph that the program captures. */
static void test_waits(void **state)
{
    struct adtopk_verdict verdict = {.size = sizeof verdict};
    const CUstream captured = captures_open(&fake.driver, fake.device.handle);

    (void)state;
    rank_join();
    rank_push(0);
    rank_push(1);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, &verdict), ADTOPK_OK);
    assert_int_equal(captures_close(&fake.driver, fake.device.handle, captured), 0);
    assert_blocked();
    fake_deliver(0, 0, true);
    assert_blocked();
    assert_false(is_right(&verdict));
    fake_deliver(1, 0, true);
    assert_done();
    assert_true(is_right(&verdict));
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_blocked();
    fake_deliver(TENSORS, 0, true);
    assert_done();
}

/* Streams go on when the update is not right, and a kernel sees that. */
static void test_not_right(void **state)
{
    struct adtopk_verdict tensor = {.size = sizeof tensor}, step = {.size = sizeof step};

    (void)state;
    rank_join();
    rank_push(2);
    assert_int_equal(adtopk_wait_stream(context, 2, stream, &tensor), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, &step), ADTOPK_OK);
    fake_deliver(2, 0, false);
    assert_blocked();
    assert_false(is_right(&tensor));
    fake_deliver(TENSORS, 0, false);
    assert_done();
    assert_false(is_right(&step));
}

/* The daemon hears once a step that the rank waits for a tensor, so that it can split the bucket.
 */
static void test_posts_the_wait(void **state)
{
    static const uint32_t expected[] = {LOCAL_PUSH, LOCAL_WAIT, LOCAL_PUSH, LOCAL_STEP_END};

    (void)state;
    rank_join();
    rank_push(1);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_wait_for(context, 1, 1), ADTOPK_PENDING);
    rank_push(0);
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_int_equal(atomic_load(&fake.ring->tail), 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(fake.ring->entry[i].type, expected[i]);
        assert_int_equal(fake.ring->entry[i].number, 0);
    }
    assert_int_equal(fake.ring->entry[1].tensor, 1);
}

/* Numbers of words wrap around. */
static void test_late_steps(void **state)
{
    static const uint64_t steps[] = {
        UINT64_C(0x7fffffff), UINT64_C(0xfffffffe), UINT64_C(0xffffffff)};
    struct adtopk_verdict verdict = {.size = sizeof verdict};

    for (unsigned i = 0; i < 3; i++) {
        fake.wish.step = steps[i];
        atomic_store(&fake.page->steps_done, steps[i]);
        for (uint32_t at = 0; at <= TENSORS; at++) {
            fake_deliver(at, steps[i] - 1, true);
        }
        rank_join();
        rank_push(0);
        rank_push(1);
        assert_int_equal(adtopk_wait_stream(context, 0, stream, &verdict), ADTOPK_OK);
        assert_blocked();
        assert_false(is_right(&verdict));
        fake_deliver(0, steps[i], true);
        assert_done();
        assert_true(is_right(&verdict));
        assert_int_equal(adtopk_wait_stream(context, 1, stream, &verdict), ADTOPK_OK);
        assert_blocked();
        fake_die();
        assert_done();
        assert_false(is_right(&verdict));
        (void)scene_end(state);
        assert_int_equal(scene_begin(state), 0);
    }
}

/* ---- the end ---- */

static void join_and_wait(struct adtopk_verdict *verdict)
{
    *verdict = (struct adtopk_verdict){.size = sizeof *verdict};
    rank_join();
    rank_push(0);
    assert_int_equal(adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, verdict), ADTOPK_OK);
    assert_blocked();
}

static void await_cut(void)
{
    while (!client_watch_is_cut(&context->batch.watch)) {
        (void)usleep(1000);
    }
}

/* The stream goes on, and whatever the program calls next says why. */
static void test_daemon_dies(void **state)
{
    struct adtopk_update update = {.size = sizeof update};
    struct adtopk_verdict verdict;

    join_and_wait(&verdict);
    fake_die();
    assert_done();
    assert_false(is_right(&verdict));
    assert_refused(adtopk_step_wait_for(context, 0), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(
        adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(
        adtopk_step_wait_stream(context, stream, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(adtopk_update(context, 0, &update), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_non_null(adtopk_device_update(context, 0));
    (void)state;
}

/* A push does not look at the socket, and is refused all the same. */
static void test_push_after_the_end(void **state)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = 1, .memory = ADTOPK_CUDA, .stream = stream};

    (void)state;
    rank_join();
    rank_push(0);
    assert_int_equal(adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_OK);
    fake_die();
    assert_done();
    assert_refused(adtopk_push(context, &push), ADTOPK_ERR_UNREACHABLE, "went away");
}

/* A daemon that fails the job lets go of streams itself. Then it closes the connection, and the
 * client lets go of them, too. They stay free. */
static void test_job_fails(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    (void)snprintf(fake.page->text, LOCAL_TEXT_SIZE, "rank 7 is gone");
    atomic_store(&fake.page->failed, ADTOPK_ERR_PEER);
    local_let_go(fake_word(0), TENSORS + 1, 0);
    fake_die();
    await_cut();
    assert_done();
    assert_false(is_right(&verdict));
    assert_refused(adtopk_step_wait(context), ADTOPK_ERR_PEER, "rank 7 is gone");
}

/* So does a client that ends the run itself, while the daemon goes on. */
static void test_client_fails(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    assert_int_equal(send(fake.socket, "\xff\xff\xff", 3, MSG_NOSIGNAL), 3);
    assert_refused(adtopk_step_wait(context), ADTOPK_ERR_PROTOCOL, "malformed message");
    assert_done();
    assert_false(is_right(&verdict));
}

/* A step that was accepted before the end counts, for the host as for the stream. */
static void test_accepted_before_the_end(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    atomic_store(&fake.page->delivered[0], 1 << 8);
    fake_deliver(0, 0, true);
    atomic_store(&fake.page->steps_done, 1);
    fake_deliver(TENSORS, 0, true);
    fake_die();
    assert_done();
    assert_true(is_right(&verdict));
    await_cut();
    assert_int_equal(adtopk_step_wait(context), ADTOPK_OK);
    assert_refused(adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
}

/* Closing waits for the device, so it lets go of streams first. */
static void test_close(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    adtopk_close(context);
    context = NULL;
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
    struct adtopk_verdict verdict = {.size = 4}, old = {.size = 16, .right = 77};

    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE, "before adtopk_commit()");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_STATE, "before adtopk_commit()");
    assert_null(adtopk_device_update(context, 0));
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    assert_refused(adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE,
        "adtopk_wait_stream() for tensor \"a\", which was not pushed in step 0");
    assert_refused(
        adtopk_wait_stream(context, TENSORS, NULL, NULL), ADTOPK_ERR_ARGUMENT, "of tensor 3");
    rank_push(0);
    assert_refused(adtopk_wait_stream(context, 0, NULL, &verdict), ADTOPK_ERR_ARGUMENT,
        "struct adtopk_verdict");
    assert_refused(adtopk_step_wait_stream(context, NULL, &verdict), ADTOPK_ERR_ARGUMENT,
        "struct adtopk_verdict");
    assert_int_equal(adtopk_wait_stream(context, 0, NULL, &old), ADTOPK_OK);
    assert_non_null(old.word);
    assert_int_equal(old.right, 77); /* a program that does not know the field keeps its bytes */
    assert_int_equal(adtopk_wait_stream(NULL, 0, NULL, NULL), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(adtopk_step_wait_stream(NULL, NULL, NULL), ADTOPK_ERR_ARGUMENT);
    assert_null(adtopk_device_update(NULL, 0));
    assert_refused(adtopk_device_list(context, 0, &(struct adtopk_device_list){.size = 40}),
        ADTOPK_ERR_ARGUMENT, "without ADTOPK_FORM_DEVICE_LIST");
    assert_null(adtopk_device_update(context, TENSORS));
}

/* A daemon of an earlier version does not say which memory it takes. */
static void test_check_device(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_LIST);
    assert_int_equal(adtopk_check_device(context, fake.device.uuid), ADTOPK_OK);
    assert_refused(adtopk_check_device(context, "GPU-0"), ADTOPK_ERR_ARGUMENT, "GPU-0");
    assert_int_equal(adtopk_check_device(NULL, NULL), ADTOPK_ERR_ARGUMENT);
}

static void test_updates_in_host_memory(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_LIST);
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    rank_push(0);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_ARGUMENT, "ADTOPK_FORM_DEVICE");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_ARGUMENT, "ADTOPK_FORM_DEVICE");
    assert_null(adtopk_device_update(context, 0));
}

/* A daemon of an earlier version: the rank trains as before. */
static void test_daemon_without_words(void **state)
{
    (void)state;
    fake.wish.words = 0;
    rank_join();
    rank_push(0);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE, "no stream can wait");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_STATE, "no stream can wait");
    atomic_store(&fake.page->steps_done, 1);
    assert_int_equal(adtopk_step_wait(context), ADTOPK_OK);
}

/* A daemon of an earlier version: it is not asked for lists, and the rank applies all elements. */
static void test_daemon_without_lists(void **state)
{
    struct adtopk_device_list list = {.size = sizeof list};

    (void)state;
    rank_register(ADTOPK_FORM_LIST | ADTOPK_FORM_DEVICE | ADTOPK_FORM_DEVICE_LIST);
    assert_refused(
        adtopk_device_list(context, 0, &list), ADTOPK_ERR_STATE, "before adtopk_commit()");
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    assert_int_equal(fake.asked, LOCAL_SHOWN_ON_GPU);
    assert_refused(
        adtopk_device_list(context, 0, &list), ADTOPK_ERR_STATE, "a version without lists on GPUs");
    assert_refused(
        adtopk_device_list(context, 0, NULL), ADTOPK_ERR_ARGUMENT, "struct adtopk_device_list");
}

/* A daemon that says nonsense is not believed. */
static void test_words_elsewhere(void **state)
{
    static const uint64_t offsets[] = {
        WORDS + 8, FLAGS, FLAGS - 4096, HOST, HOST + 4096, UINT64_MAX - 4095, 4096};

    for (unsigned i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        fake.wish.words = offsets[i];
        rank_register(ADTOPK_FORM_DEVICE);
        assert_refused(adtopk_commit(context), ADTOPK_ERR_PROTOCOL, "shared no memory of");
        (void)scene_end(state);
        assert_int_equal(scene_begin(state), 0);
    }
}

/* ---- what the system refuses ---- */

static bool no_thread, no_descriptor;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument);
int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument)
{
    return no_thread ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

int __wrap_eventfd(unsigned value, int flags)
{
    errno = EMFILE;
    return no_descriptor ? -1 : __real_eventfd(value, flags);
}

static void test_no_thread(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    no_thread = true;
    assert_refused(adtopk_commit(context), ADTOPK_ERR_SYSTEM, "no thread to watch the daemon");
    no_thread = false;
}

static void test_no_descriptor(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    no_descriptor = true;
    assert_refused(adtopk_commit(context), ADTOPK_ERR_SYSTEM, "eventfd failed");
    no_descriptor = false;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_begin, scene_end)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_waits), TEST(test_not_right),
        TEST(test_posts_the_wait), TEST(test_late_steps), TEST(test_daemon_dies),
        TEST(test_push_after_the_end), TEST(test_job_fails), TEST(test_client_fails),
        TEST(test_accepted_before_the_end), TEST(test_close), TEST(test_refused),
        TEST(test_check_device), TEST(test_updates_in_host_memory), TEST(test_daemon_without_words),
        TEST(test_daemon_without_lists), TEST(test_words_elsewhere), TEST(test_no_thread),
        TEST(test_no_descriptor)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
