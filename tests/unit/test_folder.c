/*
 * The folder of stores: what one daemon leaves and the next one finds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/folder_scene.h"

/* A part that an earlier daemon left, and the core drops before it opens it, is new when it does.
 */
static void test_drops_unopened(void **state)
{
    struct folder *folder;
    struct stores *stores;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    stores = stores_create(&scene.keeper, folder);
    assert_non_null(stores);
    folder_begin(folder, 2, &scene.key, true);
    stores_release(stores, 2, 1);
    assert_int_equal(scene_find(folder, 2, 1), -1);
    assert_int_equal(scene_find(folder, 2, 0), 7);
    stores_destroy(stores);
    folder_close(folder);
}

static void test_found_again(void **state)
{
    const struct job_key other = {.owner = 1001, .name = "digits", .run_id = "r7"};
    struct folder_info info;
    struct folder *folder;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    assert_true(folder_has(folder, &scene.key));
    assert_false(folder_has(folder, &other)); /* another user's job of the same name */
    assert_true(folder_look(folder, 0, &info));
    assert_false(info.used);
    assert_int_equal(info.bytes, 2 * 12288);
    assert_string_equal(info.fault, "");
    assert_false(folder_look(folder, 1, &info));
    folder_begin(folder, 5, &scene.key, true);
    assert_false(folder_has(folder, &scene.key)); /* a job uses it */
    assert_int_equal(scene_find(folder, 5, 0), 7);
    assert_int_equal(scene_find(folder, 5, 1), 8);
    assert_int_equal(scene_find(folder, 5, 2), -1);
    folder_drop(folder, 5, 1);
    assert_int_equal(scene_find(folder, 5, 1), -1);
    folder_end(folder, 5);
    assert_false(folder_look(folder, 0, &info));
    folder_close(folder);
    assert_int_equal(access(scene.file, F_OK), -1);
}

/* A job that does not get as far as its run leaves the store to the next one. */
static void test_left(void **state)
{
    struct folder *folder;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    folder_begin(folder, 5, &scene.key, true);
    assert_int_equal(scene_find(folder, 5, 0), 7);
    folder_leave(folder, 5);
    folder_drop(folder, 5, 0); /* the job has none any more */
    folder_end(folder, 5);
    assert_true(folder_has(folder, &scene.key));
    folder_begin(folder, 6, &scene.key, true);
    assert_int_equal(scene_find(folder, 6, 0), 7);
    assert_int_equal(scene_find(folder, 6, 1), 8);
    folder_end(folder, 6);
    folder_close(folder);
}

/* Of the stores that jobs make and leave, the newest of an owner stay. */
static void test_few_left(void **state)
{
    struct folder *folder = scene_open();
    struct job_key other = scene.key;
    struct folder_info info;
    unsigned stores = 0;

    (void)state;
    for (uint64_t job = 1; job <= 2 * FOLDER_LEFT_MAX; job++) {
        (void)snprintf(other.run_id, sizeof(other.run_id), "run %u", (unsigned)job);
        folder_begin(folder, job, &other, false);
        assert_int_equal(scene_find(folder, job, 0), -1);
        folder_leave(folder, job);
    }
    assert_true(folder_has(folder, &other));
    while (folder_look(folder, stores, &info)) {
        stores++;
    }
    assert_int_equal(stores, FOLDER_LEFT_MAX);
    folder_close(folder);
}

/* A job that begins a run removes the store of the run before. */
static void test_begins_anew(void **state)
{
    struct folder_info old;
    struct folder *folder;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    assert_true(folder_replaces(folder, 1, &scene.key, &old));
    assert_string_equal(old.key.run_id, "r7");
    assert_int_equal(old.bytes, 2 * 12288);
    folder_begin(folder, 1, &scene.key, false);
    assert_false(folder_replaces(folder, 2, &scene.key, &old)); /* that one is in use */
    assert_int_equal(scene_find(folder, 1, 0), -1);
    folder_begin(folder, 2, &scene.key, false); /* the first one is not over yet */
    assert_int_equal(scene_find(folder, 2, 0), -1);
    folder_end(folder, 2);
    assert_int_equal(scene_find(folder, 1, 0), 0);
    folder_close(folder);
}

/* The store is not used, and stays for a daemon of the settings that it was made with. */
static void test_other_size(void **state)
{
    struct folder *folder;
    struct segment segment;
    struct error err;
    bool existing;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(
        folder_part(folder, 1, 0, 20000, 0, &segment, &existing, &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, "has 12288 bytes, and this daemon needs 20480"));
    assert_int_equal(
        folder_part(folder, 1, 1, 20000, 0, &segment, &existing, &err), ADTOPK_ERR_LOST);
    folder_drop(folder, 1, 0);
    folder_drop(folder, 1, 1);
    folder_end(folder, 1);
    assert_false(folder_has(folder, &scene.key));
    folder_close(folder);
    folder = scene_open();
    assert_true(folder_has(folder, &scene.key));
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), 7);
    assert_int_equal(scene_find(folder, 1, 1), 8);
    folder_close(folder);
}

/* A daemon with other workers says so when it starts, and leaves the store as it is. */
static void test_other_workers(void **state)
{
    struct folder_info info;
    struct folder *folder;

    (void)state;
    scene.workers = 1;
    scene_leave(7);
    scene.workers = 3;
    folder = scene_open();
    assert_true(folder_look(folder, 0, &info));
    assert_string_equal(info.fault, "it was made with 1 worker, and this daemon has 3");
    assert_string_equal(info.key.name, scene.key.name);
    folder_begin(folder, 1, &scene.key, true); /* gets a new one */
    assert_int_equal(scene_find(folder, 1, 0), -1);
    folder_end(folder, 1);
    folder_close(folder);
    scene.workers = 1;
    folder = scene_open();
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), 7);
    folder_close(folder);
}

/* A store of a release that noted no workers is used, and they are noted then. */
static void test_workers_unknown(void **state)
{
    struct folder *folder;

    (void)state;
    scene_leave(7);
    scene.workers = 3;
    folder = scene_open();
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), 7);
    folder_close(folder);
    scene.workers = 2;
    folder = scene_open();
    assert_false(folder_has(folder, &scene.key));
    folder_close(folder);
}

static void test_refused_folders(void **state)
{
    struct folder *folder = scene_open();
    struct error err;

    (void)state;
    assert_null(scene_open_at(scene.path, &err));
    assert_int_equal(err.code, ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "another daemon uses"));
    folder_close(folder);
    assert_int_equal(chmod(scene.path, 0755), 0);
    assert_null(scene_open_at(scene.path, &err));
    assert_non_null(strstr(err.text, "closed to others"));
    assert_null(scene_open_at("/proc/self/task", &err));
    assert_null(scene_open_at("/nowhere/at/all", &err));
    assert_non_null(strstr(err.text, "cannot open store_folder /nowhere/at/all"));
}

static time_t since_boot(void)
{
    struct timespec now;

    assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &now), 0);
    return now.tv_sec;
}

/* Of all files of the store. */
static void set_times(time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    char other[96];

    assert_int_equal(utimensat(AT_FDCWD, scene.file, times, 0), 0);
    (void)snprintf(other, sizeof other, "%s/00000000.1", scene.path);
    assert_int_equal(utimensat(AT_FDCWD, other, times, 0), 0);
}

/* The system's clock goes a year forward, or back, after a file was written. */
static void test_clock_steps(void **state)
{
    const time_t written[] = {time(NULL) - 31536000, time(NULL) + 31536000};
    struct folder_info gone;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct folder *folder;

        scene_leave(7);
        set_times(written[i]);
        folder = scene_open();
        assert_false(folder_expire(folder, 1000, &gone));
        folder_close(folder);
        folder = scene_open(); /* its time counts from when the first daemon met it */
        assert_true(folder_look(folder, 0, &gone));
        assert_in_range(gone.idle_s, 0, 20);
        folder_close(folder);
        set_times(since_boot() - 100);
        folder = scene_open();
        assert_true(folder_expire(folder, 50, &gone));
        folder_close(folder);
    }
}

static void test_expired(void **state)
{
    struct folder_info gone;
    struct folder *folder;

    (void)state;
    scene_leave(7);
    set_times(since_boot() - 100);
    folder = scene_open();
    assert_true(folder_look(folder, 0, &gone));
    assert_in_range(gone.idle_s, 100, 200);
    assert_false(folder_expire(folder, 1000, &gone));
    folder_begin(folder, 1, &scene.key, true);
    assert_false(folder_expire(folder, 50, &gone)); /* a job uses it */
    folder_close(folder);
    folder = scene_open();
    assert_true(folder_look(folder, 0, &gone));
    assert_in_range(gone.idle_s, 0, 20); /* the job was here a moment ago */
    folder_begin(folder, 2, &scene.key, true);
    folder_leave(folder, 2);
    assert_true(folder_look(folder, 0, &gone));
    assert_false(gone.guessed);
    assert_true(folder_expire(folder, 0, &gone));
    assert_string_equal(gone.key.name, "digits");
    assert_false(folder_expire(folder, 0, &gone));
    folder_close(folder);
}

/* A daemon that is killed has not noted the last seconds in which it used a store. */
static void test_expires_late(void **state)
{
    static const time_t ages[] = {50, 50 + FOLDER_NOTE_S, 50 + FOLDER_LATE_S};
    struct folder_info gone;

    (void)state;
    scene_leave(7);
    for (unsigned i = 0; i < 3; i++) {
        struct folder *folder;

        set_times(since_boot() - ages[i]);
        folder = scene_open();
        assert_true(folder_look(folder, 0, &gone));
        assert_true(gone.guessed);
        assert_int_equal(folder_expire(folder, 50, &gone), i == 2);
        folder_close(folder);
    }
}

/* A store that cannot be looked at for lack of descriptors may be well: the folder is not opened,
 * and the next daemon finds it. */
static void test_no_descriptors(void **state)
{
    const int lowest = dup(STDIN_FILENO);
    struct rlimit old, limit;
    struct error err = {.code = ADTOPK_OK};
    struct folder *folder;

    (void)state;
    scene_leave(7);
    (void)close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)lowest + 3; /* the folder, its lock, its list */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    folder = scene_open_at(scene.path, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_null(folder);
    assert_non_null(strstr(err.text, "no descriptors"));
    folder = scene_open();
    folder_begin(folder, 5, &scene.key, true);
    assert_int_equal(scene_find(folder, 5, 0), 7);
    folder_end(folder, 5);
    folder_close(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(test_drops_unopened),
        FOLDER_TEST(test_found_again),
        FOLDER_TEST(test_left),
        FOLDER_TEST(test_few_left),
        FOLDER_TEST(test_begins_anew),
        FOLDER_TEST(test_other_size),
        FOLDER_TEST(test_other_workers),
        FOLDER_TEST(test_workers_unknown),
        FOLDER_TEST(test_refused_folders),
        FOLDER_TEST(test_clock_steps),
        FOLDER_TEST(test_expired),
        FOLDER_TEST(test_expires_late),
        FOLDER_TEST(test_no_descriptors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
