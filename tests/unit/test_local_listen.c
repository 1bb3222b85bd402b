/* Places at which the session socket may and may not be, and the stores of jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/local/store.h"
#include "local_daemon.h"
#include "tests/host/place.h"

#define NOBODY 65534

static enum adtopk_status no_event(void *context, struct event *event, struct error *err)
{
    (void)context;
    return error_set(err, ADTOPK_ERR_STATE, "event %d", (int)event->type);
}

static struct doors doors = {.event = no_event};

static struct local *create(const char *at, struct error *err)
{
    const struct local_config config = {.path = at, .mode = 0620};

    memset(err, 0, sizeof *err);
    return local_create(&place_loop, &config, &doors, NULL, err);
}

static void close_local(struct local *local)
{
    local_close(local, NULL);
    assert_int_equal(uv_run(&place_loop, UV_RUN_DEFAULT), 0);
}

static void assert_refused(const char *at, enum adtopk_status code, const char *word)
{
    struct error err;

    assert_null(create(at, &err));
    assert_int_equal(err.code, code);
    if (strstr(err.text, word) == NULL || strstr(err.text, at) == NULL) {
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, word, at);
    }
}

static void test_create_and_close(void **state)
{
    struct stat status;
    struct error err;
    struct local *local;

    (void)state;
    for (int i = 0; i < 2; i++) {
        local = create(place_path, &err);
        assert_non_null(local);
        assert_int_equal(stat(place_path, &status), 0);
        assert_true(S_ISSOCK(status.st_mode));
        assert_int_equal(status.st_mode & 0777, 0620);
        close_local(local);
        assert_int_equal(access(place_path, F_OK), -1);
    }
}

static void test_in_use(void **state)
{
    struct error err;
    struct local *local = create(place_path, &err);

    (void)state;
    assert_non_null(local);
    assert_refused(place_path, ADTOPK_ERR_STATE, "a daemon serves it already");
    assert_int_equal(access(place_path, F_OK), 0);
    close_local(local);
}

/* Leaves a socket whose process is gone. */
static void leave_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", place_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    (void)close(fd);
}

static void test_stale(void **state)
{
    struct error err;
    struct local *local;

    (void)state;
    leave_socket();
    local = create(place_path, &err);
    assert_non_null(local);
    close_local(local);
}

/* The daemon does not unlink a file that another program has put there meanwhile. */
static void test_replaced(void **state)
{
    struct error err;
    struct local *local = create(place_path, &err);

    (void)state;
    assert_non_null(local);
    assert_int_equal(unlink(place_path), 0);
    leave_socket();
    close_local(local);
    assert_int_equal(access(place_path, F_OK), 0);
}

static void test_no_socket(void **state)
{
    FILE *file = fopen(place_path, "we");

    (void)state;
    assert_non_null(file);
    (void)fclose(file);
    assert_refused(place_path, ADTOPK_ERR_STATE, "is no socket");
    assert_int_equal(access(place_path, F_OK), 0);
}

static void test_missing_directory(void **state)
{
    (void)state;
    assert_refused("/tmp/adtopk-nowhere/sock", ADTOPK_ERR_SYSTEM, "there is no such folder");
}

static void test_long_path(void **state)
{
    char at[120];

    (void)state;
    memset(at, 'a', 108);
    at[108] = '\0';
    assert_refused(at, ADTOPK_ERR_ARGUMENT, "107 bytes");
    assert_refused("", ADTOPK_ERR_ARGUMENT, "107 bytes");
}

/* Runs in a child without root's rights, because root may write everywhere. */
static void test_no_permission(void **state)
{
    int status = -1;
    pid_t child;

    (void)state;
    assert_int_equal(chmod(place_folder, 0555), 0);
    child = fork();
    if (child == 0) {
        struct error err;

        if (geteuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) {
            _exit(2);
        }
        _exit(create(place_path, &err) == NULL && err.code == ADTOPK_ERR_SYSTEM &&
                      strstr(err.text, "Permission denied") != NULL &&
                      strstr(err.text, place_path) != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(chmod(place_folder, 0755), 0);
}

/* ---- stores ---- */

static void test_stores(void **state)
{
    struct keeper keeper = {.loop = NULL}; /* small parts it gives back at once */
    struct stores *stores = stores_create(&keeper, NULL);
    struct error err;
    bool existing;
    uint64_t *store;

    (void)state;
    assert_non_null(stores);
    store = stores_get(stores, 5, 0, 10000, false, 0, &existing, &err);
    assert_non_null(store);
    assert_int_equal((uintptr_t)store % 4096, 0);
    assert_int_equal(stores_untouched(stores), 12288);
    store[0] = 42;
    assert_int_equal(stores_untouched(stores), 8192);
    assert_null(stores_get(stores, 5, 0, 10000, false, 0, &existing, &err)); /* in use */
    assert_int_equal(err.code, ADTOPK_ERR_STATE);
    assert_non_null(stores_get(stores, 6, 0, 1, false, 0, &existing, &err));
    assert_int_equal(stores_bytes(stores), 12288 + 4096);
    stores_release(stores, 6, 0);
    stores_release(stores, 7, 0); /* unknown: nothing */
    assert_int_equal(stores_bytes(stores), 12288);

    stores_release(stores, 5, 0);
    assert_int_equal(stores_bytes(stores), 0);
    store = stores_get(stores, 5, 0, 10000, false, 0, &existing, &err);
    assert_non_null(store);
    assert_int_equal(store[0], 0); /* new memory, not that of the last store */
    stores_release(stores, 5, 0);

    assert_null(stores_get(stores, 5, 0, UINT64_MAX / 4, false, 0, &existing, &err));
    assert_int_equal(err.code, ADTOPK_ERR_MEMORY);
    assert_null(stores_get(stores, 5, 0, 1ull << 45, false, 0, &existing, &err));
    assert_int_equal(err.code, ADTOPK_ERR_MEMORY);
    assert_null(stores_get(
        stores, 5, 0, 4096, false, UINT64_MAX / 2, &existing, &err)); /* promised to others */
    assert_int_equal(err.code, ADTOPK_ERR_MEMORY);
    assert_int_equal(stores_bytes(stores), 0);
    stores_destroy(stores);
    stores_destroy(NULL);
}

/* A call counts a part of large stores, and the next one goes on. stores_count() counts all. */
static void test_large_stores(void **state)
{
    struct keeper keeper = {.loop = NULL};
    struct stores *stores = stores_create(&keeper, NULL);
    const uint64_t size = UINT64_C(1) << 30;
    uint64_t all, first, second;
    struct error err;
    bool existing;

    (void)state;
    assert_non_null(stores);
    for (unsigned part = 0; part < 3; part++) {
        uint8_t *store = stores_get(stores, 5, part, size, false, 0, &existing, &err);

        assert_non_null(store);
        store[size - 1] = 1;
    }
    first = stores_untouched(stores);
    second = stores_untouched(stores);
    all = 3 * size;
    assert_true(first < all);
    assert_int_equal(all - second, 3 * (all - first)); /* one of the three was seen at first */
    assert_int_equal(stores_count(stores), second);
    stores_destroy(stores);
}

#define LISTEN_TEST(name) cmocka_unit_test_setup_teardown(name, place_setup, place_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LISTEN_TEST(test_create_and_close),
        LISTEN_TEST(test_in_use),
        LISTEN_TEST(test_stale),
        LISTEN_TEST(test_replaced),
        LISTEN_TEST(test_no_socket),
        LISTEN_TEST(test_missing_directory),
        LISTEN_TEST(test_long_path),
        LISTEN_TEST(test_no_permission),
        LISTEN_TEST(test_stores),
        LISTEN_TEST(test_large_stores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
