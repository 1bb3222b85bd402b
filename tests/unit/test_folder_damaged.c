/*
 * The folder of stores: what a daemon does with files that are not as a daemon left them. Those
 * that are cut at any byte, or have any byte changed that means something, are never accepted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/job/store_version.h"
#include "proto/payload.h"
#include "tests/unit/folder_scene.h"

#define PAGE 4096u
#define SMALL PAGE /* of each part of a store whose files are damaged at every byte */

/* Looks at the store, one file of which is damaged: it is not accepted, and the reason is there. */
static void assert_file_refused(const char *name)
{
    struct folder *folder = scene_open();
    struct folder_info info;
    char wanted[32];

    assert_false(folder_has(folder, &scene.key));
    assert_true(folder_look(folder, 0, &info));
    (void)snprintf(wanted, sizeof wanted, "its file %s ", name);
    assert_non_null(strstr(info.fault, wanted));
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), -1);
    folder_end(folder, 1);
    folder_close(folder);
}

static void assert_refused(void)
{
    assert_file_refused("00000000.0");
}

static void assert_accepted(void)
{
    struct folder *folder = scene_open();
    struct folder_info info;

    assert_true(folder_has(folder, &scene.key));
    assert_true(folder_look(folder, 0, &info));
    assert_string_equal(info.fault, "");
    folder_close(folder);
}

static int open_file(const char *name)
{
    char whole[96];
    int fd;

    (void)snprintf(whole, sizeof whole, "%s/%s", scene.path, name);
    fd = open(whole, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* Every size that is not the file's own, up to a page more. */
static void cut_all(const char *name)
{
    const off_t whole = SMALL + PAGE;
    int fd;

    scene_leave_sized(7, SMALL);
    assert_accepted();
    fd = open_file(name);
    for (off_t size = whole + (off_t)PAGE; size >= 0; size--) {
        if (size != whole) {
            assert_int_equal(ftruncate(fd, size), 0);
            assert_file_refused(name);
        }
    }
    (void)close(fd);
}

static void test_cut_short(void **state)
{
    (void)state;
    cut_all("00000000.0");
}

static void test_later_part_cut_short(void **state)
{
    (void)state;
    cut_all("00000000.1");
}

static void flip_with(int fd, off_t at, uint8_t bits)
{
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void flip(int fd, off_t at)
{
    flip_with(fd, at, 0x41);
}

/* Every byte of the content, of the mark, and of the note how many workers there were. What else is
 * in the last page means nothing, so the store is as good as before. */
static bool means_something(unsigned part, off_t at)
{
    const off_t mark = 168, note = 2048;
    const off_t behind = at - (off_t)SMALL;

    return behind < mark || (part == 0 && behind >= note && behind < note + 8);
}

static void flip_all(unsigned part, const char *name)
{
    static const uint8_t bits[] = {0x01, 0x80, 0xff};
    const int fd = open_file(name);

    for (off_t at = 0; at < (off_t)(SMALL + PAGE); at++) {
        const uint8_t chosen = bits[at % 3];

        flip_with(fd, at, chosen);
        if (means_something(part, at)) {
            assert_file_refused(name);
        } else {
            assert_accepted();
        }
        flip_with(fd, at, chosen);
    }
    (void)close(fd);
}

static void test_flipped(void **state)
{
    (void)state;
    scene.workers = 3;
    scene_leave_sized(7, SMALL);
    flip_all(0, "00000000.0");
    flip_all(1, "00000000.1");
    assert_accepted();
}

/* A daemon that is killed leaves no seal, although it found one. */
static void test_killed_after_seal(void **state)
{
    struct folder *folder;
    pid_t child;
    int status;

    (void)state;
    scene_leave(7);
    child = fork();
    if (child == 0) {
        struct segment segment;
        struct error err;
        bool existing;

        folder = scene_open();
        folder_begin(folder, 1, &scene.key, true);
        (void)folder_part(folder, 1, 0, SCENE_SIZE, 0, &segment, &existing, &err);
        ((uint8_t *)segment.bytes)[SCENE_START] = 9;
        _exit(existing ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    folder = scene_open();
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), 9);
    assert_int_equal(scene_find(folder, 1, 1), 8);
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
    scene_leave(7);
    fd = open(scene.file, O_RDWR);
    assert_int_equal(pread(fd, mark, sizeof mark, 12288), sizeof mark);
    memcpy(mark + 8, &format, sizeof format);
    crc = crc32c(0, mark, 156);
    memcpy(mark + 156, &crc, sizeof crc);
    assert_int_equal(pwrite(fd, mark, sizeof mark, 12288), sizeof mark);
    flip(fd, SCENE_START);
    folder = scene_open();
    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(scene_find(folder, 1, 0), 7 ^ 0x41);
    folder_close(folder);
    flip(fd, SCENE_START); /* now it is sealed */
    assert_refused();
    (void)close(fd);
}

/* Leaves a store whose main part begins like this, as a daemon of that version does. */
static void leave_version(uint32_t version)
{
    struct folder *folder = scene_open();
    struct segment segment;
    struct error err;
    bool existing;

    folder_begin(folder, 1, &scene.key, true);
    assert_int_equal(
        folder_part(folder, 1, 0, SCENE_SIZE, 0, &segment, &existing, &err), ADTOPK_OK);
    scene_write_start(segment.bytes, version);
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

        scene_leave(7);
        leave_version(version[i]);
        fd = open(scene.file, O_RDWR);
        assert_int_equal(pread(fd, before, sizeof before, 0), sizeof before);
        assert_refused();
        folder = scene_open();
        assert_true(folder_look(folder, 0, &info));
        (void)snprintf(wanted, sizeof wanted, "its file 00000000.0 has version %u, ", version[i]);
        assert_non_null(strstr(info.fault, wanted));
        folder_close(folder);
        assert_int_equal(pread(fd, after, sizeof after, 0), sizeof after);
        assert_memory_equal(after, before, sizeof after);
        (void)close(fd);
        (void)snprintf(other, sizeof other, "%s/00000000.1", scene.path);
        assert_int_equal(unlink(scene.file) + unlink(other), 0);
    }
}

static void test_strangers(void **state)
{
    struct folder_info info;
    struct folder *folder;
    char name[96];

    (void)state;
    scene_leave(7);
    assert_int_equal(chmod(scene.file, 0644), 0);
    assert_refused();
    assert_int_equal(unlink(scene.file), 0);
    assert_int_equal(symlink("/etc/passwd", scene.file), 0);
    assert_refused();
    /* What a killed daemon was removing, and a file of others. */
    assert_int_equal(unlink(scene.file), 0);
    (void)snprintf(name, sizeof name, "%s/00000003.1.new", scene.path);
    (void)close(open(name, O_CREAT | O_WRONLY, 0600));
    folder = scene_open();
    assert_false(folder_look(folder, 0, &info));
    assert_int_equal(access(name, F_OK), 0);
    folder_close(folder);
}

/* A store that a job has left is sealed at the daemon's end like one in use. */
static void test_left_is_sealed(void **state)
{
    struct folder *folder;
    int fd;

    (void)state;
    scene_leave(7);
    folder = scene_open();
    folder_begin(folder, 5, &scene.key, true);
    assert_int_equal(scene_find(folder, 5, 0), 7);
    folder_leave(folder, 5); /* its ranks may join again */
    folder_close(folder);
    fd = open(scene.file, O_RDWR);
    flip(fd, SCENE_START);
    (void)close(fd);
    assert_refused();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(test_cut_short),
        FOLDER_TEST(test_later_part_cut_short),
        FOLDER_TEST(test_flipped),
        FOLDER_TEST(test_killed_after_seal),
        FOLDER_TEST(test_format_before),
        FOLDER_TEST(test_other_version),
        FOLDER_TEST(test_strangers),
        FOLDER_TEST(test_left_is_sealed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
