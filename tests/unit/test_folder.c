/*
 * The folder of stores: what one daemon leaves and the next one finds. Files that are cut at every
 * byte of their last page, or have any of their bytes changed, are never accepted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/job/store_version.h"
#include "daemon/local/store.h"
#include "proto/payload.h"

#define PAGE 4096u
#define START 16 /* bytes of a main part that say its version */

static char path[64], file[96];
static struct keeper keeper;
static uint32_t workers; /* of the daemons of this test; 0: unknown */
static const struct job_key key = {.owner = 1000, .name = "digits", .run_id = "r7"};

static struct folder *open_path(const char *at, struct error *err)
{
    struct files *files = files_in_folder(at, err);

    return files != NULL ? folder_open(files, &keeper, workers, err) : NULL;
}

static struct folder *open_folder(void)
{
    struct error err;
    struct folder *folder = open_path(path, &err);

    if (folder == NULL) {
        fail_msg("%s", err.text);
    }
    return folder;
}

static void write_start(void *bytes, uint32_t version)
{
    const uint64_t magic = STORE_MAGIC;

    memcpy(bytes, &magic, sizeof magic);
    memcpy((uint8_t *)bytes + sizeof magic, &version, sizeof version);
}

/* Leaves a store of two parts with these bytes. */
static void leave(uint8_t byte)
{
    struct folder *folder = open_folder();
    struct error err;

    folder_begin(folder, 1, &key, false);
    for (unsigned part = 0; part < 2; part++) {
        struct segment segment;
        bool existing = true;

        assert_int_equal(
            folder_part(folder, 1, part, 10000, 10000, &segment, &existing, &err), ADTOPK_OK);
        assert_false(existing);
        assert_int_equal(segment_missing(&segment), 0);
        memset(segment.bytes, byte + (int)part, segment.size);
        if (part == 0) {
            write_start(segment.bytes, STORE_VERSION);
        }
        segment_drop(&segment);
    }
    folder_close(folder);
}

/* Opens a part for a job that returns; a byte of it, or -1 if it is new. */
static int find(struct folder *folder, uint64_t job, unsigned part)
{
    struct segment segment;
    struct error err;
    bool existing;
    int byte;

    assert_int_equal(
        folder_part(folder, job, part, 10000, 0, &segment, &existing, &err), ADTOPK_OK);
    byte = existing ? ((uint8_t *)segment.bytes)[START] : -1;
    segment_drop(&segment);
    return byte;
}

static int setup(void **state)
{
    (void)state;
    workers = 0;
    (void)snprintf(path, sizeof path, "/dev/shm/adtopk-test-XXXXXX");
    if (mkdtemp(path) == NULL) {
        return -1;
    }
    (void)snprintf(file, sizeof file, "%s/00000000.0", path);
    return 0;
}

static int teardown(void **state)
{
    char command[96];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", path);
    return system(command);
}

/* A part that an earlier daemon left, and the core drops before it opens it, is new when it does.
 */
static void test_drops_unopened(void **state)
{
    struct folder *folder;
    struct stores *stores;

    (void)state;
    leave(7);
    folder = open_folder();
    stores = stores_create(&keeper, folder);
    assert_non_null(stores);
    folder_begin(folder, 2, &key, true);
    stores_release(stores, 2, 1);
    assert_int_equal(find(folder, 2, 1), -1);
    assert_int_equal(find(folder, 2, 0), 7);
    stores_destroy(stores);
    folder_close(folder);
}

static void test_found_again(void **state)
{
    const struct job_key other = {.owner = 1001, .name = "digits", .run_id = "r7"};
    struct folder_info info;
    struct folder *folder;

    (void)state;
    leave(7);
    folder = open_folder();
    assert_true(folder_has(folder, &key));
    assert_false(folder_has(folder, &other)); /* another user's job of the same name */
    assert_true(folder_look(folder, 0, &info));
    assert_false(info.used);
    assert_int_equal(info.bytes, 2 * 12288);
    assert_string_equal(info.fault, "");
    assert_false(folder_look(folder, 1, &info));
    folder_begin(folder, 5, &key, true);
    assert_false(folder_has(folder, &key)); /* a job uses it */
    assert_int_equal(find(folder, 5, 0), 7);
    assert_int_equal(find(folder, 5, 1), 8);
    assert_int_equal(find(folder, 5, 2), -1);
    folder_drop(folder, 5, 1);
    assert_int_equal(find(folder, 5, 1), -1);
    folder_end(folder, 5);
    assert_false(folder_look(folder, 0, &info));
    folder_close(folder);
    assert_int_equal(access(file, F_OK), -1);
}

/* A job that does not get as far as its run leaves the store to the next one. */
static void test_left(void **state)
{
    struct folder *folder;

    (void)state;
    leave(7);
    folder = open_folder();
    folder_begin(folder, 5, &key, true);
    assert_int_equal(find(folder, 5, 0), 7);
    folder_leave(folder, 5);
    folder_drop(folder, 5, 0); /* the job has none any more */
    folder_end(folder, 5);
    assert_true(folder_has(folder, &key));
    folder_begin(folder, 6, &key, true);
    assert_int_equal(find(folder, 6, 0), 7);
    assert_int_equal(find(folder, 6, 1), 8);
    folder_end(folder, 6);
    folder_close(folder);
}

/* Of the stores that jobs make and leave, the newest of an owner stay. */
static void test_few_left(void **state)
{
    struct folder *folder = open_folder();
    struct job_key other = key;
    struct folder_info info;
    unsigned stores = 0;

    (void)state;
    for (uint64_t job = 1; job <= 2 * FOLDER_LEFT_MAX; job++) {
        (void)snprintf(other.run_id, sizeof(other.run_id), "run %u", (unsigned)job);
        folder_begin(folder, job, &other, false);
        assert_int_equal(find(folder, job, 0), -1);
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
    leave(7);
    folder = open_folder();
    assert_true(folder_replaces(folder, 1, &key, &old));
    assert_string_equal(old.key.run_id, "r7");
    assert_int_equal(old.bytes, 2 * 12288);
    folder_begin(folder, 1, &key, false);
    assert_false(folder_replaces(folder, 2, &key, &old)); /* that one is in use */
    assert_int_equal(find(folder, 1, 0), -1);
    folder_begin(folder, 2, &key, false); /* the first one is not over yet */
    assert_int_equal(find(folder, 2, 0), -1);
    folder_end(folder, 2);
    assert_int_equal(find(folder, 1, 0), 0);
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
    leave(7);
    folder = open_folder();
    folder_begin(folder, 1, &key, true);
    assert_int_equal(
        folder_part(folder, 1, 0, 20000, 0, &segment, &existing, &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, "has 12288 bytes, and this daemon needs 20480"));
    assert_int_equal(
        folder_part(folder, 1, 1, 20000, 0, &segment, &existing, &err), ADTOPK_ERR_LOST);
    folder_drop(folder, 1, 0);
    folder_drop(folder, 1, 1);
    folder_end(folder, 1);
    assert_false(folder_has(folder, &key));
    folder_close(folder);
    folder = open_folder();
    assert_true(folder_has(folder, &key));
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), 7);
    assert_int_equal(find(folder, 1, 1), 8);
    folder_close(folder);
}

/* A daemon with other workers says so when it starts, and leaves the store as it is. */
static void test_other_workers(void **state)
{
    struct folder_info info;
    struct folder *folder;

    (void)state;
    workers = 1;
    leave(7);
    workers = 3;
    folder = open_folder();
    assert_true(folder_look(folder, 0, &info));
    assert_string_equal(info.fault, "it was made with 1 worker, and this daemon has 3");
    assert_string_equal(info.key.name, key.name);
    folder_begin(folder, 1, &key, true); /* gets a new one */
    assert_int_equal(find(folder, 1, 0), -1);
    folder_end(folder, 1);
    folder_close(folder);
    workers = 1;
    folder = open_folder();
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), 7);
    folder_close(folder);
}

/* A store of a release that noted no workers is used, and they are noted then. */
static void test_workers_unknown(void **state)
{
    struct folder *folder;

    (void)state;
    leave(7);
    workers = 3;
    folder = open_folder();
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), 7);
    folder_close(folder);
    workers = 2;
    folder = open_folder();
    assert_false(folder_has(folder, &key));
    folder_close(folder);
}

/* Looks at the damaged store: it is not accepted, and the reason is there. */
static void assert_refused(void)
{
    struct folder *folder = open_folder();
    struct folder_info info;

    assert_false(folder_has(folder, &key));
    assert_true(folder_look(folder, 0, &info));
    assert_non_null(strstr(info.fault, "its file 00000000.0 "));
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), -1);
    folder_end(folder, 1);
    folder_close(folder);
}

static void test_cut_short(void **state)
{
    (void)state;
    leave(7);
    for (off_t size = 12288 + (off_t)PAGE - 1; size >= 12288 - 1; size--) {
        assert_int_equal(truncate(file, size), 0);
        assert_refused();
    }
    assert_int_equal(truncate(file, 0), 0);
    assert_refused();
}

static void flip(int fd, off_t at)
{
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x41;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

/* Every eighth byte of the content, and all of the mark; what follows in the page means nothing. */
static void test_flipped(void **state)
{
    const off_t mark = 168;
    int fd;

    (void)state;
    leave(7);
    fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    for (off_t at = 0; at < 12288 + mark; at += at < 12288 ? 8 : 1) {
        flip(fd, at);
        assert_refused();
        flip(fd, at);
    }
    (void)close(fd);
}

/* A daemon that is killed leaves no seal, although it found one. */
static void test_killed_after_seal(void **state)
{
    struct folder *folder;
    pid_t child;
    int status;

    (void)state;
    leave(7);
    child = fork();
    if (child == 0) {
        struct segment segment;
        struct error err;
        bool existing;

        folder = open_folder();
        folder_begin(folder, 1, &key, true);
        (void)folder_part(folder, 1, 0, 10000, 0, &segment, &existing, &err);
        ((uint8_t *)segment.bytes)[START] = 9;
        _exit(existing ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    folder = open_folder();
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), 9);
    assert_int_equal(find(folder, 1, 1), 8);
    folder_close(folder);
}

/* The mark of the format before has no seal, and its checksum where that is now. */
static void test_format_before(void **state)
{
    const uint32_t format = 1;
    uint8_t mark[160];
    uint32_t crc;
    struct folder *folder;
    int fd;

    (void)state;
    leave(7);
    fd = open(file, O_RDWR);
    assert_int_equal(pread(fd, mark, sizeof mark, 12288), sizeof mark);
    memcpy(mark + 8, &format, sizeof format);
    crc = crc32c(0, mark, 156);
    memcpy(mark + 156, &crc, sizeof crc);
    assert_int_equal(pwrite(fd, mark, sizeof mark, 12288), sizeof mark);
    flip(fd, START);
    folder = open_folder();
    folder_begin(folder, 1, &key, true);
    assert_int_equal(find(folder, 1, 0), 7 ^ 0x41);
    folder_close(folder);
    flip(fd, START); /* now it is sealed */
    assert_refused();
    (void)close(fd);
}

/* Leaves a store whose main part begins like this, as a daemon of that version does. */
static void leave_version(uint32_t version)
{
    struct folder *folder = open_folder();
    struct segment segment;
    struct error err;
    bool existing;

    folder_begin(folder, 1, &key, true);
    assert_int_equal(folder_part(folder, 1, 0, 10000, 0, &segment, &existing, &err), ADTOPK_OK);
    write_start(segment.bytes, version);
    segment_drop(&segment);
    folder_close(folder);
}

/* A daemon says that it cannot read a store of another version, and leaves it alone: a daemon of
 * that version can still use it. */
static void test_other_version(void **state)
{
    static const uint32_t version[] = {STORE_VERSION + 1, STORE_VERSION - 1, UINT32_MAX};
    uint8_t before[3 * PAGE + 168], after[sizeof before];
    int fd;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct folder_info info;
        struct folder *folder;
        char wanted[64], other[96];

        leave(7);
        leave_version(version[i]);
        fd = open(file, O_RDWR);
        assert_int_equal(pread(fd, before, sizeof before, 0), sizeof before);
        assert_refused();
        folder = open_folder();
        assert_true(folder_look(folder, 0, &info));
        (void)snprintf(wanted, sizeof wanted, "its file 00000000.0 has version %u, ", version[i]);
        assert_non_null(strstr(info.fault, wanted));
        folder_close(folder);
        assert_int_equal(pread(fd, after, sizeof after, 0), sizeof after);
        assert_memory_equal(after, before, sizeof after);
        (void)close(fd);
        (void)snprintf(other, sizeof other, "%s/00000000.1", path);
        assert_int_equal(unlink(file) + unlink(other), 0);
    }
}

static void test_strangers(void **state)
{
    struct folder_info info;
    struct folder *folder;
    char name[96];

    (void)state;
    leave(7);
    assert_int_equal(chmod(file, 0644), 0);
    assert_refused();
    assert_int_equal(unlink(file), 0);
    assert_int_equal(symlink("/etc/passwd", file), 0);
    assert_refused();
    /* What a killed daemon was removing, and a file of others. */
    assert_int_equal(unlink(file), 0);
    (void)snprintf(name, sizeof name, "%s/00000003.1.new", path);
    (void)close(open(name, O_CREAT | O_WRONLY, 0600));
    folder = open_folder();
    assert_false(folder_look(folder, 0, &info));
    assert_int_equal(access(name, F_OK), 0);
    folder_close(folder);
}

static void test_refused_folders(void **state)
{
    struct folder *folder = open_folder();
    struct error err;

    (void)state;
    assert_null(open_path(path, &err));
    assert_int_equal(err.code, ADTOPK_ERR_STATE);
    assert_non_null(strstr(err.text, "another daemon uses"));
    folder_close(folder);
    assert_int_equal(chmod(path, 0755), 0);
    assert_null(open_path(path, &err));
    assert_non_null(strstr(err.text, "closed to others"));
    assert_null(open_path("/proc/self/task", &err));
    assert_null(open_path("/nowhere/at/all", &err));
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

    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
    (void)snprintf(other, sizeof other, "%s/00000000.1", path);
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

        leave(7);
        set_times(written[i]);
        folder = open_folder();
        assert_false(folder_expire(folder, 1000, &gone));
        folder_close(folder);
        folder = open_folder(); /* its time counts from when the first daemon met it */
        assert_true(folder_look(folder, 0, &gone));
        assert_in_range(gone.idle_s, 0, 20);
        folder_close(folder);
        set_times(since_boot() - 100);
        folder = open_folder();
        assert_true(folder_expire(folder, 50, &gone));
        folder_close(folder);
    }
}

static void test_expired(void **state)
{
    struct folder_info gone;
    struct folder *folder;

    (void)state;
    leave(7);
    set_times(since_boot() - 100);
    folder = open_folder();
    assert_true(folder_look(folder, 0, &gone));
    assert_in_range(gone.idle_s, 100, 200);
    assert_false(folder_expire(folder, 1000, &gone));
    folder_begin(folder, 1, &key, true);
    assert_false(folder_expire(folder, 50, &gone)); /* a job uses it */
    folder_close(folder);
    folder = open_folder();
    assert_true(folder_look(folder, 0, &gone));
    assert_in_range(gone.idle_s, 0, 20); /* the job was here a moment ago */
    folder_begin(folder, 2, &key, true);
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
    leave(7);
    for (unsigned i = 0; i < 3; i++) {
        struct folder *folder;

        set_times(since_boot() - ages[i]);
        folder = open_folder();
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
    leave(7);
    (void)close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)lowest + 3; /* the folder, its lock, its list */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    folder = open_path(path, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_null(folder);
    assert_non_null(strstr(err.text, "no descriptors"));
    folder = open_folder();
    folder_begin(folder, 5, &key, true);
    assert_int_equal(find(folder, 5, 0), 7);
    folder_end(folder, 5);
    folder_close(folder);
}

/* A store that a job has left is sealed at the daemon's end like one in use. */
static void test_left_is_sealed(void **state)
{
    struct folder *folder;
    int fd;

    (void)state;
    leave(7);
    folder = open_folder();
    folder_begin(folder, 5, &key, true);
    assert_int_equal(find(folder, 5, 0), 7);
    folder_leave(folder, 5); /* its ranks may join again */
    folder_close(folder);
    fd = open(file, O_RDWR);
    flip(fd, START);
    (void)close(fd);
    assert_refused();
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(test_found_again),
        FOLDER_TEST(test_drops_unopened),
        FOLDER_TEST(test_left),
        FOLDER_TEST(test_left_is_sealed),
        FOLDER_TEST(test_few_left),
        FOLDER_TEST(test_begins_anew),
        FOLDER_TEST(test_other_size),
        FOLDER_TEST(test_other_workers),
        FOLDER_TEST(test_workers_unknown),
        FOLDER_TEST(test_cut_short),
        FOLDER_TEST(test_flipped),
        FOLDER_TEST(test_killed_after_seal),
        FOLDER_TEST(test_format_before),
        FOLDER_TEST(test_other_version),
        FOLDER_TEST(test_no_descriptors),
        FOLDER_TEST(test_strangers),
        FOLDER_TEST(test_refused_folders),
        FOLDER_TEST(test_expired),
        FOLDER_TEST(test_expires_late),
        FOLDER_TEST(test_clock_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
