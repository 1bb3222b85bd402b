/* Waiting: time-outs, signals, a descriptor, two threads in one context, and the cost of a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <adtopk/checkpoint.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/patience.h"
#include "local_rank.h"

#define NUMEL 100u

/* ---- system calls of this process, counted ---- */

static _Atomic unsigned polls, receives, sends, yields, others;

int __real_poll(struct pollfd *descriptor, nfds_t count, int timeout_ms);
ssize_t __real_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __real_send(int socket, const void *bytes, size_t size, int flags);
int __real_sched_yield(void);
int __real_nanosleep(const struct timespec *pause, struct timespec *left);
ssize_t __real_read(int descriptor, void *bytes, size_t size);
ssize_t __real_write(int descriptor, const void *bytes, size_t size);
int __wrap_poll(struct pollfd *descriptor, nfds_t count, int timeout_ms);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_send(int socket, const void *bytes, size_t size, int flags);
int __wrap_sched_yield(void);
int __wrap_nanosleep(const struct timespec *pause, struct timespec *left);
ssize_t __wrap_read(int descriptor, void *bytes, size_t size);
ssize_t __wrap_write(int descriptor, const void *bytes, size_t size);
const char *__real_adtopk_message(const adtopk_context *context);
const char *__wrap_adtopk_message(const adtopk_context *context);

int __wrap_poll(struct pollfd *descriptor, nfds_t count, int timeout_ms)
{
    polls++;
    return __real_poll(descriptor, count, timeout_ms);
}

ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags)
{
    receives++;
    return __real_recvmsg(socket, message, flags);
}

ssize_t __wrap_send(int socket, const void *bytes, size_t size, int flags)
{
    sends++;
    return __real_send(socket, bytes, size, flags);
}

int __wrap_sched_yield(void)
{
    yields++;
    return __real_sched_yield();
}

int __wrap_nanosleep(const struct timespec *pause, struct timespec *left)
{
    others++;
    return __real_nanosleep(pause, left);
}

ssize_t __wrap_read(int descriptor, void *bytes, size_t size)
{
    others++;
    return __real_read(descriptor, bytes, size);
}

ssize_t __wrap_write(int descriptor, const void *bytes, size_t size)
{
    others++;
    return __real_write(descriptor, bytes, size);
}

static void forget_calls(void)
{
    polls = receives = sends = yields = others = 0;
}

static adtopk_context *open_job(const char *job, uint32_t tensors, bool interruptible)
{
    return rank_registered(job,
        (struct rank_wish){.tensors = tensors, .numel = NUMEL, .interruptible = interruptible});
}

static adtopk_context *open_ready(const char *job, uint32_t tensors)
{
    return rank_ready(job, (struct rank_wish){.tensors = tensors, .numel = NUMEL});
}

/* ---- time-outs ---- */

static void test_pending(void **state)
{
    adtopk_context *context = open_ready("silent", 1);
    uint64_t begun;

    (void)state;
    rank_push(context, 0);
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    begun = client_now_ns();
    assert_status(context, adtopk_step_wait_for(context, 60), ADTOPK_PENDING);
    assert_true(client_now_ns() - begun >= 60 * 1000000);
    assert_int_equal(adtopk_step(context), 0);
    /* The step has ended. */
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_STATE);
    adtopk_close(context);
}

static void test_steps_by_polling(void **state)
{
    adtopk_context *context = open_job("polls", 2, false);
    enum adtopk_status status;

    (void)state;
    while ((status = adtopk_commit_for(context, 0)) == ADTOPK_PENDING) {
        assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_STATE);
        assert_null(adtopk_gradient(context, 0));
    }
    assert_status(context, status, ADTOPK_OK);
    assert_status(context, adtopk_commit_for(context, 0), ADTOPK_ERR_STATE);
    for (uint64_t step = 0; step < 100; step++) {
        rank_push(context, 0);
        while ((status = adtopk_wait_for(context, 0, 1)) == ADTOPK_PENDING) {
        }
        assert_status(context, status, ADTOPK_OK);
        rank_assert_update(context, step, 0);
        rank_push(context, 1);
        forget_calls();
        while ((status = adtopk_step_wait_for(context, 0)) == ADTOPK_PENDING) {
        }
        assert_int_equal(polls + yields + others, 0); /* it only looks */
        assert_status(context, status, ADTOPK_OK);
        rank_assert_update(context, step, 0);
        rank_assert_update(context, step, 1);
    }
    adtopk_close(context);
}

/* A killed daemon wrote no error into the page, but calls that look see its end. */
static void test_looks_see_the_end(void **state)
{
    adtopk_context *context = open_ready("silent", 1);
    const uint64_t deadline = client_now_ns() + UINT64_C(1000000) * PATIENCE_MS;
    enum adtopk_status status = ADTOPK_PENDING;

    (void)state;
    rank_push(context, 0);
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    rank_daemon_kill();
    while (status == ADTOPK_PENDING && client_now_ns() < deadline) {
        status = adtopk_step_wait_for(context, 0);
    }
    assert_status(context, status, ADTOPK_ERR_UNREACHABLE);
    adtopk_close(context);
}

/* ---- the descriptor ---- */

static void test_descriptor(void **state)
{
    adtopk_context *context = open_job("descriptor", 1, false);
    struct pollfd readable = {.events = POLLIN};
    unsigned slept = 0;

    (void)state;
    assert_status(context, adtopk_descriptor(context, NULL), ADTOPK_ERR_ARGUMENT);
    assert_status(context, adtopk_descriptor(context, &readable.fd), ADTOPK_OK);
    while (adtopk_commit_for(context, 0) == ADTOPK_PENDING) {
        if (adtopk_arm(context) == ADTOPK_PENDING) {
            assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
        }
    }
    for (uint64_t step = 0; step < 300; step++) {
        enum adtopk_status status;

        rank_push(context, 0);
        while ((status = adtopk_step_wait_for(context, 0)) == ADTOPK_PENDING) {
            status = adtopk_arm(context);
            assert_true(status == ADTOPK_OK || status == ADTOPK_PENDING);
            slept += status == ADTOPK_PENDING;
            if (status == ADTOPK_PENDING) {
                assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
            }
        }
        assert_status(context, status, ADTOPK_OK);
        rank_assert_update(context, step, 0);
    }
    assert_true(slept > 0);
    /* A request that stays does no harm. */
    assert_status(context, adtopk_arm(context), ADTOPK_PENDING);
    rank_push(context, 0);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    adtopk_close(context);
}

/* The end of the session is progress too. */
/* An answer that came before the program slept wakes it. */
static void test_descriptor_while_reading_a_residual(void **state)
{
    adtopk_context *context =
        rank_ready("residual", (struct rank_wish){.tensors = 1, .numel = RANK_NUMEL_MAX});
    static float residual[RANK_NUMEL_MAX];
    struct pollfd readable = {.events = POLLIN};
    enum adtopk_status status;
    unsigned looks = 0;

    (void)state;
    assert_status(context, adtopk_descriptor(context, &readable.fd), ADTOPK_OK);
    do { /* on a busy machine an answer may be there before the program looks */
        while ((status = adtopk_residual_for(context, 0, residual, 0)) == ADTOPK_PENDING) {
            sleep_ms(20);
            assert_status(context, adtopk_arm(context), ADTOPK_PENDING);
            assert_status(context, adtopk_arm(context), ADTOPK_PENDING);
            assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
            looks++;
        }
        assert_status(context, status, ADTOPK_OK);
    } while (looks < 2);
    assert_in_range(looks, 2, 100);
    adtopk_close(context);
}

static void test_descriptor_of_a_lost_daemon(void **state)
{
    adtopk_context *context = open_ready("silent", 1);
    struct pollfd readable = {.events = POLLIN};

    (void)state;
    assert_status(context, adtopk_descriptor(context, &readable.fd), ADTOPK_OK);
    rank_push(context, 0);
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    while (adtopk_arm(context) == ADTOPK_OK) {
        assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    }
    assert_int_equal(daemon_stop(&daemon_), 0);
    assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
    assert_status(context, adtopk_step_wait_for(context, PATIENCE_MS), ADTOPK_ERR_UNREACHABLE);
    assert_status(context, adtopk_arm(context), ADTOPK_ERR_UNREACHABLE);
    adtopk_close(context);
}

/* ---- signals ---- */

static void test_signal_interrupts(void **state)
{
    adtopk_context *context = open_job("silent", 1, true);

    (void)state;
    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    rank_push(context, 0);
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    rank_alarm_every(20000);
    assert_status(context, adtopk_step_wait(context), ADTOPK_INTERRUPTED);
    assert_status(context, adtopk_step_wait_for(context, 60000), ADTOPK_INTERRUPTED);
    assert_int_equal(adtopk_step(context), 0);
    adtopk_close(context); /* signals do not end this wait */
    rank_alarm_every(0);
    assert_int_equal(daemon_.view->lost, 0);
}

/* Steps that are interrupted again and again still give the right updates. */
static void test_many_signals(void **state)
{
    adtopk_context *context = open_job("signals", 2, true);
    enum adtopk_status status;

    (void)state;
    rank_alarm_every(300);
    while ((status = adtopk_commit(context)) == ADTOPK_INTERRUPTED) {
    }
    assert_status(context, status, ADTOPK_OK);
    for (uint64_t step = 0; step < 300; step++) {
        rank_push(context, 1);
        rank_push(context, 0);
        while ((status = adtopk_step_wait(context)) == ADTOPK_INTERRUPTED) {
        }
        assert_status(context, status, ADTOPK_OK);
        rank_assert_update(context, step, 0);
        rank_assert_update(context, step, 1);
    }
    while ((status = adtopk_barrier(context)) == ADTOPK_INTERRUPTED) {
    }
    assert_status(context, status, ADTOPK_OK);
    rank_alarm_every(0);
    adtopk_close(context);
}

/* ---- two threads ---- */

struct waiter {
    adtopk_context *context;
    _Atomic uint32_t pushed;
    enum adtopk_status status;
};

static void *wait_for_step(void *argument)
{
    struct waiter *waiter = argument;

    waiter->status = adtopk_step_wait(waiter->context);
    return NULL;
}

/* True while another thread waits in the context. */
static bool waits(const adtopk_context *context)
{
    bool does;

    client_lock(context);
    does = context->sharing.waits == CLIENT_WAITS;
    (void)client_unlock(context, ADTOPK_OK);
    return does;
}

static void test_close_ends_a_wait(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct waiter waiter = {.context = open_ready("silent", 1)};
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, wait_for_step, &waiter), 0);
        while (!waits(waiter.context)) {
            (void)sched_yield();
        }
        assert_status(waiter.context, adtopk_step_wait_for(waiter.context, 1), ADTOPK_ERR_STATE);
        assert_non_null(strstr(adtopk_message(waiter.context), "another thread waits"));
        sleep_ms(round % 2);
        adtopk_close(waiter.context);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(waiter.status, ADTOPK_ERR_STATE);
    }
    assert_int_equal(daemon_.view->lost, 0);
}

/* ---- messages ---- */

#define CONTEXTS 10u /* two more than a thread keeps messages of */

struct looker {
    adtopk_context **context;
    const char *text; /* what a thread without an error of its own sees */
    char copy[ERROR_TEXT_SIZE];
};

static void refuse_all(adtopk_context **context, uint32_t first)
{
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        (void)adtopk_wait(context[i], first + i);
    }
}

static void *refuse_others(void *argument)
{
    struct looker *looker = argument;

    looker->text = adtopk_message(looker->context[0]);
    (void)snprintf(looker->copy, sizeof looker->copy, "%s", looker->text);
    refuse_all(looker->context, 200);
    return NULL;
}

/* Errors of other threads, and errors in other contexts, leave a thread's message as it is. */
static void test_messages(void **state)
{
    adtopk_context *context[CONTEXTS];
    struct looker looker = {.context = context};
    pthread_t thread;
    char words[32];

    (void)state;
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        context[i] = open_ready("messages", 1);
    }
    refuse_all(context, 100);
    assert_int_equal(pthread_create(&thread, NULL, refuse_others, &looker), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_non_null(strstr(looker.copy, "tensor 100,"));
    assert_ptr_not_equal(looker.text, context[0]->error.text); /* other threads change that */
    for (uint32_t i = 0; i < CONTEXTS; i++) {                  /* the oldest are forgotten */
        (void)snprintf(words, sizeof words, "tensor %u,", i < 2 ? 200 + i : 100 + i);
        assert_says(context[i], words);
    }
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        adtopk_close(context[i]);
    }
}

/* ---- a call of many parts ---- */

static _Atomic bool dawdles, closed; /* the thread that saves; adtopk_close() has returned */
static bool was_closed;              /* before the thread that saves was done */

/* Saving asks for the message between two of its parts, when it does not hold the lock. */
const char *__wrap_adtopk_message(const adtopk_context *context)
{
    if (atomic_load(&dawdles)) {
        sleep_ms(100);
        was_closed |= atomic_load(&closed);
    }
    return __real_adtopk_message(context);
}

/* Without a folder it only tells the other ranks, and sleeps until they have heard. */
static void *save(void *argument)
{
    struct waiter *waiter = argument;

    waiter->status = adtopk_checkpoint_save(waiter->context, NULL);
    return NULL;
}

/* The context stays until the whole call has ended, not only the part that sleeps. */
static void test_close_ends_a_checkpoint(void **state)
{
    struct waiter waiter = {.context = open_ready("silent", 1)};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, save, &waiter), 0);
    while (!waits(waiter.context)) {
        (void)sched_yield();
    }
    atomic_store(&dawdles, true);
    adtopk_close(waiter.context);
    atomic_store(&closed, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    atomic_store(&dawdles, false);
    assert_false(was_closed);
    assert_int_equal(waiter.status, ADTOPK_ERR_STATE);
    assert_int_equal(daemon_.view->lost, 0);
}

#define MANY 1500u /* more than the ring holds */

static void *wait_for_tensors(void *argument)
{
    struct waiter *waiter = argument;

    for (uint32_t tensor = 0; tensor < MANY && waiter->status == ADTOPK_OK; tensor++) {
        while (atomic_load(&waiter->pushed) <= tensor) {
            (void)sched_yield();
        }
        waiter->status = adtopk_wait(waiter->context, tensor);
    }
    return NULL;
}

static void test_one_waits_while_another_pushes(void **state)
{
    adtopk_context *context = open_ready("threads", MANY);

    (void)state;
    for (uint64_t step = 0; step < 10; step++) {
        struct waiter waiter = {.context = context, .status = ADTOPK_OK};
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, wait_for_tensors, &waiter), 0);
        for (uint32_t tensor = 0; tensor < MANY; tensor++) {
            rank_push(context, tensor);
            atomic_store(&waiter.pushed, tensor + 1);
            if (tensor % 256 == 0) {
                sleep_ms(1); /* meanwhile the waiting thread sleeps */
            }
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_status(context, waiter.status, ADTOPK_OK);
        rank_assert_update(context, step, 3);
        assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
        for (uint32_t tensor = 0; tensor < MANY; tensor++) {
            rank_assert_update(context, step, tensor);
        }
    }
    adtopk_close(context);
}

/* The step is done, and the thread that waits for it has not woken yet: it takes the step, and no
 * other one does. */
static void test_one_takes_a_step(void **state)
{
    adtopk_context *context = open_ready("threads", 1);
    float sum = 1;

    (void)state;
    rank_push(context, 0);
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    sleep_ms(100);
    context->sharing.waits = CLIENT_WAITS;
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_STATE);
    context->sharing.waits = CLIENT_WAITS_NOT;
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_int_equal(adtopk_step(context), 1);
    rank_assert_update(context, 0, 0);
    rank_daemon_pause();
    assert_status(context, adtopk_allreduce_for(context, &sum, 1, 0), ADTOPK_PENDING);
    rank_daemon_continue();
    sleep_ms(100);
    context->sharing.waits = CLIENT_WAITS;
    assert_status(context, adtopk_allreduce_for(context, &sum, 1, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_allreduce(context, &sum, 1), ADTOPK_ERR_STATE);
    context->sharing.waits = CLIENT_WAITS_NOT;
    assert_status(context, adtopk_allreduce(context, &sum, 1), ADTOPK_OK);
    adtopk_close(context);
}

static void *push_many(void *argument)
{
    struct waiter *pusher = argument;

    for (uint32_t tensor = 1; tensor < MANY && pusher->status == ADTOPK_OK; tensor++) {
        pusher->status = adtopk_push_tensor(pusher->context, tensor, NULL);
    }
    return NULL;
}

static void *close_context(void *argument)
{
    adtopk_close(argument);
    return NULL;
}

static void join_within_seconds(pthread_t thread, int seconds)
{
    struct timespec until;

    assert_int_equal(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += seconds;
    assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

/* The wait for a step waits for room in the ring first, to end the step. Without a daemon that
 * reads, only adtopk_close() ends that. */
static void close_beside_a_full_ring(bool arms)
{
    struct waiter waiter = {.context = open_ready("full", MANY)};
    pthread_t waits_for_room, closes;

    rank_push(waiter.context, MANY - 1);
    assert_status(waiter.context, adtopk_wait(waiter.context, MANY - 1), ADTOPK_OK);
    if (arms) {
        assert_status(waiter.context, adtopk_arm(waiter.context), ADTOPK_PENDING);
    }
    rank_daemon_pause();
    for (uint32_t tensor = 0; tensor < LOCAL_RING_ENTRIES; tensor++) {
        assert_status(waiter.context, adtopk_push_tensor(waiter.context, tensor, NULL), ADTOPK_OK);
    }
    assert_int_equal(pthread_create(&waits_for_room, NULL, wait_for_step, &waiter), 0);
    sleep_ms(50);
    assert_int_equal(pthread_create(&closes, NULL, close_context, waiter.context), 0);
    join_within_seconds(waits_for_room, PATIENCE_MS / 1000);
    assert_int_equal(waiter.status, ADTOPK_ERR_STATE);
    rank_daemon_continue();
    join_within_seconds(closes, PATIENCE_MS / 1000);
}

static void test_close_beside_a_full_ring(void **state)
{
    (void)state;
    close_beside_a_full_ring(false);
}

static void test_close_beside_a_full_ring_armed(void **state)
{
    (void)state;
    close_beside_a_full_ring(true);
}

/* A thread that waits for room in the ring leaves the wake-up to the thread that polls. */
static void test_descriptor_beside_a_full_ring(void **state)
{
    struct waiter pusher = {.context = open_ready("full", MANY), .status = ADTOPK_OK};
    struct pollfd readable = {.events = POLLIN};
    pthread_t thread;

    (void)state;
    assert_status(pusher.context, adtopk_descriptor(pusher.context, &readable.fd), ADTOPK_OK);
    rank_push(pusher.context, 0);
    assert_status(pusher.context, adtopk_wait(pusher.context, 0), ADTOPK_OK);
    assert_status(pusher.context, adtopk_arm(pusher.context), ADTOPK_PENDING);
    rank_daemon_pause();
    assert_int_equal(pthread_create(&thread, NULL, push_many, &pusher), 0);
    sleep_ms(50); /* the ring is full */
    rank_daemon_continue();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_status(pusher.context, pusher.status, ADTOPK_OK);
    assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
    assert_status(pusher.context, adtopk_step_wait(pusher.context), ADTOPK_OK);
    adtopk_close(pusher.context);
}

static void *commit_for(void *argument)
{
    struct waiter *waiter = argument;

    waiter->status = adtopk_commit_for(waiter->context, 300);
    return NULL;
}

/* A thread that may not wait does not disturb the other thread's commit. */
static void test_commit_in_two_threads(void **state)
{
    struct waiter waiter = {.context = open_job("commits", 1, false)};
    pthread_t thread;

    (void)state;
    rank_daemon_pause();
    assert_int_equal(pthread_create(&thread, NULL, commit_for, &waiter), 0);
    while (!waits(waiter.context)) {
        (void)sched_yield();
    }
    assert_status(waiter.context, adtopk_commit(waiter.context), ADTOPK_ERR_STATE);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waiter.status, ADTOPK_PENDING);
    rank_daemon_continue();
    assert_status(waiter.context, adtopk_commit(waiter.context), ADTOPK_OK);
    rank_push(waiter.context, 0);
    assert_status(waiter.context, adtopk_step_wait(waiter.context), ADTOPK_OK);
    adtopk_close(waiter.context);
}

/* ---- what a step costs ---- */

/* While it stays awake, a step makes no system call but sched_yield(). A sleep costs one poll() and
 * two recvmsg(), which take the wake-up and find nothing more. Each entry of the ring costs at most
 * one wake-up. On a busy machine the daemon takes the step's entries one by one. It may then wake
 * the sleeper three times for room in the ring. */
static void test_system_calls(void **state)
{
    adtopk_context *context = open_ready("calls", 2);
    const unsigned steps = 500;

    (void)state;
    forget_calls();
    for (unsigned step = 0; step < steps; step++) {
        rank_push(context, 0);
        rank_push(context, 1);
        assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    }
    assert_true(polls <= 4 * steps);
    assert_true(receives <= 2 * polls + 10);
    assert_true(sends <= 3 * steps);
    assert_int_equal(others, 0);
    adtopk_close(context);
}

#define WAIT_TEST(name) cmocka_unit_test_setup_teardown(name, rank_daemon_start, rank_daemon_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WAIT_TEST(test_pending),
        WAIT_TEST(test_steps_by_polling),
        WAIT_TEST(test_looks_see_the_end),
        WAIT_TEST(test_descriptor),
        WAIT_TEST(test_descriptor_while_reading_a_residual),
        WAIT_TEST(test_descriptor_of_a_lost_daemon),
        WAIT_TEST(test_signal_interrupts),
        WAIT_TEST(test_many_signals),
        WAIT_TEST(test_close_ends_a_wait),
        WAIT_TEST(test_messages),
        WAIT_TEST(test_close_ends_a_checkpoint),
        WAIT_TEST(test_one_waits_while_another_pushes),
        WAIT_TEST(test_one_takes_a_step),
        WAIT_TEST(test_close_beside_a_full_ring),
        WAIT_TEST(test_close_beside_a_full_ring_armed),
        WAIT_TEST(test_descriptor_beside_a_full_ring),
        WAIT_TEST(test_commit_in_two_threads),
        WAIT_TEST(test_system_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
