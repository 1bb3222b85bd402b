/* Time-outs and signals in calls that open, commit, operate on all ranks, or read a residual. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "local_rank.h"

#define NUMEL 20000u                  /* more than one part of a residual */
#define MANY 20000u                   /* tensors whose descriptions do not fit a socket */
#define BYTES 3000000u                /* more than one piece of an operation */
#define SOON_NS UINT64_C(20000000000) /* in time, on a busy machine: other limits are longer */
#define HOUR_S 3600

static volatile sig_atomic_t ahead_s; /* how far this process's clock is ahead */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int failed = (int)syscall(SYS_clock_gettime, clock, now);

    now->tv_sec += failed == 0 ? ahead_s : 0;
    return failed;
}

/* Begins a call that may be done at once or not. */
static void begin(const adtopk_context *context, enum adtopk_status status)
{
    assert_status(context, status, status == ADTOPK_PENDING ? ADTOPK_PENDING : ADTOPK_OK);
}

static adtopk_context *open_ready(const char *job, uint32_t tensors, bool interruptible)
{
    return rank_ready(job,
        (struct rank_wish){.tensors = tensors, .numel = NUMEL, .interruptible = interruptible});
}

/* ---- commit ---- */

/* If the daemon reads nothing, a call with little or no time still returns in time. */
static void test_commit(void **state)
{
    adtopk_context *context =
        rank_registered("many", (struct rank_wish){.tensors = MANY, .numel = 1});
    const uint64_t since = client_now_ns();
    enum adtopk_status status;

    (void)state;
    rank_daemon_pause();
    assert_status(context, adtopk_commit_for(context, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_commit_for(context, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_commit_for(context, 30), ADTOPK_PENDING);
    assert_true(client_now_ns() - since < SOON_NS);
    assert_status(context,
        adtopk_register(context,
            &(struct adtopk_tensor_spec){
                .size = sizeof(struct adtopk_tensor_spec), .name = "late", .dims = 1, .shape = {1}},
            NULL),
        ADTOPK_ERR_STATE);
    rank_daemon_continue();
    while ((status = adtopk_commit_for(context, 1)) == ADTOPK_PENDING) {
    }
    assert_status(context, status, ADTOPK_OK);
    assert_non_null(adtopk_gradient(context, MANY - 1));
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    adtopk_close(context);
}

/* ---- operations ---- */

static void test_barrier(void **state)
{
    adtopk_context *context = open_ready("barrier", 1, false);
    float sum = 1;

    (void)state;
    rank_daemon_pause();
    assert_status(context, adtopk_barrier_for(context, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_barrier_for(context, 30), ADTOPK_PENDING);
    assert_status(context, adtopk_allreduce_for(context, &sum, 1, 0), ADTOPK_ERR_STATE);
    assert_says(context, "adtopk_allreduce() while another");
    assert_status(context, adtopk_broadcast(context, &sum, 4, 0), ADTOPK_ERR_STATE);
    rank_daemon_continue();
    assert_status(context, adtopk_barrier(context), ADTOPK_OK); /* goes on with it */
    assert_status(context, adtopk_allreduce_for(context, &sum, 1, 30000), ADTOPK_OK);
    assert_true(sum == 1);
    adtopk_close(context);
}

/* For a rank alone: an operation returns the rank's own values. */
static void test_pieces(void **state)
{
    adtopk_context *context = open_ready("pieces", 1, false);
    float *values = malloc(BYTES);
    const size_t count = BYTES / sizeof *values;
    enum adtopk_status status;

    (void)state;
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)i;
    }
    while ((status = adtopk_allreduce_for(context, values, count, 0)) == ADTOPK_PENDING) {
        assert_status(
            context, adtopk_allreduce_for(context, values, count - 1, 0), ADTOPK_ERR_STATE);
    }
    assert_status(context, status, ADTOPK_OK);
    for (size_t i = 0; i < count; i++) {
        assert_true(values[i] == (float)i);
    }
    while ((status = adtopk_broadcast_for(context, values, BYTES, 0, 1)) == ADTOPK_PENDING) {
    }
    assert_status(context, status, ADTOPK_OK);
    assert_status(context, adtopk_broadcast_for(context, NULL, 0, 0, 0), ADTOPK_OK);
    assert_status(context, adtopk_broadcast_for(context, NULL, 1, 0, 0), ADTOPK_ERR_ARGUMENT);
    free(values);
    adtopk_close(context);
}

/* An operation that is still under way hinders neither a step nor the goodbye. */
static void test_unfinished(void **state)
{
    adtopk_context *context = open_ready("unfinished", 1, false);

    (void)state;
    begin(context, adtopk_barrier_for(context, 0));
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    adtopk_close(context);
}

/* ---- a residual ---- */

static void assert_residual(const float *residual, uint32_t tensor)
{
    for (uint32_t i = 0; i < NUMEL; i++) {
        assert_true(residual[i] == (float)(i + tensor));
    }
}

static void test_residual(void **state)
{
    adtopk_context *context = open_ready("residual", 2, false);
    float *residual = calloc(NUMEL, sizeof *residual);
    enum adtopk_status status;

    (void)state;
    assert_non_null(residual);
    rank_daemon_pause();
    assert_status(context, adtopk_residual_for(context, 0, residual, 0), ADTOPK_PENDING);
    assert_status(context, adtopk_residual_for(context, 0, residual, 20), ADTOPK_PENDING);
    rank_daemon_continue();
    while ((status = adtopk_residual_for(context, 0, residual, 0)) == ADTOPK_PENDING) {
    }
    assert_status(context, status, ADTOPK_OK);
    assert_residual(residual, 0);
    free(residual);
    adtopk_close(context);
}

/* An hour passes, and then the daemon goes on. */
static void pass_an_hour(int number)
{
    (void)number;
    if (ahead_s == 0) {
        ahead_s = HOUR_S;
        (void)alarm(1);
    } else {
        (void)kill(daemon_.pid, SIGCONT);
    }
}

/* A daemon that is stopped for an hour ends no call that has joined. */
static void test_stopped_for_long(void **state)
{
    adtopk_context *context = open_ready("stopped", 1, false);
    const struct sigaction action = {.sa_handler = pass_an_hour};
    float *residual = calloc(NUMEL, sizeof *residual);

    (void)state;
    assert_non_null(residual);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    rank_daemon_pause();
    (void)alarm(1);
    assert_status(context, adtopk_residual(context, 0, residual), ADTOPK_OK);
    ahead_s = 0;
    assert_residual(residual, 0);
    free(residual);
    adtopk_close(context);
}

/* An answer that comes too late belongs to no call, whichever call reads it. */
static void test_late_answers(void **state)
{
    adtopk_context *context = open_ready("late", 2, false);
    float *residual = calloc(NUMEL, sizeof *residual);

    (void)state;
    assert_non_null(residual);
    for (unsigned i = 0; i < 20; i++) {
        begin(context, adtopk_residual_for(context, 0, residual, 0));
        if (i % 3 == 0) {
            (void)adtopk_arm(context); /* the next call reads messages that have come */
        }
        if (i % 2 == 0) {
            assert_status(context, adtopk_barrier(context), ADTOPK_OK);
        }
        if (i % 5 == 0) {
            assert_status(context, adtopk_residual(context, 0, residual), ADTOPK_OK);
            assert_residual(residual, 0);
        }
        assert_status(context, adtopk_residual(context, 1, residual), ADTOPK_OK);
        assert_residual(residual, 1);
        begin(context, adtopk_residual_for(context, 0, residual, 0));
        assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
        assert_status(context, adtopk_residual_for(context, 0, residual, 0), ADTOPK_ERR_STATE);
        assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    }
    begin(context, adtopk_residual_for(context, 0, residual, 0));
    free(residual);
    adtopk_close(context);
}

/* ---- open ---- */

static void test_open_without_answer(void **state)
{
    struct adtopk_options options = rank_options("open");
    adtopk_context *context = NULL;

    (void)state;
    options.answer_timeout_ms = -1;
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_ERR_ARGUMENT);
    options.answer_timeout_ms = 60;
    options.return_timeout_ms = -2;
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_ERR_ARGUMENT);
    options.return_timeout_ms = 0;
    rank_daemon_pause();
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_ERR_UNREACHABLE);
    assert_says(NULL, "in 60 ms");
    assert_null(context);
    rank_daemon_continue();
    options.answer_timeout_ms = 30000;
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_OK);
    adtopk_close(context);
}

/* ---- coming back ---- */

static enum adtopk_status loop_reconnect(adtopk_context *context)
{
    context->comeback.stage = CLIENT_OPENS;
    return ADTOPK_OK;
}

static enum adtopk_status loop_send(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience)
{
    const enum adtopk_status status = client_go_away(context, "");

    (void)request;
    (void)patience;
    return status == ADTOPK_OK ? ADTOPK_ERR_UNREACHABLE : status;
}

/* Daemons that take the connection and end at once are as none: the rank gives up in time. */
static void test_daemons_that_end_at_once(void **state)
{
    adtopk_context *context = open_ready("loop", 1, false);
    const struct client_transport *real = context->transport;
    const struct client_patience patience = client_stubborn(60000);
    struct client_transport loop = *real;
    const uint64_t since = client_now_ns();
    enum adtopk_status status;

    (void)state;
    loop.reconnect = loop_reconnect;
    loop.send = loop_send;
    context->transport = &loop;
    context->comeback.run = 1;
    context->comeback.connect_ms = 60;
    assert_int_equal(client_go_away(context, ""), ADTOPK_OK);
    client_lock(context);
    status = client_be_here(context, &patience);
    assert_int_equal(client_unlock(context, status), ADTOPK_ERR_UNREACHABLE);
    assert_in_range(client_now_ns() - since, 60000000u, SOON_NS);
    assert_non_null(strstr(context->failure.text, "within 60 ms"));
    context->transport = real;
    adtopk_close(context);
}

#define AWAY_MS 1500

/* A socket at which something accepts connections and closes them; -1: nothing is there. */
static void *close_connections(void *socket)
{
    int connection;

    while ((connection = accept(*(int *)socket, NULL, NULL)) >= 0) {
        (void)close(connection);
    }
    return NULL;
}

static int listen_at(struct sockaddr_un *address)
{
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    address->sun_family = AF_UNIX;
    (void)snprintf(
        address->sun_path, sizeof address->sun_path, "/tmp/adtopk-closes.%d", (int)getpid());
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)address, sizeof *address), 0);
    assert_int_equal(listen(listener, 8), 0);
    return listener;
}

/* The connection has ended. The program looks whenever an epoll instance reports the descriptor,
 * until the rank gives up. Returns how often it looked. */
static unsigned look_until_over(adtopk_context *context, const char *path)
{
    struct epoll_event event = {.events = EPOLLIN};
    const int loop = epoll_create1(EPOLL_CLOEXEC);
    unsigned looks = 0;
    int descriptor;

    assert_true(loop >= 0);
    assert_status(context, adtopk_descriptor(context, &descriptor), ADTOPK_OK);
    assert_int_equal(epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event), 0);
    context->comeback.run = 1;
    context->comeback.connect_ms = AWAY_MS;
    (void)snprintf(context->place.address, sizeof context->place.address, "unix:%s", path);
    rank_push(context, 0);
    assert_int_equal(shutdown(context->socket, SHUT_RDWR), 0);
    while (adtopk_step_wait_for(context, 0) == ADTOPK_PENDING && looks < 100000) {
        if (adtopk_arm(context) == ADTOPK_PENDING) {
            assert_int_equal(epoll_wait(loop, &event, 1, PATIENCE_MS), 1);
        }
        looks++;
    }
    assert_int_equal(context->failure.code, ADTOPK_ERR_UNREACHABLE);
    (void)close(loop);
    return looks;
}

/* A program that polls the descriptor sleeps between two attempts to connect, whether no daemon is
 * there or connections break at once. */
static void test_descriptor_sleeps_while_away(void **state)
{
    struct sockaddr_un address = {0};
    adtopk_context *context = open_ready("silent", 1, false);
    int listener = listen_at(&address);
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, close_connections, &listener), 0);
    assert_in_range(look_until_over(context, address.sun_path), 4, 40);
    adtopk_close(context);
    (void)shutdown(listener, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(listener);
    (void)unlink(address.sun_path);
    context = open_ready("silent", 1, false);
    assert_in_range(look_until_over(context, address.sun_path), 4, 240);
    adtopk_close(context);
}

/* A daemon that stands still keeps nobody from leaving. */
static void test_close_without_answer(void **state)
{
    struct adtopk_options options = rank_options("close");
    adtopk_context *context = NULL;
    uint64_t begun;

    (void)state;
    options.answer_timeout_ms = 1000;
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_OK);
    rank_daemon_pause();
    begun = client_now_ns();
    adtopk_close(context);
    assert_in_range(client_now_ns() - begun, 1000000000u, SOON_NS);
    rank_daemon_continue();
}

/* The time-out of the call and the option: the shorter one counts, and a negative one is none. */
static void test_close_for_without_answer(void **state)
{
    static const struct {
        int answer_ms, timeout_ms;
        uint64_t least_ns;
    } given[] = {
        {1000, 300, 300000000u}, {300, 60000, 300000000u}, {300, -1, 300000000u}, {60000, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        struct adtopk_options options = rank_options("close for");
        adtopk_context *context = NULL;
        uint64_t begun;

        options.answer_timeout_ms = given[i].answer_ms;
        assert_status(NULL, adtopk_open(&options, &context), ADTOPK_OK);
        rank_daemon_pause();
        begun = client_now_ns();
        adtopk_close_for(context, given[i].timeout_ms);
        assert_in_range(client_now_ns() - begun, given[i].least_ns, SOON_NS);
        rank_daemon_continue();
    }
}

/* Checks the names that the library made. */
static void test_names(void **state)
{
    struct adtopk_options options = rank_options("names");
    adtopk_context *first = NULL, *second = NULL;

    (void)state;
    options.group = "g";
    options.run_id = "run7";
    assert_status(NULL, adtopk_open(&options, &first), ADTOPK_OK);
    assert_status(NULL, adtopk_open(&options, &second), ADTOPK_OK);
    assert_string_equal(adtopk_job(first), "names@g");
    assert_string_equal(adtopk_job(second), "names@g#2");
    assert_string_equal(adtopk_run_id(second), "run7");
    assert_string_equal(adtopk_job(NULL), "");
    assert_string_equal(adtopk_run_id(NULL), "");
    adtopk_close(second);
    adtopk_close(first);
}

/* ---- signals ---- */

static void test_signals_end_waits(void **state)
{
    adtopk_context *context = open_ready("silent", 1, true);
    float *residual = calloc(NUMEL, sizeof *residual);
    float value = 1;

    (void)state;
    assert_non_null(residual);
    rank_alarm_every(20000);
    assert_status(context, adtopk_barrier(context), ADTOPK_INTERRUPTED);
    assert_status(context, adtopk_barrier_for(context, 60000), ADTOPK_INTERRUPTED);
    assert_status(context, adtopk_allreduce(context, &value, 1), ADTOPK_ERR_STATE);
    rank_daemon_pause();
    assert_status(context, adtopk_residual(context, 0, residual), ADTOPK_INTERRUPTED);
    rank_daemon_continue();
    rank_alarm_every(0);
    assert_status(context, adtopk_residual(context, 0, residual), ADTOPK_OK);
    assert_residual(residual, 0);
    adtopk_close(context);
    context = open_ready("silent", 1, true);
    rank_alarm_every(20000);
    assert_status(context, adtopk_allreduce(context, &value, 1), ADTOPK_INTERRUPTED);
    rank_alarm_every(0);
    adtopk_close(context);
    context = open_ready("silent", 1, true);
    rank_alarm_every(20000);
    assert_status(context, adtopk_broadcast(context, &value, 4, 0), ADTOPK_INTERRUPTED);
    rank_alarm_every(0);
    adtopk_close(context);
    free(residual);
}

/* Signals end a wait for a daemon that is not there, does not answer, or reads nothing. */
static void test_signals_end_joining(void **state)
{
    struct adtopk_options options = rank_options("joining");
    adtopk_context *context = rank_registered("reading",
                       (struct rank_wish){.tensors = MANY, .numel = 1, .interruptible = true}),
                   *none = NULL;
    enum adtopk_status status;

    (void)state;
    options.interruptible = 1;
    options.connect_timeout_ms = 60000;
    rank_daemon_pause();
    rank_alarm_every(20000);
    assert_status(context, adtopk_commit(context), ADTOPK_INTERRUPTED);
    assert_status(NULL, adtopk_open(&options, &none), ADTOPK_INTERRUPTED);
    assert_says(NULL, "a signal ended adtopk_open()");
    options.address = "unix:/tmp/adtopk-there-is-nothing";
    assert_status(NULL, adtopk_open(&options, &none), ADTOPK_INTERRUPTED);
    options.address = "tcp://127.0.0.1:1";
    assert_status(NULL, adtopk_open(&options, &none), ADTOPK_INTERRUPTED);
    assert_null(none);
    rank_daemon_continue();
    while ((status = adtopk_commit(context)) == ADTOPK_INTERRUPTED) {
    }
    rank_alarm_every(0);
    assert_status(context, status, ADTOPK_OK);
    adtopk_close(context);
}

/* With a ring that is full a push waits for the daemon, and so does the end of the step. A signal
 * ends both, and nothing is submitted. */
static void test_signals_end_pushes(void **state)
{
    const uint32_t tensors = LOCAL_RING_ENTRIES + 10;
    adtopk_context *context = rank_ready("pushing",
        (struct rank_wish){.tensors = tensors, .numel = RANK_NUMEL_MAX, .interruptible = true});
    enum adtopk_status status = ADTOPK_OK;
    uint32_t pushed = 0;

    (void)state;
    rank_daemon_pause();
    rank_alarm_every(20000);
    while (pushed < tensors && status == ADTOPK_OK) {
        rank_fill(adtopk_gradient(context, pushed), RANK_NUMEL_MAX, 0, pushed);
        status = adtopk_push_tensor(context, pushed, NULL);
        pushed += status == ADTOPK_OK ? 1 : 0;
    }
    assert_int_equal(pushed, LOCAL_RING_ENTRIES);
    assert_int_equal(status, ADTOPK_INTERRUPTED);
    assert_status(context, adtopk_step_wait(context), ADTOPK_INTERRUPTED);
    assert_status(context, adtopk_wait(context, 0), ADTOPK_INTERRUPTED);
    rank_alarm_every(0);
    rank_daemon_continue();
    for (uint32_t i = pushed; i < tensors; i++) {
        rank_push(context, i);
    }
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    for (uint32_t i = 0; i < tensors; i++) {
        rank_assert_update(context, 0, i);
    }
    adtopk_close(context);
}

/* Without options.interruptible signals end no wait. */
static void test_signals_are_ignored(void **state)
{
    adtopk_context *context = open_ready("ignored", 1, false);
    float *residual = calloc(NUMEL, sizeof *residual);

    (void)state;
    assert_non_null(residual);
    rank_daemon_pause();
    rank_alarm_every(20000);
    assert_status(context, adtopk_barrier_for(context, 100), ADTOPK_PENDING);
    assert_status(context, adtopk_residual_for(context, 0, residual, 100), ADTOPK_PENDING);
    rank_daemon_continue();
    assert_status(context, adtopk_barrier(context), ADTOPK_OK);
    assert_status(context, adtopk_residual(context, 0, residual), ADTOPK_OK);
    rank_alarm_every(0);
    assert_residual(residual, 0);
    free(residual);
    adtopk_close(context);
}

#define FOR_TEST(name) cmocka_unit_test_setup_teardown(name, rank_daemon_start, rank_daemon_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOR_TEST(test_commit),
        FOR_TEST(test_barrier),
        FOR_TEST(test_pieces),
        FOR_TEST(test_unfinished),
        FOR_TEST(test_residual),
        FOR_TEST(test_stopped_for_long),
        FOR_TEST(test_late_answers),
        FOR_TEST(test_open_without_answer),
        FOR_TEST(test_close_without_answer),
        FOR_TEST(test_close_for_without_answer),
        FOR_TEST(test_daemons_that_end_at_once),
        FOR_TEST(test_descriptor_sleeps_while_away),
        FOR_TEST(test_names),
        FOR_TEST(test_signals_end_waits),
        FOR_TEST(test_signals_end_joining),
        FOR_TEST(test_signals_end_pushes),
        FOR_TEST(test_signals_are_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
