/*
 * Memory that nobody needs any more while it waits to be reserved, or is being reserved: the keeper
 * stops taking it, and goes on with what others wait for. The first task of each test keeps the
 * keeper busy until the test has queued the rest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/local/local_session.h"

#define SIZE (4 * SEGMENT_STRIDE)
#define TRAILER 4096u /* what the folder adds to a part */

static const struct job_key key = {.owner = 1000, .name = "digits", .run_id = "r7"};
static char path[64];
static uv_loop_t loop;
static sem_t busy, go;
static struct keeper_task blocker;
static unsigned emptied, reserved;

static uint64_t taken(int fd)
{
    struct stat file;

    assert_int_equal(fstat(fd, &file), 0);
    return (uint64_t)file.st_blocks * 512;
}

static void on_emptied(struct keeper *keeper)
{
    (void)keeper;
    emptied++;
}

static bool start(struct keeper_task *task)
{
    (void)task;
    return true;
}

static void block(struct keeper_task *task)
{
    (void)task;
    sem_post(&busy);
    sem_wait(&go);
}

static void done(struct keeper_task *task)
{
    (void)task;
}

static void keep_busy(struct keeper *keeper)
{
    blocker = (struct keeper_task){.start = start, .run = block, .done = done};
    keeper_add(keeper, &blocker);
    sem_wait(&busy);
}

static void go_on(void)
{
    sem_post(&go);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(emptied, 1);
}

static int setup(void **state)
{
    (void)state;
    emptied = reserved = 0;
    (void)snprintf(path, sizeof path, "/dev/shm/adtopk-test-XXXXXX");
    return mkdtemp(path) == NULL || uv_loop_init(&loop) != 0 || sem_init(&busy, 0, 0) != 0 ||
           sem_init(&go, 0, 0) != 0;
}

static int teardown(void **state)
{
    char command[96];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", path);
    return system(command) != 0 || uv_loop_close(&loop) != 0 || sem_destroy(&busy) != 0 ||
           sem_destroy(&go) != 0;
}

/* ---- a task of its own ---- */

struct filler {
    struct keeper_task task;
    struct segment segment;
    uint64_t until; /* it becomes unwanted when so much is taken */
    struct error error;
};

static struct filler filler;

/* Takes the first part, is told that the rest is not wanted, and goes on. */
static void fill_in_two(struct keeper_task *task)
{
    assert_int_equal(
        keeper_fill(task, &filler.segment, "arena", 0, filler.until, &filler.error), ADTOPK_OK);
    atomic_store(&task->unwanted, true);
    (void)keeper_fill(
        task, &filler.segment, "arena", filler.until, SIZE - filler.until, &filler.error);
}

static bool start_counted(struct keeper_task *task)
{
    atomic_store(&task->filling, SIZE);
    return true;
}

static void test_stops(void **state)
{
    struct keeper keeper = {.loop = &loop, .emptied = on_emptied};

    (void)state;
    filler = (struct filler){.until = SEGMENT_STRIDE,
        .task = {.start = start_counted, .run = fill_in_two, .done = done}};
    assert_int_equal(segment_create(&filler.segment, "arena", SIZE, &filler.error), ADTOPK_OK);
    assert_int_equal(keeper_filling(&keeper), 0);
    keep_busy(&keeper);
    keeper_add(&keeper, &filler.task);
    assert_int_equal(keeper_filling(&keeper), 0); /* of the running one */
    go_on();
    assert_int_equal(filler.error.code, ADTOPK_ERR_STATE);
    assert_int_equal(taken(filler.segment.fd), SEGMENT_STRIDE);
    assert_int_equal(atomic_load(&filler.task.filling), SIZE - SEGMENT_STRIDE);
    segment_drop(&filler.segment);
}

/* ---- giving back ---- */

/* What the keeper counts as coming back of a private segment and one with a descriptor, of each of
 * which so many bytes were taken. */
static uint64_t counted(uint64_t bytes)
{
    struct keeper keeper = {.loop = &loop, .emptied = on_emptied};
    struct segment arena, file;
    struct error err;
    uint64_t releasing;

    assert_int_equal(segment_private(&arena, "arena", SIZE, 0, &err), ADTOPK_OK);
    assert_int_equal(segment_create(&file, "file", SIZE, &err), ADTOPK_OK);
    if (bytes > 0) {
        assert_int_equal(segment_fill(&file, "file", 0, bytes, &err), ADTOPK_OK);
        memset((uint8_t *)arena.bytes + SIZE - bytes, 1, bytes);
    }
    keep_busy(&keeper);
    keeper_release(&keeper, &arena, segment_taken(&arena));
    keeper_release(&keeper, &file, segment_taken(&file));
    releasing = keeper_releasing(&keeper);
    go_on();
    assert_int_equal(keeper_releasing(&keeper), 0);
    return releasing;
}

/* Memory that was promised and never touched: nothing comes back that others could be promised. */
static void test_untouched(void **state)
{
    (void)state;
    assert_int_equal(counted(0), 0);
}

static void test_touched(void **state)
{
    (void)state;
    assert_int_equal(counted(SEGMENT_STRIDE), 2 * SEGMENT_STRIDE);
}

/* ---- stores ---- */

static void test_store_dropped(void **state)
{
    struct keeper keeper = {.loop = &loop, .emptied = on_emptied};
    struct error err;
    struct files *files = files_in_folder(path, &err);
    struct folder *folder = folder_open(files, &keeper, 0, &err);
    struct stores *stores = stores_create(&keeper, folder);
    int dropped, kept;
    bool existing;

    (void)state;
    assert_non_null(stores);
    folder_begin(folder, 1, &key, false);
    keep_busy(&keeper);
    for (unsigned part = 0; part < 2; part++) {
        assert_non_null(stores_get(stores, 1, part, SIZE, false, 0, &existing, &err));
    }
    assert_true(stores_filling(stores, 1, &err));
    dropped = folder_descriptor(folder, 1, 0);
    kept = folder_descriptor(folder, 1, 1);
    stores_release(stores, 1, 0);
    go_on();
    assert_int_equal(taken(dropped), TRAILER);
    assert_int_equal(taken(kept), SIZE + TRAILER);
    assert_false(stores_filling(stores, 1, &err));
    (void)close(dropped);
    (void)close(kept);
    stores_destroy(stores);
    folder_close(folder);
}

/* A part that is made anew while the keeper still has its predecessor's task. */
static void test_store_again(void **state)
{
    struct keeper keeper = {.loop = &loop, .emptied = on_emptied};
    struct error err;
    struct folder *folder = folder_open(files_in_folder(path, &err), &keeper, 0, &err);
    struct stores *stores = stores_create(&keeper, folder);
    bool existing;
    int file;

    (void)state;
    assert_non_null(stores);
    folder_begin(folder, 1, &key, false);
    keep_busy(&keeper);
    assert_non_null(stores_get(stores, 1, 0, SIZE, false, 0, &existing, &err));
    stores_release(stores, 1, 0);
    assert_non_null(stores_get(stores, 1, 0, SIZE, false, 0, &existing, &err));
    file = folder_descriptor(folder, 1, 0);
    assert_true(stores_filling(stores, 1, &err));
    go_on();
    assert_int_equal(taken(file), SIZE + TRAILER);
    assert_false(stores_filling(stores, 1, &err));
    (void)close(file);
    stores_destroy(stores);
    folder_close(folder);
}

/* A store in a folder is a file, and a mapping of the same memory. */
static void test_store_counts_once(void **state)
{
    struct keeper keeper = {.loop = &loop, .emptied = on_emptied};
    struct error err;
    struct folder *folder = folder_open(files_in_folder(path, &err), &keeper, 0, &err);
    struct stores *stores = stores_create(&keeper, folder);
    uint64_t releasing;
    bool existing;
    void *memory;

    (void)state;
    assert_non_null(stores);
    folder_begin(folder, 1, &key, false);
    memory = stores_get(stores, 1, 0, SIZE, false, 0, &existing, &err);
    assert_non_null(memory);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_false(stores_filling(stores, 1, &err));
    emptied = 0;
    memset(memory, 1, SIZE);
    keep_busy(&keeper);
    stores_release(stores, 1, 0);
    releasing = keeper_releasing(&keeper);
    go_on();
    assert_int_equal(releasing, SIZE);
    stores_destroy(stores);
    folder_close(folder);
}

/* ---- gradients ---- */

/* All memory of an arena was taken, whether its rank has written gradients or not. */
static void test_arena(void **state)
{
    struct local local = {.loop = &loop, .keeper = {.loop = &loop, .emptied = on_emptied}};
    struct local_session session = {.local = &local};
    uint64_t releasing;
    struct error err;

    (void)state;
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        session.gradients[b] = segment_none;
    }
    assert_int_equal(segment_create(&session.gradients[0], "arena", SIZE, &err), ADTOPK_OK);
    assert_int_equal(segment_reserve(&session.gradients[0], "arena", 0, &err), ADTOPK_OK);
    assert_int_equal(
        segment_map(&session.gradients[0], PROT_READ | PROT_WRITE, "arena", &err), ADTOPK_OK);
    segment_close(&session.gradients[0]);
    keep_busy(&local.keeper);
    memory_give_back(&session.base);
    releasing = keeper_releasing(&local.keeper);
    go_on();
    assert_int_equal(releasing, SIZE);
}

/* ---- results ---- */

static enum adtopk_status on_event(void *context, struct event *event, struct error *err)
{
    (void)context;
    (void)err;
    assert_int_equal(event->type, EVENT_RESERVED);
    assert_int_equal(event->reserved.job, 1);
    reserved++;
    return ADTOPK_OK;
}

enum end { JOB_ENDS, DAEMON_ENDS, NOTHING_ENDS };

static void end_in_reservation(enum end end)
{
    struct doors doors = {.event = on_event};
    struct local local = {
        .loop = &loop, .keeper = {.loop = &loop, .emptied = on_emptied}, .door = {.doors = &doors}};
    const struct core_memory memory = local_memory(&local);
    const struct core_piece piece = {.size = SIZE};
    struct error err;
    bool existing, later;
    int file;

    local.stores = stores_create(&local.keeper, NULL);
    assert_non_null(local.stores);
    keep_busy(&local.keeper);
    assert_non_null(memory.results(&local, 1, 0, SIZE, &existing, &err));
    assert_int_equal(memory.reserve_results(&local, 1, 0, &piece, 1, &later, &err), ADTOPK_OK);
    assert_true(later);
    file = memory_show_results(&local, memory_results(&local, 1, 0), &err);
    assert_true(file >= 0);
    if (end == JOB_ENDS) {
        memory.release_job(&local, 1);
    } else if (end == DAEMON_ENDS) {
        memory_stop_reserving(&local);
    }
    go_on();
    assert_int_equal(reserved, 1);
    assert_int_equal(taken(file), end == NOTHING_ENDS ? SIZE : 0);
    (void)close(file);
    memory.release_job(&local, 1);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    stores_destroy(local.stores);
}

static void test_results(void **state)
{
    (void)state;
    end_in_reservation(NOTHING_ENDS);
}

static void test_results_dropped(void **state)
{
    (void)state;
    end_in_reservation(JOB_ENDS);
}

static void test_daemon_ends(void **state)
{
    (void)state;
    end_in_reservation(DAEMON_ENDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_touched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_counts_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arena, setup, teardown),
        cmocka_unit_test_setup_teardown(test_results, setup, teardown),
        cmocka_unit_test_setup_teardown(test_results_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_daemon_ends, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
