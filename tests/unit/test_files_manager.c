/*
 * Stores that a service manager keeps: what it has when daemons come and go, also one that is deaf
 * for a while, or passes a name twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/service_manager.h"

#define MOST 8

static const struct job_key key = {.owner = 1000, .name = "digits", .run_id = "r7"};

static enum adtopk_status part(
    struct folder *folder, uint64_t job, unsigned number, bool *existing, struct error *err)
{
    struct segment segment;
    const enum adtopk_status status =
        folder_part(folder, job, number, 10000, 10000, &segment, existing, err);

    segment_drop(&segment);
    return status;
}

static void begin(struct folder *folder, uint64_t job, bool returning)
{
    struct error err;
    bool existing;

    folder_begin(folder, job, &key, returning);
    for (unsigned number = 0; number < 2; number++) {
        assert_int_equal(part(folder, job, number, &existing, &err), ADTOPK_OK);
        assert_int_equal(existing, returning);
    }
}

static void test_found_again(void **state)
{
    struct folder *folder = manager_start(MOST);

    (void)state;
    begin(folder, 1, false);
    assert_int_equal(manager.count, 2);
    folder_close(folder);
    folder = manager_start(MOST);
    assert_true(folder_has(folder, &key));
    begin(folder, 1, true);
    folder_end(folder, 1);
    assert_int_equal(manager.count, 0);
    folder_close(folder);
}

/* An orderly end does not read all of the stores, for which ranks would wait: a byte that only the
 * manager can change is not noticed. */
static void test_not_sealed(void **state)
{
    struct folder *folder = manager_start(MOST);

    (void)state;
    begin(folder, 1, false);
    folder_close(folder);
    assert_int_equal(pwrite(manager.fd[1], "1", 1, 5000), 1);
    folder = manager_start(MOST);
    assert_true(folder_has(folder, &key));
    folder_close(folder);
}

/* A manager that has no room would close the descriptor without a word. */
static void test_full(void **state)
{
    struct folder *folder = manager_start(2);
    struct error err;
    bool existing;

    (void)state;
    begin(folder, 1, false);
    assert_int_equal(part(folder, 1, 2, &existing, &err), ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(err.text, "at most 2 files"));
    folder_end(folder, 1);
    begin(folder, 2, false);
    folder_end(folder, 2);
    folder_close(folder);
}

/* Without a second descriptor of the file this daemon could not open it again: the status is not
 * that of a lack of memory. */
static void test_no_descriptor(void **state)
{
    struct folder *folder = manager_start(MOST);
    const int free_one = dup(0);
    struct rlimit before, limit;
    struct error err;
    bool existing;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)free_one + 1;
    assert_int_equal(close(free_one), 0);
    folder_begin(folder, 1, &key, false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(part(folder, 1, 0, &existing, &err), ADTOPK_ERR_SYSTEM);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(strstr(err.text, "no descriptor for a store"));
    assert_int_equal(manager.count, 0);
    folder_end(folder, 1);
    folder_close(folder);
}

/* A job ends while the manager does not read. The daemon waits for it once, not for each file, and
 * tells it later: otherwise the memory would stay. */
static void test_deaf(void **state)
{
    struct folder *folder = manager_start(MOST);
    struct folder_info gone;
    unsigned asked;

    (void)state;
    begin(folder, 1, false);
    manager.deaf = true;
    asked = manager.asked;
    folder_end(folder, 1);
    assert_int_equal(manager.asked, asked + 1);
    assert_int_equal(manager.count, 2);
    assert_false(folder_expire(folder, 1000, &gone));
    manager.deaf = false;
    assert_false(folder_expire(folder, 1000, &gone));
    assert_int_equal(manager.count, 0);
    folder_close(folder);
}

/* A manager that does not read keeps nothing: the job hears so, and a later one finds room. */
static void test_deaf_to_a_new_store(void **state)
{
    struct folder *folder = manager_start(2);
    struct error err;
    bool existing;

    (void)state;
    folder_begin(folder, 1, &key, false);
    manager.deaf = true;
    assert_int_equal(part(folder, 1, 0, &existing, &err), ADTOPK_ERR_SYSTEM);
    manager.deaf = false;
    folder_end(folder, 1);
    begin(folder, 2, false);
    assert_int_equal(manager.count, 2);
    folder_end(folder, 2);
    assert_int_equal(manager.count, 0);
    folder_close(folder);
}

/* The manager may have one name for two files, and forgets both at once. */
static void test_name_twice(void **state)
{
    struct folder *folder = manager_start(MOST);

    (void)state;
    begin(folder, 1, false);
    folder_close(folder);
    manager_keep(manager.name[0], manager.fd[0]);
    folder = manager_start(2);
    begin(folder, 2, false);
    assert_int_equal(manager.count, 2);
    folder_end(folder, 2);
    assert_int_equal(manager.count, 0);
    folder_close(folder);
}

/* A daemon that keeps its stores otherwise. */
static void test_forgotten(void **state)
{
    struct folder *folder = manager_start(MOST);

    (void)state;
    begin(folder, 1, false);
    folder_close(folder);
    manager_pass();
    files_forget(manager_tell);
    assert_int_equal(manager.count, 0);
    assert_int_equal(fcntl(MANAGER_FIRST, F_GETFD), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        MANAGER_TEST(test_found_again),
        MANAGER_TEST(test_not_sealed),
        MANAGER_TEST(test_full),
        MANAGER_TEST(test_no_descriptor),
        MANAGER_TEST(test_deaf),
        MANAGER_TEST(test_deaf_to_a_new_store),
        MANAGER_TEST(test_name_twice),
        MANAGER_TEST(test_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
