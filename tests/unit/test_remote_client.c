/* The client library at a daemon on another machine, with two threads in one context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <zmq.h>

#include <adtopk/adtopk.h>

#include "client/src/remote.h"
#include "remote_host.h"

#define LARGE (4u << 20) /* elements of a tensor that is longer than the window */

static struct remote_host host;

/* ---- when a call waits ---- */

int __real_nanosleep(const struct timespec *pause, struct timespec *left);
int __wrap_nanosleep(const struct timespec *pause, struct timespec *left);

static _Thread_local bool pushes_here; /* this thread is the one that pushes */
static _Atomic bool push_waits;

/* The library pauses here while the daemon has not acknowledged enough. */
int __wrap_nanosleep(const struct timespec *pause, struct timespec *left)
{
    if (pushes_here) {
        atomic_store(&push_waits, true);
    }
    return __real_nanosleep(pause, left);
}

/* ---- a host that stands still when the test says so ---- */

static _Atomic bool serves, ends;

/* Serves on this thread until the test's other threads are done. */
static void serve(void)
{
    while (!atomic_load(&ends)) {
        if (atomic_load(&serves)) {
            remote_host_run(&host, 1);
        } else {
            (void)sched_yield();
        }
    }
}

static adtopk_context *open_ready(uint64_t elements)
{
    static char address[64];
    struct adtopk_options options = {.size = sizeof options,
        .address = address,
        .job = "job",
        .run_id = "run",
        .has_rank = 1,
        .world_size = 1};
    struct adtopk_tensor_spec tensor = {
        .size = sizeof tensor, .dims = 1, .shape = {elements}, .name = "w0"};
    adtopk_context *context = NULL;

    (void)snprintf(address, sizeof address, "%s", remote_endpoint(host.remote));
    if (adtopk_open(&options, &context) != ADTOPK_OK) {
        (void)fprintf(stderr, "%s\n", adtopk_message(NULL));
        return NULL;
    }
    if (adtopk_register(context, &tensor, NULL) == ADTOPK_OK) {
        tensor.name = "w1";
        (void)adtopk_register(context, &tensor, NULL);
    }
    if (adtopk_commit(context) != ADTOPK_OK) {
        (void)fprintf(stderr, "%s\n", adtopk_message(context));
    }
    return context;
}

struct task {
    void *(*run)(void *context);
    uint64_t elements;
    enum adtopk_status status;
};

static void *run_task(void *argument)
{
    struct task *task = argument;
    adtopk_context *context = open_ready(task->elements);

    if (context != NULL) {
        task->status = (enum adtopk_status)(intptr_t)task->run(context);
    }
    atomic_store(&ends, true);
    return NULL;
}

/* Runs with a context that has two tensors of so many elements, while this thread is the host. The
 * function returns a status, which must be OK. */
static void run_in_thread(void *(*run)(void *context), uint64_t elements)
{
    struct task task = {.run = run, .elements = elements, .status = ADTOPK_ERR_SYSTEM};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, run_task, &task), 0);
    serve();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(task.status, ADTOPK_OK);
}

static int start(void **state)
{
    (void)state;
    atomic_store(&serves, true);
    atomic_store(&ends, false);
    atomic_store(&push_waits, false);
    remote_host_start(&host, (struct remote_config){.owner = 7, .max_sessions = 8});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    remote_host_run(&host, 50);
    remote_host_stop(&host);
    return 0;
}

/* ---- closing beside a push ---- */

static void *push_large(void *argument)
{
    enum adtopk_status status;

    pushes_here = true;
    status = adtopk_push_tensor(argument, 0, NULL);
    atomic_store(&push_waits, true); /* it is over, perhaps without waiting */
    return (void *)(intptr_t)status;
}

static void *close_context(void *argument)
{
    adtopk_close(argument);
    return NULL;
}

/* The host does not read, so the push waits for it. Only then may another thread close. */
static void *close_beside_a_push(void *context)
{
    void *status = NULL;
    pthread_t pushes, closes;

    atomic_store(&serves, false);
    if (pthread_create(&pushes, NULL, push_large, context) != 0) {
        return NULL;
    }
    while (!atomic_load(&push_waits)) {
        (void)sched_yield();
    }
    if (pthread_create(&closes, NULL, close_context, context) == 0) {
        (void)pthread_join(pushes, &status);
        atomic_store(&serves, true);
        (void)pthread_join(closes, NULL);
    }
    return (void *)(intptr_t)((intptr_t)status == ADTOPK_ERR_STATE ? ADTOPK_OK : ADTOPK_ERR_SYSTEM);
}

static void test_close_beside_a_push(void **state)
{
    (void)state;
    run_in_thread(close_beside_a_push, LARGE);
}

/* ---- signals between the parts of a message ---- */

static const struct libzmq *libzmq;

/* Every other call that sends the last part of a message ends as if a signal came. */
static int send_interrupted(void *socket, const void *bytes, size_t size, int flags)
{
    static bool now;

    now = (flags & ZMQ_SNDMORE) == 0 && !now;
    errno = EINTR;
    return now ? -1 : libzmq->send(socket, bytes, size, flags);
}

/* Pushes all gradients of a step, and gets them back as the update. */
static void *step_with_signals(void *argument)
{
    adtopk_context *context = argument;
    struct adtopk_update update = {.size = sizeof update};
    struct libzmq interrupting;
    enum adtopk_status status = ADTOPK_OK;

    libzmq = context->remote->zmq;
    interrupting = *libzmq;
    interrupting.send = send_interrupted;
    context->remote->zmq = &interrupting;
    for (uint32_t t = 0; status == ADTOPK_OK && t < 2; t++) {
        float *gradient = adtopk_gradient(context, t);

        for (uint32_t i = 0; i < LARGE; i++) {
            gradient[i] = (float)(i % 1000 + t);
        }
        status = adtopk_push_tensor(context, t, NULL);
    }
    status = status == ADTOPK_OK ? adtopk_step_wait(context) : status;
    for (uint32_t t = 0; status == ADTOPK_OK && t < 2; t++) {
        status = adtopk_update(context, t, &update);
        for (uint32_t i = 0; status == ADTOPK_OK && i < LARGE; i++) {
            status = update.dense[i] == (float)(i % 1000 + t) ? ADTOPK_OK : ADTOPK_ERR_PROTOCOL;
        }
    }
    context->remote->zmq = libzmq;
    adtopk_close(context);
    return (void *)(intptr_t)status;
}

static void test_signals_between_parts(void **state)
{
    (void)state;
    run_in_thread(step_with_signals, LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_signals_between_parts, start, stop),
        cmocka_unit_test_setup_teardown(test_close_beside_a_push, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
