/* Clients that flood, do not read, die or are too many: they cost nobody else anything, and
 * everything they had is free soon after; a witness beside them trains on undisturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/src/context.h"
#include "local_witness.h"
#include "proto/codec.h"

/* A second client sends wake-ups as fast as it can; the witness trains at its side. */
static void test_flood(void **state)
{
    adtopk_context *context = open_ready("flood");
    const pid_t flooder = fork();
    const char wake = LOCAL_WAKE;
    uint64_t steps = 0;

    (void)state;
    while (flooder == 0) {
        (void)send(context->socket, &wake, 1, MSG_NOSIGNAL);
    }
    for (uint64_t until = daemon_.view->stats.messages + 20000;
         daemon_.view->stats.messages < until; steps++) {
        train(witness);
    }
    (void)kill(flooder, SIGKILL);
    (void)waitpid(flooder, NULL, 0);
    assert_true(steps > 10);
    train(context); /* floods are no crime */
    adtopk_close(context);
}

/* Asks for what is answered with an error, again and again, and reads no answer. */
static void test_stops_reading(void **state)
{
    adtopk_context *context = open_job("deaf");
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    size_t size = 0;
    uint8_t *bytes;
    ssize_t sent = 0;

    (void)state;
    context->tensor[0].shape[0] = 0;
    assert_status(context, client_send_tensors(context), ADTOPK_OK);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    bytes = codec_pack(&request.base, &size);
    assert_non_null(bytes);
    for (int i = 0; i < 1000000 && (sent >= 0 || errno == EAGAIN); i++) {
        sent = send(context->socket, bytes, size, MSG_NOSIGNAL);
    }
    free(bytes);
    assert_int_equal(sent, -1); /* it was hung up on */
    assert_int_equal(daemon_.view->lost, 1);
    assert_has(daemon_.view->reason, "does not read");
    adtopk_close(context);
}

/* ---- dying ---- */

static void assert_died(pid_t child, const char *word)
{
    char pid[32];

    assert_int_equal(daemon_settle(&daemon_, descriptors, mappings, 1000), 0);
    assert_int_equal(daemon_.view->lost, 1);
    (void)snprintf(pid, sizeof pid, "process %d ", (int)child);
    assert_has(daemon_.view->reason, pid);
    assert_has(daemon_.view->reason, word);
}

/* A trainer that dies in mid-push; with `heir`, a forked child of it keeps its socket open. */
static void die(int signal, bool heir, const char *word)
{
    int ready[2];
    char byte;
    pid_t child;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        adtopk_context *context = open_ready("dying");

        (void)adtopk_push(context, 0, NULL);
        if (heir && fork() == 0) {
            sleep_ms(3000);
            _exit(0);
        }
        (void)!write(ready[1], "r", 1);
        if (signal != 0) {
            (void)kill(getpid(), signal);
        }
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    train(witness);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_died(child, word);
}

static void test_exit_in_mid_step(void **state)
{
    (void)state;
    die(0, false, "without leaving");
}

static void test_killed_in_mid_step(void **state)
{
    (void)state;
    die(SIGKILL, false, "without leaving");
}

/* The end of file does not come: the process's own end is what counts. */
static void test_killed_with_heirs(void **state)
{
    (void)state;
    die(SIGKILL, true, "ended without leaving");
}

/* A trainer that ends with a reply unread: its socket is reset, not just closed. */
static void test_exit_with_unread(void **state)
{
    const pid_t child = fork();

    (void)state;
    if (child == 0) {
        adtopk_context *context = open_job("unread");
        Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
        Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;

        context->tensor[0].shape[0] = 0; /* refused */
        (void)client_send_tensors(context);
        request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
        request.commit = &commit;
        (void)client_send(context, &request);
        sleep_ms(50);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_died(child, "closed its connection without leaving");
}

static void test_never_releases(void **state)
{
    adtopk_context *context = open_ready("lazy");

    (void)state;
    train(context); /* and never pushes again */
    for (int i = 0; i < 200; i++) {
        train(witness);
    }
    adtopk_close(context);
}

/* ---- limits ---- */

static void test_too_many_sessions(void **state)
{
    adtopk_context *context[SESSIONS] = {NULL};

    (void)state;
    for (int i = 0; i < SESSIONS - 1; i++) {
        char job[8];
        (void)snprintf(job, sizeof job, "j%d", i);
        assert_status(NULL, try_open(job, &context[i]), ADTOPK_OK);
    }
    assert_status(NULL, try_open("last", &context[SESSIONS - 1]), ADTOPK_ERR_DENIED);
    assert_has(adtopk_message(NULL), "8 sessions");
    adtopk_close(context[0]);
    context[0] = NULL;
    sleep_ms(50);
    assert_status(NULL, try_open("last", &context[0]), ADTOPK_OK);
    for (int i = 0; i < SESSIONS; i++) {
        adtopk_close(context[i]);
    }
}

static void limit(__rlimit_resource_t resource, rlim_t value, struct rlimit *before)
{
    struct rlimit now;

    assert_int_equal(prlimit(daemon_.pid, resource, NULL, before), 0);
    now = *before;
    now.rlim_cur = value;
    assert_int_equal(prlimit(daemon_.pid, resource, &now, NULL), 0);
}

static void test_no_descriptors(void **state)
{
    adtopk_context *context = NULL;
    struct rlimit before;
    uint64_t turns;
    /* Also with room for some of what a session needs. */
    const rlim_t used = (rlim_t)descriptors - 3; /* without . and .. and the one that looks */

    (void)state;
    for (rlim_t room = 0; room < 4; room++) {
        limit(RLIMIT_NOFILE, used + room, &before);
        assert_status(NULL, try_open("none", &context), ADTOPK_ERR_SYSTEM);
        train(witness);
        assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
        sleep_ms(250); /* it pauses before it accepts again */
    }
    limit(RLIMIT_NOFILE, used, &before);
    assert_status(NULL, try_open("none", &context), ADTOPK_ERR_SYSTEM);
    assert_has(adtopk_message(NULL), "file descriptors");
    turns = daemon_.view->turns;
    sleep_ms(100);
    assert_true(daemon_.view->turns - turns < 20); /* it does not spin */
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
    context = open_ready("again");
    train(context);
    adtopk_close(context);
}

/* The limit on file sizes holds for shared memory too; its signal would end the daemon. */
static void test_file_size_limit(void **state)
{
    adtopk_context *context = NULL;
    struct rlimit before;

    (void)state;
    limit(RLIMIT_FSIZE, 8192, &before);
    assert_status(NULL, try_open("small", &context), ADTOPK_ERR_MEMORY);
    assert_has(adtopk_message(NULL), "ring");
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_FSIZE, &before, NULL), 0);
}

/* Nobody says who it is: others come through, and hanging up frees the slot. */
static void test_silent_connection(void **state)
{
    const int silent = client_connect(daemon_.path, -1, NULL);

    (void)state;
    assert_true(silent >= 0);
    train(witness);
    (void)close(silent);
}

#define WITNESSED(name) cmocka_unit_test_setup_teardown(name, witness_start, witness_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITNESSED(test_flood),
        WITNESSED(test_stops_reading),
        WITNESSED(test_exit_in_mid_step),
        WITNESSED(test_killed_in_mid_step),
        WITNESSED(test_killed_with_heirs),
        WITNESSED(test_exit_with_unread),
        WITNESSED(test_never_releases),
        WITNESSED(test_too_many_sessions),
        WITNESSED(test_no_descriptors),
        WITNESSED(test_file_size_limit),
        WITNESSED(test_silent_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
