/* The listening unix socket: clients that connect, files at its path, and no free descriptors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/session/listener.h"
#include "tests/host/place.h"

#define SENTENCE "no descriptors"

struct owner {
    unsigned accepted, exhausted, closed;
    struct ucred who;
};

int __real_chmod(const char *path, mode_t mode);
int __wrap_chmod(const char *path, mode_t mode);

static unsigned modes; /* of sockets that were right before chmod() */

int __wrap_chmod(const char *path, mode_t mode)
{
    struct stat file;

    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_mode & 0777, mode);
    modes++;
    return __real_chmod(path, mode);
}

static void on_accepted(void *context, int fd, const struct ucred *who)
{
    struct owner *owner = context;

    owner->accepted++;
    owner->who = *who;
    (void)close(fd);
}

static void on_exhausted(void *context, int fd, const char *why)
{
    struct owner *owner = context;

    owner->exhausted++;
    assert_non_null(strstr(why, "no file descriptors left: its limit is 100 "));
    assert_int_equal(send(fd, SENTENCE, sizeof SENTENCE, MSG_NOSIGNAL), sizeof SENTENCE);
}

static void on_closed(void *context)
{
    ((struct owner *)context)->closed++;
}

static mode_t asked = 0600;

static enum adtopk_status open_at(
    struct listener *listener, struct owner *owner, const char *at, struct error *err)
{
    const struct listener_config config = {.path = at,
        .mode = asked,
        .accepted = on_accepted,
        .exhausted = on_exhausted,
        .context = owner};

    *owner = (struct owner){.accepted = 0};
    return listener_open(listener, &place_loop, &config, err);
}

static void close_listener(struct listener *listener, const struct owner *owner)
{
    listener_close(listener, on_closed);
    assert_int_equal(owner->closed, 0); /* only from the loop */
    assert_int_equal(uv_run(&place_loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(owner->closed, 1);
    assert_int_equal(access(place_path, F_OK), -1);
}

static struct sockaddr_un address_of(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", place_path);
    return address;
}

static void connect_client(int fd)
{
    const struct sockaddr_un address = address_of();

    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
}

static int new_client(void)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    return fd;
}

static void test_accepts(void **state)
{
    struct listener listener;
    struct owner owner;
    struct error err;
    int client[40];

    (void)state;
    assert_int_equal(open_at(&listener, &owner, place_path, &err), ADTOPK_OK);
    for (unsigned i = 0; i < 40; i++) {
        client[i] = new_client();
        connect_client(client[i]);
    }
    (void)uv_run(&place_loop, UV_RUN_ONCE);
    assert_in_range(owner.accepted, 1, 39); /* a flood does not stop the loop */
    for (unsigned i = 0; i < 10; i++) {
        (void)uv_run(&place_loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(owner.accepted, 40);
    assert_int_equal(owner.who.pid, getpid());
    assert_int_equal(owner.who.uid, getuid());
    for (unsigned i = 0; i < 40; i++) {
        (void)close(client[i]);
    }
    close_listener(&listener, &owner);
}

/* Whoever looks for the socket never finds one that it may not connect to, whatever the umask is.
 */
static void test_mode_from_the_start(void **state)
{
    const mode_t mask = umask(0077);
    struct listener listener;
    struct owner owner;
    struct error err;

    (void)state;
    asked = 0666;
    modes = 0;
    assert_int_equal(open_at(&listener, &owner, place_path, &err), ADTOPK_OK);
    assert_int_equal(modes, 1);
    assert_int_equal(umask(mask), 0077);
    asked = 0600;
    close_listener(&listener, &owner);
}

/* The listener leaves a file alone that another program serves, whatever kind of socket it is. */
static void test_served_by_another_kind(void **state)
{
    const struct sockaddr_un address = address_of();
    const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct listener listener;
    struct owner owner;
    struct error err;

    (void)state;
    assert_int_equal(bind(other, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(other, 1), 0);
    assert_int_equal(open_at(&listener, &owner, place_path, &err), ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "serves it already"));
    assert_int_equal(access(place_path, F_OK), 0);
    (void)close(other);
    assert_int_equal(open_at(&listener, &owner, place_path, &err), ADTOPK_OK); /* now it is stale */
    close_listener(&listener, &owner);
}

static void set_limit(rlim_t count)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* The listener tells one client on the spare descriptor. The other one waits for the end of the
 * pause. */
static void test_exhausted(void **state)
{
    struct listener listener;
    struct owner owner;
    struct error err;
    struct rlimit old;
    int filler[100];
    unsigned fillers = 0;
    char text[sizeof SENTENCE];
    const int first = new_client();
    const int second = new_client();

    (void)state;
    assert_int_equal(open_at(&listener, &owner, place_path, &err), ADTOPK_OK);
    connect_client(first);
    connect_client(second);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    set_limit(100);
    while (fillers < 100 && (filler[fillers] = dup(STDIN_FILENO)) >= 0) {
        fillers++;
    }
    (void)uv_run(&place_loop, UV_RUN_ONCE);
    assert_int_equal(owner.exhausted, 1);
    assert_int_equal(owner.accepted, 0);
    assert_int_equal(recv(first, text, sizeof text, 0), sizeof text);
    assert_int_equal(recv(first, text, sizeof text, 0), 0);
    (void)uv_run(&place_loop, UV_RUN_NOWAIT);
    assert_int_equal(owner.exhausted, 1); /* it pauses */
    while (fillers > 0) {
        (void)close(filler[--fillers]);
    }
    set_limit(old.rlim_cur);
    while (owner.accepted == 0) {
        (void)uv_run(&place_loop, UV_RUN_ONCE);
    }
    assert_int_equal(owner.exhausted, 1);
    (void)close(first);
    (void)close(second);
    close_listener(&listener, &owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_accepts, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_mode_from_the_start, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_served_by_another_kind, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_exhausted, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
