/* The control socket: no client can harm another one, and the daemon harms no file at its path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/control/exchange.h"
#include "control_host.h"

/* ------------------------------------------------------------------ clients that misbehave */

static void test_rubbish(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t rubbish[] = {0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0x00, 0x12};
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, rubbish, sizeof(rubbish), 0), sizeof(rubbish));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "malformed");
}

static void test_unknown_request_and_version(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t no_kind[] = {0x08, 0x01};
    static const uint8_t future[] = {0x08, 0x01, 0x9A, 0x06, 0x00};
    static const uint8_t other_version[] = {0x08, 0x02, 0x12, 0x00};
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, no_kind, sizeof(no_kind), 0), sizeof(no_kind));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "has no kind");
    fd = connect_client(daemon);
    assert_int_equal(send(fd, future, sizeof(future), 0), sizeof(future));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "does not know requests of kind 99");
    fd = connect_client(daemon);
    assert_int_equal(send(fd, other_version, sizeof(other_version), 0), sizeof(other_version));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "version 1");
}

static void test_too_long_request(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t zeros[60001];
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, zeros, sizeof(zeros), 0), sizeof(zeros));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "more than 60000");
}

static void test_empty_message(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint32_t status;
    unsigned replies;

    assert_int_equal(send(fd, "", 0, 0), 0);
    assert_null(receive_answer(daemon, fd, &status, &replies));
    (void)close(fd);
    assert_serves(daemon);
}

static unsigned open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count++;
    }
    (void)closedir(directory);
    return count;
}

static void test_descriptors(void **state)
{
    struct daemon *daemon = *state;
    unsigned before = open_descriptors();
    int fd = connect_client(daemon);
    uint8_t request[] = {0x08, 0x01, 0x12, 0x00};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(3 * sizeof(int)),
                     .cmsg_level = SOL_SOCKET,
                     .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {.iov_base = request, .iov_len = sizeof(request)};
    struct msghdr message = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control)};
    int passed[3] = {STDIN_FILENO, STDOUT_FILENO, fd};

    memcpy(CMSG_DATA(&control.header), passed, sizeof(passed));
    assert_int_equal(sendmsg(fd, &message, 0), sizeof(request));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "descriptors");
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT); /* closes handles that are still open */
    }
    assert_int_equal(open_descriptors(), before);
}

/* Waits until the daemon has hung up on the client, which may have unread data. */
static void await_hangup(struct daemon *daemon, int fd)
{
    uint64_t end = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    struct pollfd entry = {.fd = fd};

    do {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        assert_true(uv_hrtime() < end);
        (void)poll(&entry, 1, 1);
    } while ((entry.revents & POLLHUP) == 0);
}

/* Checks that the daemon hangs up on the client, and only after it was idle for long enough. */
static void assert_left_as_idle(struct daemon *daemon, int fd, uint64_t start)
{
    await_hangup(daemon, fd);
    assert_true(uv_hrtime() - start >= (IDLE_MS - 50) * UINT64_C(1000000));
    (void)close(fd);
    assert_serves(daemon);
}

static void test_client_that_does_not_read(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint64_t start = uv_hrtime();

    for (int i = 0; i < 5; i++) { /* more documents than the socket has room for */
        send_request(fd, "");
    }
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
    }
    assert_serves(daemon);
    assert_left_as_idle(daemon, fd, start);
}

static void test_client_that_says_nothing(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint64_t start = uv_hrtime();

    assert_left_as_idle(daemon, fd, start);
}

static void test_client_that_leaves_at_once(void **state)
{
    struct daemon *daemon = *state;

    for (int i = 0; i < 200; i++) {
        int fd = connect_client(daemon);

        if (i % 2 == 0) {
            send_request(fd, "");
        }
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        (void)close(fd);
    }
    assert_serves(daemon);
}

/* The daemon has no room, and hangs up before this client sends its request. */
static void assert_told_after_the_end(struct daemon *daemon)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    struct control_answer answer = {.more = true};
    struct error err;
    const int fd = connect_client(daemon);

    daemon_turn(daemon);
    assert_int_equal(control_send(fd, daemon->path, &request, &err), ADTOPK_OK);
    assert_int_equal(control_receive(fd, daemon->path, &answer, NULL, &err), ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "no room for another client"));
    (void)close(fd);
}

static void test_too_many_clients(void **state)
{
    struct daemon *daemon = *state;
    unsigned limit = getuid() == 0 ? CONTROL_CLIENTS : CONTROL_CLIENTS_A_USER;
    int fd[CONTROL_CLIENTS + 1];
    unsigned replies;

    for (unsigned i = 0; i <= limit; i++) {
        fd[i] = connect_client(daemon);
    }
    assert_turned_away(daemon, fd[limit], ADTOPK_ERR_STATE, "no room for another client");
    assert_told_after_the_end(daemon);
    cJSON_Delete(ask(daemon, fd[0], NULL, &replies));
    for (unsigned i = 0; i <= limit; i++) {
        (void)close(fd[i]);
    }
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
    }
    assert_serves(daemon);
}

static void set_descriptor_limit(rlim_t count, struct rlimit *old)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (old != NULL) {
        *old = limit;
    }
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Without descriptors the daemon uses the spare one to accept a connection and drop it. */
static void test_no_descriptors_left(void **state)
{
    struct daemon *daemon = *state;
    int fd = new_socket();
    int filler[128];
    unsigned fillers = 0;
    struct rlimit old;

    set_descriptor_limit(100, &old);
    while (fillers < 128 && (filler[fillers] = dup(STDIN_FILENO)) >= 0) {
        fillers++;
    }
    assert_int_equal(errno, EMFILE);
    connect_socket(daemon, fd);
    assert_turned_away(daemon, fd, ADTOPK_ERR_SYSTEM, "no file descriptors left");
    while (fillers > 0) {
        (void)close(filler[--fillers]);
    }
    set_descriptor_limit(old.rlim_cur, NULL);
    (void)close(fd);
    assert_serves(daemon);
}

/* If the spare one is missing too, the loop sleeps instead of spinning, and recovers. */
static void test_no_spare_descriptor_either(void **state)
{
    struct daemon *daemon = *state;
    int fd = new_socket();
    struct rlimit old;
    unsigned turns = 0;
    unsigned replies;
    uint64_t end;

    set_descriptor_limit(0, &old);
    connect_socket(daemon, fd);
    end = uv_hrtime() + 300 * UINT64_C(1000000);
    while (uv_hrtime() < end) {
        (void)uv_run(&daemon->loop, UV_RUN_ONCE);
        turns++;
    }
    set_descriptor_limit(old.rlim_cur, NULL);
    assert_true(turns < 30);
    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    (void)close(fd);
    assert_serves(daemon);
}

static long allocations_left;

static void *failing_malloc(size_t size)
{
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* Memory runs out at each place at which a document is built. The daemon says so, or sends the
 * whole document. */
static void test_no_memory(void **state)
{
    struct daemon *daemon = *state;
    cJSON_Hooks hooks = {.malloc_fn = failing_malloc, .free_fn = free};
    char *document = NULL;
    long first = 0;

    daemon->core.jobs = 1;
    for (; document == NULL && first < 10000; first++) {
        int fd = connect_client(daemon);
        uint32_t status;
        unsigned replies;

        allocations_left = first;
        cJSON_InitHooks(&hooks);
        send_request(fd, "");
        document = receive_answer(daemon, fd, &status, &replies);
        cJSON_InitHooks(NULL);
        (void)close(fd);
        if (document != NULL && status == ADTOPK_ERR_MEMORY) {
            free(document);
            document = NULL;
        }
    }
    assert_non_null(document);
    assert_true(first > 50); /* memory ran out at many places */
    assert_serves(daemon);
    free(document);
}

/* ------------------------------------------------------------------ the socket's file */

static void assert_cannot_open(
    struct daemon *daemon, const char *path, enum adtopk_status expected, const char *words)
{
    struct error err = {.code = ADTOPK_OK};

    assert_null(open_control(daemon, path, &err));
    assert_int_equal(err.code, expected);
    assert_non_null(strstr(err.text, words));
}

static void test_bad_paths(void **state)
{
    struct daemon *daemon = *state;
    char path[200];
    int fd;

    assert_cannot_open(daemon, daemon->path, ADTOPK_ERR_STATE, "serves it already");
    assert_serves(daemon);
    assert_cannot_open(daemon, "/nonexistent/control", ADTOPK_ERR_SYSTEM,
        "/nonexistent/control: there is no such folder");
    assert_cannot_open(daemon, daemon->directory, ADTOPK_ERR_STATE, "is no socket");
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_cannot_open(daemon, path, ADTOPK_ERR_ARGUMENT, "199");
    assert_cannot_open(daemon, "", ADTOPK_ERR_ARGUMENT, "0");
    (void)snprintf(path, sizeof(path), "%s/file", daemon->directory);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_cannot_open(daemon, path, ADTOPK_ERR_STATE, "is no socket");
    assert_int_equal(unlink(path), 0);
}

static void test_stale_file_is_replaced(void **state)
{
    struct daemon *daemon = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = new_socket();

    control_close(daemon->control);
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    assert_int_not_equal(access(daemon->path, F_OK), 0);
    (void)strcpy(address.sun_path, daemon->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    (void)close(fd); /* as a killed daemon leaves it */
    daemon->control = open_control(daemon, daemon->path, NULL);
    assert_non_null(daemon->control);
    assert_serves(daemon);
}

static void test_only_our_file_is_unlinked(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    assert_int_equal(unlink(daemon->path), 0);
    fd = open(daemon->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    control_close(daemon->control);
    daemon->control = NULL;
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    assert_int_equal(unlink(daemon->path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rubbish, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_unknown_request_and_version, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_too_long_request, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_empty_message, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_descriptors, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_client_that_does_not_read, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_client_that_says_nothing, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_client_that_leaves_at_once, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_too_many_clients, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_no_descriptors_left, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_no_spare_descriptor_either, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_bad_paths, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_stale_file_is_replaced, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_only_our_file_is_unlinked, daemon_setup, daemon_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
