/*
 * Handles: descriptors of device memory that a service manager keeps beside the files of stores.
 * What one daemon has it keep, the next one finds, as long as the store is there, and nothing else.
 * Files in memory take the place of a device's memory.
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/service_manager.h"

#define TEXT "1,GPU-a0,200000,400000"
#define PART 4u /* of a store, on devices */
#define SHARED_SIZE 8192u

/* Memory with these words in it, as of a device; the caller closes it. */
static int memory_of(const char *words)
{
    const int fd = memfd_create("device", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, words, strlen(words)), strlen(words));
    return fd;
}

/* A job with a store that has its first part. Returns the store's number. */
static uint32_t begin(struct folder *folder, uint64_t job, const char *name, bool returning)
{
    struct job_key key = {.owner = 1000, .run_id = "r7"};
    struct segment segment;
    struct error err;
    uint32_t number;
    bool existing;

    (void)snprintf(key.name, sizeof key.name, "%s", name);
    folder_begin(folder, job, &key, returning);
    assert_int_equal(folder_part(folder, job, 0, 10000, 0, &segment, &existing, &err), ADTOPK_OK);
    segment_drop(&segment);
    assert_true(folder_number(folder, job, &number));
    return number;
}

static struct handle handle_of(uint32_t store, unsigned part, unsigned shard, const char *text)
{
    struct handle handle = {.store = store, .part = part, .shard = shard};

    (void)snprintf(handle.text, sizeof handle.text, "%s", text);
    return handle;
}

/* Has the manager keep a handle of memory with these words. */
static void keep(struct folder *folder, const struct handle *handle, const char *words)
{
    const int fd = memory_of(words);
    struct error err;

    assert_int_equal(handles_keep(folder_handles(folder), handle, fd, &err), ADTOPK_OK);
    assert_int_equal(close(fd), 0); /* it has stayed ours */
}

/* The part's memory on two devices, which both begin with "old". */
static void keep_both(struct folder *folder, uint32_t store, unsigned part)
{
    for (unsigned shard = 0; shard < 2; shard++) {
        const struct handle handle = handle_of(store, part, shard, TEXT);

        keep(folder, &handle, "old");
    }
}

static unsigned count(struct folder *folder)
{
    unsigned handles = 0;

    for (const struct handle *at = folder_handles(folder)->first; at != NULL; at = at->next) {
        handles++;
    }
    return handles;
}

/* There is this very handle, and behind it memory with these words. */
static void assert_kept(struct folder *folder, const struct handle *wanted, const char *words)
{
    struct handles *handles = folder_handles(folder);
    const struct handle *found = handles->first;
    char read_words[16] = "";
    int fd;

    while (found != NULL && (found->store != wanted->store || found->part != wanted->part ||
                                found->shard != wanted->shard)) {
        found = found->next;
    }
    assert_non_null(found);
    assert_string_equal(found->text, wanted->text);
    assert_false(found->useless);
    fd = handles_open(handles, found);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(pread(fd, read_words, sizeof read_words - 1, 0), strlen(words));
    assert_string_equal(read_words, words);
    assert_int_equal(close(fd), 0);
}

/* ------------------------------------------------------------------ one daemon after the other */

/* Also with the largest numbers and the longest text. */
static void test_found_again(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    struct handle handle = handle_of(begin(folder, 1, "digits", false), PART, 1, TEXT), last;
    char longest[HANDLE_TEXT_SIZE];

    (void)state;
    (void)memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    last = handle_of(handle.store, CORE_STORE_PARTS - 1, ENGINE_SHARDS - 1, longest);
    keep(folder, &handle, "seven");
    keep(folder, &last, "eight");
    folder_close(folder);
    for (unsigned daemons = 0; daemons < 2; daemons++) {
        folder = manager_start(MANAGER_MOST);
        assert_int_equal(count(folder), 2);
        assert_kept(folder, &handle, "seven");
        assert_kept(folder, &last, "eight");
        assert_true(handles_has(folder_handles(folder), handle.store, PART, 1));
        assert_false(handles_has(folder_handles(folder), handle.store, PART, 0));
        assert_false(handles_has(folder_handles(folder), handle.store, PART + 1, 1));
        assert_false(handles_has(folder_handles(folder), handle.store + 1, PART, 1));
        folder_close(folder);
    }
}

static void test_replaced(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    const uint32_t store = begin(folder, 1, "digits", false);
    const struct handle later = handle_of(store, PART, 0, "1,GPU-b1,600000,400000");
    const struct handle beside = handle_of(store, PART, 1, TEXT);

    (void)state;
    keep_both(folder, store, PART);
    keep(folder, &later, "new");
    folder_close(folder);
    folder = manager_start(MANAGER_MOST);
    assert_int_equal(count(folder), 2);
    assert_kept(folder, &later, "new");
    assert_kept(folder, &beside, "old");
    keep(folder, &later, "newer"); /* in the place of one that an earlier daemon had kept */
    assert_kept(folder, &later, "newer");
    assert_int_equal(manager.count, 3);
    folder_close(folder);
}

static void test_dropped(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    const uint32_t store = begin(folder, 1, "digits", false);
    const uint32_t other = begin(folder, 2, "text", false);
    const struct handle stays = handle_of(store, PART + 1, 1, TEXT);

    (void)state;
    keep_both(folder, store, PART);
    keep_both(folder, store, PART + 1);
    keep_both(folder, other, PART);
    handles_drop(folder_handles(folder), store, PART);
    assert_int_equal(count(folder), 4);
    assert_int_equal(manager.count, 6);
    assert_kept(folder, &stays, "old");
    assert_false(handles_has(folder_handles(folder), store, PART, 0));
    handles_drop(folder_handles(folder), store, HANDLES_ALL);
    assert_int_equal(count(folder), 2);
    assert_int_equal(manager.count, 4);
    assert_int_equal(handles_open(folder_handles(folder), &stays), -1);
    folder_close(folder);
}

/* ------------------------------------------------------------------ they go with their stores */

static void test_go_with_a_store(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    struct folder_info gone;

    (void)state;
    keep_both(folder, begin(folder, 1, "digits", false), PART);
    keep_both(folder, begin(folder, 2, "text", false), PART);
    keep_both(folder, begin(folder, 3, "speech", false), PART);
    folder_end(folder, 1);
    assert_int_equal(count(folder), 4);
    folder_leave(folder, 2);
    assert_int_equal(count(folder), 4);
    assert_true(folder_expire(folder, 0, &gone));
    assert_string_equal(gone.key.name, "text");
    assert_int_equal(count(folder), 2);
    folder_leave(folder, 3);
    (void)begin(folder, 4, "speech", false); /* a run of the same job, which begins anew */
    assert_int_equal(count(folder), 0);
    assert_int_equal(manager.count, 1);
    folder_close(folder);
}

/* A daemon was killed while it removed stores: their first parts are gone, or all of their files.
 */
static void test_without_a_store(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    const uint32_t store = begin(folder, 1, "digits", false);
    const uint32_t other = begin(folder, 2, "text", false);
    struct handle stays = handle_of(other, PART, 1, TEXT);
    struct segment segment;
    struct error err;
    bool existing;

    (void)state;
    assert_int_equal(folder_part(folder, 1, 1, 10000, 0, &segment, &existing, &err), ADTOPK_OK);
    segment_drop(&segment);
    keep_both(folder, store, PART);
    keep_both(folder, other, PART);
    folder_close(folder);
    assert_string_equal(manager.name[0], "00000000.0");
    manager_keep("00000007.4.0@x", manager.fd[0]);
    manager_keep("00000007.4.1@y", manager.fd[0]);
    manager_forget(0);
    folder = manager_start(MANAGER_MOST);
    assert_int_equal(count(folder), 2);
    assert_kept(folder, &stays, "old");
    assert_int_equal(manager.count, 3);
    folder_close(folder);
}

/* Of a store that has a useless one no other can be used either. */
static void test_useless(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    const uint32_t store = begin(folder, 1, "digits", false);
    const uint32_t other = begin(folder, 2, "text", false);
    struct handle *at;

    (void)state;
    for (unsigned part = PART; part < PART + 2; part++) {
        keep_both(folder, store, part);
        keep_both(folder, other, part);
    }
    handles_drop_useless(folder_handles(folder));
    assert_int_equal(count(folder), 8);
    at = folder_handles(folder)->first;
    while (at->store != store || at->part != PART || at->shard != 1) {
        at = at->next;
    }
    at->useless = true;
    handles_drop_useless(folder_handles(folder));
    assert_int_equal(count(folder), 4);
    assert_int_equal(manager.count, 6);
    for (at = folder_handles(folder)->first; at != NULL; at = at->next) {
        assert_int_equal(at->store, other);
    }
    folder_close(folder);
}

/* ------------------------------------------------------------------ what is no handle */

/* The store of number 0 is there, so nothing else than their names is against them. */
static void test_other_names(void **state)
{
    static const char *const names[] = {"00000000", "00000000.4", "00000000.4.0", "00000000.4.0@",
        "0.4.0@x", "00000000.04.0@x", "00000000.4.00@x", "00000000.4.0@ x", "00000000.4.0@x y",
        " 00000000.4.0@x", "00000000.-4.0@x", "0x000000.4.0@x", "00000000.4.0.x"};
    struct folder *folder = manager_start(MANAGER_MOST);
    char name[FILES_NAME_SIZE] = "00000000.4.0@";
    struct handles *handles;

    (void)state;
    assert_int_equal(begin(folder, 1, "digits", false), 0);
    folder_close(folder);
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        manager_keep(names[i], manager.fd[0]);
    }
    (void)memset(name + strlen(name), 'x', HANDLE_TEXT_SIZE);
    manager_keep(name, manager.fd[0]);
    folder = manager_start(MANAGER_MOST);
    handles = folder_handles(folder);
    assert_null(handles->first);
    assert_true(handles_take(handles, "00000000.4.0@x:y")); /* colons separate names */
    assert_null(handles->first);
    assert_true(handles_take(handles, "00000000.4.0@x"));
    assert_non_null(handles->first);
    folder_close(folder);
}

static void test_folder_with_a_path(void **state)
{
    char path[] = "/dev/shm/adtopk-test-XXXXXX";
    char command[64];
    struct folder *folder;
    struct keeper keeper;
    struct error err;

    (void)state;
    assert_non_null(mkdtemp(path));
    folder = folder_open(files_in_folder(path, &err), &keeper, 0, &err);
    assert_non_null(folder);
    assert_null(folder_handles(folder));
    folder_close(folder);
    (void)snprintf(command, sizeof command, "rm -r %s", path);
    assert_int_equal(system(command), 0);
}

/* ------------------------------------------------------------------ memory for the next daemon */

/* found: an earlier daemon has left it. */
static uint8_t *shared(struct folder *folder, size_t size, bool found)
{
    struct error err;
    bool was_found = !found;
    uint8_t *bytes = handles_shared(folder_handles(folder), size, &was_found, &err);

    assert_non_null(bytes);
    assert_int_equal(was_found, found);
    return bytes;
}

static void assert_zeros(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        assert_int_equal(bytes[i], 0);
    }
}

static void test_shared(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    uint8_t *first = shared(folder, SHARED_SIZE, false), *second;

    (void)state;
    assert_zeros(first, SHARED_SIZE);
    first[SHARED_SIZE - 1] = 7;
    folder_close(folder);
    folder = manager_start(MANAGER_MOST);
    second = shared(folder, SHARED_SIZE, true);
    assert_int_equal(second[SHARED_SIZE - 1], 7);
    first[0] = 9; /* it has stayed mapped, and is the same */
    assert_int_equal(second[0], 9);
    assert_null(folder_handles(folder)->first);
    folder_close(folder);
    (void)munmap(first, SHARED_SIZE);
    (void)munmap(second, SHARED_SIZE);
}

/* A daemon of another release has other things to say. */
static void test_shared_of_another_size(void **state)
{
    static const size_t sizes[] = {SHARED_SIZE, SHARED_SIZE / 2, SHARED_SIZE};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct folder *folder = manager_start(MANAGER_MOST);
        uint8_t *bytes = shared(folder, sizes[i], false);

        assert_zeros(bytes, sizes[i]);
        (void)memset(bytes, 5, sizes[i]);
        assert_int_equal(manager.count, 1);
        (void)munmap(bytes, sizes[i]);
        folder_close(folder);
    }
}

/* ------------------------------------------------------------------ managers that keep nothing */

/* The manager does not keep it: an error, which says so, and nothing is left of it. */
static void assert_not_kept(struct folder *folder, const struct handle *handle,
    enum adtopk_status status, const char *sentence)
{
    const int fd = memory_of("new");
    struct error err;
    bool found;

    assert_int_equal(handles_keep(folder_handles(folder), handle, fd, &err), status);
    assert_int_equal(err.code, status);
    assert_non_null(strstr(err.text, sentence));
    assert_null(handles_shared(folder_handles(folder), SHARED_SIZE, &found, &err));
    assert_int_equal(err.code, status);
    assert_false(handles_has(folder_handles(folder), handle->store, handle->part, handle->shard));
    assert_int_equal(handles_open(folder_handles(folder), handle), -1);
    assert_int_equal(close(fd), 0);
}

static void test_full(void **state)
{
    struct folder *folder = manager_start(3);
    const uint32_t store = begin(folder, 1, "digits", false);
    const struct handle later = handle_of(store, PART + 1, 0, TEXT);

    (void)state;
    keep_both(folder, store, PART);
    assert_not_kept(folder, &later, ADTOPK_ERR_MEMORY, "at most 3 files");
    assert_int_equal(count(folder), 2);
    assert_int_equal(manager.count, 3);
    keep_both(folder, store, PART); /* in the place of others */
    handles_drop(folder_handles(folder), store, PART);
    keep(folder, &later, "new");
    folder_close(folder);
}

/* The manager hears later that one is replaced, and the next daemon finds neither of the two. */
static void test_deaf(void **state)
{
    struct folder *folder = manager_start(MANAGER_MOST);
    const uint32_t store = begin(folder, 1, "digits", false);
    const struct handle before = handle_of(store, PART, 0, TEXT);
    const struct handle later = handle_of(store, PART, 0, "1,GPU-b1,600000,400000");
    struct folder_info gone;

    (void)state;
    keep(folder, &before, "old");
    manager.deaf = true;
    assert_not_kept(folder, &later, ADTOPK_ERR_SYSTEM, "the service manager does not hear");
    assert_not_kept(folder, &before, ADTOPK_ERR_SYSTEM, "the service manager does not hear");
    assert_int_equal(manager.count, 2);
    manager.deaf = false;
    assert_false(folder_expire(folder, 1000, &gone));
    assert_int_equal(manager.count, 1);
    folder_close(folder);
    folder = manager_start(MANAGER_MOST);
    assert_int_equal(count(folder), 0);
    keep(folder, &later, "new");
    assert_kept(folder, &later, "new");
    folder_close(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        MANAGER_TEST(test_found_again),
        MANAGER_TEST(test_replaced),
        MANAGER_TEST(test_dropped),
        MANAGER_TEST(test_go_with_a_store),
        MANAGER_TEST(test_without_a_store),
        MANAGER_TEST(test_useless),
        MANAGER_TEST(test_other_names),
        MANAGER_TEST(test_folder_with_a_path),
        MANAGER_TEST(test_shared),
        MANAGER_TEST(test_shared_of_another_size),
        MANAGER_TEST(test_full),
        MANAGER_TEST(test_deaf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
