/* Clients that flood, do not read, die, or are too many. They cost others nothing, and the daemon
 * soon frees everything that they had. A witness trains on undisturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/src/patience.h"
#include "local_witness.h"
#include "proto/codec.h"
#include "tests/host/sanitized.h"

static const struct client_patience for_ever = {.deadline_ns = PATIENCE_FOR_EVER};

static atomic_bool *no_room; /* for descriptors in flight; the daemon's process shares it */

ssize_t __real_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);

ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags)
{
    if (message->msg_controllen > 0 && atomic_load(no_room)) {
        errno = ETOOMANYREFS;
        return -1;
    }
    return __real_sendmsg(socket, message, flags);
}

/* A second client sends wake-ups as fast as it can, while the witness trains. */
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
         daemon_.view->stats.messages < until || steps < 10; steps++) {
        rank_train(witness);
    }
    (void)kill(flooder, SIGKILL);
    (void)waitpid(flooder, NULL, 0);
    rank_train(context); /* a flood is not an error */
    adtopk_close(context);
}

/* Sends requests that the daemon answers with an error, again and again, and reads no answer. */
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
    assert_status(context, client_send_tensors(context, context->tensors, &for_ever), ADTOPK_OK);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    bytes = codec_pack(&request.base, &size);
    assert_non_null(bytes);
    for (int i = 0; i < 1000000 && (sent >= 0 || errno == EAGAIN); i++) {
        sent = send(context->socket, bytes, size, MSG_NOSIGNAL);
    }
    free(bytes);
    assert_int_equal(sent, -1); /* the daemon has hung up */
    assert_int_equal(daemon_.view->lost, 1);
    assert_has(daemon_.view->reason, "does not read");
    adtopk_close(context);
}

/* ---- dying ---- */

static void assert_died(pid_t child, const char *word)
{
    char pid[32];

    /* The promise: within a second. Sanitized daemons promise no time. */
    assert_int_equal(
        daemon_settle(&daemon_, descriptors, mappings, SANITIZED ? PATIENCE_MS : 1000), 0);
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

        (void)adtopk_push_tensor(context, 0, NULL);
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
    rank_train(witness);
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

/* The socket does not show the end, because a child holds it. The daemon notices the process's own
 * end. */
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
        (void)client_send_tensors(context, context->tensors, &for_ever);
        request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
        request.commit = &commit;
        (void)client_send(context, &request, &for_ever);
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
    rank_train(context); /* and never pushes again */
    for (int i = 0; i < 200; i++) {
        rank_train(witness);
    }
    adtopk_close(context);
}

/* ---- large arenas ---- */

#define LARGE (64u << 20) /* elements: 256 MiB */

/* Commits an arena that the kernel needs a while to clear, and does not wait for it. */
static adtopk_context *commit_large(const char *job)
{
    adtopk_context *context = open_job(job);
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;

    context->tensor[0].shape[0] = LARGE;
    assert_status(context, client_send_tensors(context, context->tensors, &for_ever), ADTOPK_OK);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    return context;
}

/* Others train on while the daemon reserves memory for two sessions, one after the other. */
static void test_large_commit(void **state)
{
    adtopk_context *context[] = {commit_large("large1"), commit_large("large2")};
    struct client_reply reply;
    unsigned steps = 0;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct pollfd readable = {.fd = context[i]->socket, .events = POLLIN};
        for (; poll(&readable, 1, 0) == 0; steps++) {
            rank_train(witness);
        }
    }
    assert_true(steps > 2); /* more than the one that waits each time if others do */
    for (unsigned i = 0; i < 2; i++) {
        assert_status(context[i], rank_receive(context[i], &reply), ADTOPK_OK);
        assert_int_equal(reply.message->kind_case, ADTOPK__LOCAL_REPLY__KIND_ARENA);
        assert_int_equal(reply.message->arena->size, 4ull * LARGE + CLIENT_OP_SIZE);
        client_reply_drop(&reply);
    }
    assert_true(daemon_.view->stats.gradient_bytes >= 8ull * LARGE);
    adtopk_close(context[0]);
    adtopk_close(context[1]);
}

/* The loop would have to fill holes in a large arena, so the daemon refuses it. */
static void test_large_holes(void **state)
{
    adtopk_context *context = commit_large("holes");
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    struct client_reply reply;

    (void)state;
    assert_status(context, rank_receive(context, &reply), ADTOPK_OK);
    assert_int_equal(reply.descriptors, 1);
    assert_int_equal(
        fallocate(reply.descriptor[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2ll * LARGE),
        0);
    client_reply_drop(&reply);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_MAPPED;
    request.mapped = &mapped;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    assert_status(context, rank_receive(context, &reply), ADTOPK_ERR_PROTOCOL);
    assert_has(adtopk_message(context), "holes");
    adtopk_close(context);
}

static int plain_start(void **state)
{
    (void)state;
    return daemon_start(&daemon_, SESSIONS);
}

static int plain_stop(void **state)
{
    (void)state;
    daemon_remove(&daemon_);
    return 0;
}

/* The daemon is told to stop while one of its threads reserves memory. */
static void test_stop_in_commit(void **state)
{
    adtopk_context *context[] = {commit_large("stop1"), commit_large("stop2")};

    (void)state;
    assert_int_equal(daemon_stop(&daemon_), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct client_reply reply;
        assert_status(context[i], rank_receive(context[i], &reply), ADTOPK_ERR_UNREACHABLE);
        adtopk_close(context[i]);
    }
}

/* Processes die, or only hang up, while their arena is being reserved or waits for its turn. The
 * memory is back when the test is over: see witness_stop(). */
static void test_gone_in_commit(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        adtopk_context *context = commit_large("hangs-up");
        const pid_t child = fork();

        if (child == 0) {
            (void)commit_large("dies");
            sleep_ms(10 * i);
            _exit(0);
        }
        rank_train(witness);
        (void)close(context->socket); /* the child has a copy for a while */
        context->socket = -1;
        assert_int_equal(waitpid(child, NULL, 0), child);
        adtopk_close(context);
        rank_train(witness);
        assert_int_equal(daemon_settle(&daemon_, descriptors, mappings, PATIENCE_MS), 0);
    }
    assert_int_equal(daemon_.view->lost, 6);
}

/* ---- limits ---- */

static void test_too_many_sessions(void **state)
{
    adtopk_context *context[SESSIONS] = {NULL};

    (void)state;
    if (geteuid() != 0) {
        return; /* other users may not have all of them: the next test */
    }
    for (int i = 0; i < SESSIONS - 1; i++) {
        char job[8];
        (void)snprintf(job, sizeof job, "j%d", i);
        assert_status(NULL, try_open(job, &context[i]), ADTOPK_OK);
    }
    assert_status(NULL, try_open("last", &context[SESSIONS - 1]), ADTOPK_ERR_DENIED);
    assert_has(adtopk_message(NULL), "8 sessions");
    adtopk_close(context[0]);
    context[0] = NULL;
    while (try_open("last", &context[0]) == ADTOPK_ERR_DENIED) {
        sleep_ms(1); /* until the daemon has freed the place */
    }
    assert_non_null(context[0]);
    for (int i = 0; i < SESSIONS; i++) {
        adtopk_close(context[i]);
    }
}

/* A user other than root opens as many sessions as it may, and is refused another. */
static int hold_share(int ready)
{
    const int share = SESSIONS / 4 * 3 - (geteuid() != 0); /* the witness is one of them */
    adtopk_context *context = NULL;

    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
        return 2;
    }
    for (int i = 0; i < share; i++) {
        if (client_connect(daemon_.path, -1, false, NULL) < 0) {
            return 3;
        }
    }
    if (try_open("more", &context) != ADTOPK_ERR_DENIED ||
        strstr(adtopk_message(NULL), "6 sessions") == NULL ||
        strstr(adtopk_message(NULL), "one user") == NULL) {
        return 4;
    }
    (void)!write(ready, "r", 1);
    sleep_ms(60000); /* until it is killed */
    return 5;
}

static void test_share_of_a_user(void **state)
{
    adtopk_context *context = NULL;
    int ready[2];
    char byte;
    pid_t child;

    (void)state;
    assert_int_equal(chmod(daemon_.folder, 0755), 0);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        _exit(hold_share(ready[1]));
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1); /* 0: the child ended, with the error */
    (void)close(ready[0]);
    rank_train(witness);
    assert_int_equal(daemon_.view->stats.door.refused_share, 1);
    if (geteuid() == 0) {
        assert_status(NULL, try_open("root", &context), ADTOPK_OK);
        adtopk_close(context);
    }
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
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
    uint64_t iterations;
    /* Tries it also with room for some of the descriptors that a session needs. */
    /* Without . and .. and the descriptor that reads the folder. */
    const rlim_t used = (rlim_t)descriptors - 3;

    (void)state;
    for (rlim_t room = 0; room < 4; room++) {
        limit(RLIMIT_NOFILE, used + room, &before);
        assert_status(NULL, try_open("none", &context), ADTOPK_ERR_SYSTEM);
        rank_train(witness);
        assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
        sleep_ms(250); /* it pauses before it accepts again */
    }
    limit(RLIMIT_NOFILE, used, &before);
    assert_status(NULL, try_open("none", &context), ADTOPK_ERR_SYSTEM);
    assert_has(adtopk_message(NULL), "file descriptors");
    iterations = daemon_.view->iterations;
    sleep_ms(100);
    assert_true(daemon_.view->iterations - iterations < 20); /* it does not spin */
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
    context = open_ready("again");
    rank_train(context);
    adtopk_close(context);
}

/* The trainer has no descriptor left for the memory that it gets. It is told that. */
static void test_no_descriptors_here(void **state)
{
    adtopk_context *context = NULL;
    struct rlimit before, now;
    const int next = dup(STDIN_FILENO);

    (void)state;
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t room = 2; room < 4; room++) {
        now = before;
        now.rlim_cur = (rlim_t)next + room;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
        assert_status(NULL, try_open("none", &context), ADTOPK_ERR_SYSTEM);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_has(adtopk_message(NULL), "no descriptor left");
    }
}

/* The kernel limits the descriptors that a user's processes have sent and nobody has received. It
 * does not say when there is room again. */
static void test_descriptors_in_flight(void **state)
{
    adtopk_context *context = open_job("in-flight");
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    struct client_reply reply;
    uint64_t iterations;

    (void)state;
    assert_status(context, client_send_tensors(context, context->tensors, &for_ever), ADTOPK_OK);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    atomic_store(no_room, true);
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    sleep_ms(100);
    iterations = daemon_.view->iterations;
    sleep_ms(1000);
    assert_true(daemon_.view->iterations - iterations < 100); /* it does not spin */
    atomic_store(no_room, false);
    assert_status(context, rank_receive(context, &reply), ADTOPK_OK);
    assert_int_equal(reply.message->kind_case, ADTOPK__LOCAL_REPLY__KIND_ARENA);
    client_reply_drop(&reply);
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

/* A client that does not say what it is: others come through, and hanging up frees its place. */
static void test_silent_connection(void **state)
{
    const int silent = client_connect(daemon_.path, -1, false, NULL);

    (void)state;
    assert_true(silent >= 0);
    rank_train(witness);
    (void)close(silent);
}

/* A connection that stays silent is closed. */
static void test_silence_ends(void **state)
{
    const int silent = client_connect(daemon_.path, -1, false, NULL);
    struct pollfd readable = {.fd = silent, .events = POLLIN};
    char bytes[1024];

    (void)state;
    assert_true(silent >= 0);
    assert_int_equal(poll(&readable, 1, 3000), 0);
    assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
    assert_true(recv(silent, bytes, sizeof bytes, 0) > 0); /* why */
    assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
    assert_int_equal(recv(silent, bytes, sizeof bytes, 0), 0);
    while (daemon_.view->stats.door.sessions > 1) {
        sleep_ms(1); /* counts are those of the last turn */
    }
    (void)close(silent);
}

#define WITNESSED(name) cmocka_unit_test_setup_teardown(name, witness_start, witness_stop)

int main(void)
{
    no_room =
        mmap(NULL, sizeof *no_room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (no_room == MAP_FAILED) {
        return 1;
    }

    const struct CMUnitTest tests[] = {
        WITNESSED(test_flood),
        WITNESSED(test_stops_reading),
        WITNESSED(test_exit_in_mid_step),
        WITNESSED(test_killed_in_mid_step),
        WITNESSED(test_killed_with_heirs),
        WITNESSED(test_exit_with_unread),
        WITNESSED(test_never_releases),
        WITNESSED(test_large_commit),
        WITNESSED(test_large_holes),
        cmocka_unit_test_setup_teardown(test_stop_in_commit, plain_start, plain_stop),
        WITNESSED(test_gone_in_commit),
        WITNESSED(test_too_many_sessions),
        WITNESSED(test_share_of_a_user),
        WITNESSED(test_no_descriptors),
        WITNESSED(test_no_descriptors_here),
        WITNESSED(test_descriptors_in_flight),
        WITNESSED(test_file_size_limit),
        WITNESSED(test_silent_connection),
        WITNESSED(test_silence_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
