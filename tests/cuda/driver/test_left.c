/*
 * Residuals that outlive their daemon, and can be used: they are as the engine of this processor
 * has them, and the job goes on. And what a daemon does not take, or gives back.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/page.h"
#include "tests/cuda/driver/daemons.h"

#define WORKS_US 50000u /* in which a worker does what it should not */

static void assert_apart(const struct device_left *left)
{
    const struct daemon_words words = daemons_words(left);

    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        const struct daemon_words other = daemons_words(&daemons.kept[daemons_usual[i]]);

        assert_true(
            words.place >= other.place + other.size || other.place >= words.place + words.size);
        assert_int_not_equal(words.note, other.note);
    }
}

/* ------------------------------------------------------------------ all of it can be used */

/* A step whose number the residuals have already is not added again. Workers die as ever. */
static void test_all_there(void **state)
{
    struct device_info before;

    (void)state;
    daemons_leave("");
    before = daemons_device();
    for (uint64_t number = 3; number < 9; number += 3) {
        daemons_next("");
        daemons_take_usual();
        assert_int_equal(daemons_device().use.residuals, before.use.residuals);
        assert_int_equal(daemons_device().jobs, 0);
        daemons_claim();
        assert_int_equal(daemons_device().jobs, 1);
        daemons_same_residuals();
        sides_step(number - 1, NULL);
        sides_step(number, NULL);
        assert_string_equal(sides.trouble, "");
        sides_step(number + 1, sides_kill);
        sides_step(number + 2, NULL);
    }
    assert_int_equal(daemons_device().use.residuals, before.use.residuals);
}

/* Another job of the same user has a part, and a worker. */
static void open_other(void)
{
    struct device_part other = sides_part(MAIN, 3u << 20);
    const uint64_t before = daemons_device().use.residuals;
    struct device_left left;
    struct error err;

    other.job = JOB + 1;
    other.store = DAEMONS_STORE + 1;
    assert_int_equal(device_open_part(sides.device, &other, &left, &err), ADTOPK_OK);
    assert_true(left.descriptor >= 0);
    assert_apart(&left);
    assert_int_equal(daemons_device().use.residuals, before + daemons_words(&left).size);
    daemons_wait_for_note(&left, daemons_words(&left).mark);
}

/* No worker runs for memory that waits, and none has it. Others get other addresses. */
static void test_waits(void **state)
{
    struct device_worker_info worker;

    (void)state;
    daemons_leave("");
    daemons_next("");
    daemons_take_usual();
    (void)usleep(WORKS_US);
    assert_true(device_worker_info(sides.device, 0, &worker));
    assert_int_equal(worker.owner, OWNER);
    assert_int_equal(worker.starts, 0);
    atomic_store(daemons_begun(&daemons.kept[RESIDUALS]), 0);
    open_other();
    (void)usleep(WORKS_US);
    assert_int_equal(atomic_load(daemons_begun(&daemons.kept[RESIDUALS])), 0);
    assert_false(daemons_open_part(MAIN));
    assert_true(daemons_open_part(NEXT_VELOCITIES));
    assert_apart(&daemons.kept[NEXT_VELOCITIES]);
    assert_int_equal(daemons_device().jobs, 2);
    daemons_claim_from(1);
    daemons_same_residuals();
    sides_step(3, NULL);
    assert_string_equal(sides.trouble, "");
}

/* A part was opened, and the daemon ended before a worker had cleared it. The next one clears it,
 * and nothing counts as lost. */
static void test_never_cleared(void **state)
{
    (void)state;
    daemons_leave("cuMemImportFromShareableHandle:5:hang");
    assert_true(daemons_open_part(OTHER));
    assert_int_equal(atomic_load(daemons_begun(&daemons.kept[OTHER])), 0);
    daemons_next("");
    daemons_take_usual();
    daemons_take(OTHER);
    daemons_claim();
    assert_false(daemons_open_part(OTHER));
    daemons_same_residuals();
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    for (unsigned i = 0; i < sides.host.batch.count; i++) {
        sides.host.batch.order[i].residual.element.arena = OTHER;
        sides.cuda.batch.order[i].residual.element.arena = OTHER;
    }
    sides_run(NULL);
    sides_compare();
    sides_step(3, NULL);
}

/* Each shard of a job finds its device, whichever comes first. */
static void test_devices(void **state)
{
    struct device_left left[2];
    struct device_part part = sides_part(MAIN, 4096);
    struct device_info info;
    struct error err;
    unsigned index;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_DEVICES", "2", 1);
    daemons_begin("");
    part.store = DAEMONS_STORE;
    for (part.shard = 0; part.shard < 2; part.shard++) {
        assert_int_equal(device_open_part(sides.device, &part, &left[part.shard], &err), ADTOPK_OK);
        left[part.shard].descriptor = fcntl(left[part.shard].descriptor, F_DUPFD_CLOEXEC, 0);
    }
    daemons_next("");
    for (unsigned shard = 2; shard-- > 0;) {
        assert_int_equal(device_take_left(sides.device, &left[shard], &err), ADTOPK_OK);
    }
    for (part.shard = 2; part.shard-- > 0;) {
        assert_int_equal(device_open_part(sides.device, &part, &left[0], &err), ADTOPK_OK);
        assert_int_equal(left[0].descriptor, -1);
        assert_true(device_of_shard(sides.device, JOB, part.shard, &index));
        assert_int_equal(index, part.shard);
        assert_true(device_info(sides.device, index, &info));
        assert_non_null(strstr(left[0].text, info.device.uuid));
    }
    (void)unsetenv("ADTOPK_TEST_CUDA_DEVICES");
}

/* ------------------------------------------------------------------ what is not taken */

static void refuse_text(const char *text, const char *sentence)
{
    struct device_left left = daemons.kept[RESIDUALS];
    struct error err;

    (void)snprintf(left.text, sizeof(left.text), "%s", text);
    left.descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 100);
    assert_int_equal(device_take_left(sides.device, &left, &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, sentence));
    assert_non_null(strstr(err.text, text));
    assert_int_equal(fcntl(left.descriptor, F_GETFD), -1);
}

static void refuse(struct daemon_words words, const char *sentence)
{
    char text[DEVICE_LEFT_SIZE];

    (void)snprintf(text, sizeof(text), "%u,%s,%llx,%llx,%llx,%llx,%llx,%x,%x,%x", words.format,
        words.uuid, words.place, words.size, words.begin, words.bytes, words.mark, words.blocks,
        words.note, words.shards);
    refuse_text(text, sentence);
}

#define REFUSE(words, field, value, sentence)                                                      \
    do {                                                                                           \
        struct daemon_words other = (words);                                                       \
        other.field = (value);                                                                     \
        refuse(other, (sentence));                                                                 \
    } while (0)

static void test_texts(void **state)
{
    static const char unknown[] = "it is on a GPU that this node has not, or of another release: ";
    static const char taken[] = "its addresses are taken: ";
    struct daemon_words words, nowhere;

    (void)state;
    daemons_leave("");
    daemons_next("");
    words = nowhere = daemons_words(&daemons.kept[RESIDUALS]);
    nowhere.uuid[strlen(nowhere.uuid) - 1] ^= 1;
    refuse(nowhere, unknown);
    refuse_text("", unknown);
    refuse_text("nonsense", unknown);
    refuse_text("1,GPU-a0,200000,200000", unknown);
    REFUSE(words, format, words.format + 1, unknown);
    REFUSE(words, note, 0, unknown);
    REFUSE(words, note, DEVICE_KEPT + 1, unknown);
    REFUSE(words, size, 0, taken);
    REFUSE(words, size, words.size + 4096, taken);
    REFUSE(words, size, 1ull << 63, taken);
    REFUSE(words, place, 0, taken);
    REFUSE(words, place, words.place + 4096, taken);
    REFUSE(words, place, -words.size, taken);
    REFUSE(words, place, page_window(daemons_device().device.memory), taken);
    daemons_take(RANK);
    REFUSE(words, place, daemons_words(&daemons.kept[RANK]).place, taken);
    daemons_take(RESIDUALS);
    refuse(words, taken); /* a manager may pass a descriptor twice */
    assert_int_equal(
        daemons_device().use.residuals, words.size + daemons_words(&daemons.kept[RANK]).size);
}

/* A manager that is deaf passes what was dropped, and another store has the place in the notes. */
static void test_place_of_another_store(void **state)
{
    struct daemon_words words;

    (void)state;
    daemons_leave("");
    words = daemons_words(&daemons.kept[RESIDUALS]);
    daemons_next("");
    atomic_store(daemons_begun(&daemons.kept[RESIDUALS]), 0);
    atomic_store(&daemons.notes->store[words.note - 1], DAEMONS_STORE + 1);
    refuse(words, "or had other memory: ");
    atomic_store(&daemons.notes->store[words.note - 1], 0);
    daemons_take(RESIDUALS);
}

/* ------------------------------------------------------------------ what no job returns to */

/* Without a context nothing stays. */
static bool is_rank(void *context, const struct device_left *left)
{
    assert_int_equal(left->store, DAEMONS_STORE);
    assert_int_equal(left->shard, 0);
    return context != NULL && left->number == RANK;
}

/* A job's memory that does not wait stays. */
static void test_dropped(void **state)
{
    (void)state;
    daemons_leave("");
    daemons_next("");
    daemons_take_usual();
    device_drop_left(sides.device, is_rank, daemons.kept);
    sides_wait_for_use(daemons_words(&daemons.kept[RANK]).size);
    device_drop_left(sides.device, is_rank, NULL);
    sides_wait_for_use(0);
    daemons_take_usual();
    assert_false(daemons_open_part(MAIN));
    device_drop_left(sides.device, is_rank, NULL);
    sides_wait_for_use(daemons_words(&daemons.kept[MAIN]).size);
    assert_true(daemons_open_part(OTHER)); /* its notes are in the place of one of them */
    assert_in_range(daemons_words(&daemons.kept[OTHER]).note, 1, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DAEMONS_TEST(test_all_there),
        DAEMONS_TEST(test_waits),
        DAEMONS_TEST(test_never_cleared),
        DAEMONS_TEST(test_devices),
        DAEMONS_TEST(test_texts),
        DAEMONS_TEST(test_place_of_another_store),
        DAEMONS_TEST(test_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
