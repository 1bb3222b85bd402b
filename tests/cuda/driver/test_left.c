/*
 * Residuals that outlive their daemon: one device object after the other is a daemon, and the test
 * keeps the descriptors of memory, as a service manager does. What is there is as the engine of
 * this processor has it. What cannot be used is zeros, and results say so.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/page.h"
#include "tests/cuda/driver/sides.h"

#define STORE 5u
#define WORKS_US 50000u /* in which a worker does what it should not */
#define PARTS (NEXT_VELOCITIES + 1u)

static const unsigned usual[] = {MAIN, RANK, RESIDUALS, VELOCITIES};

static struct device_notes *notes;
static struct device_left kept[PARTS]; /* by the manager */
static unsigned daemons;

/* ------------------------------------------------------------------ daemons */

static void begin_daemon(const char *fails)
{
    struct error err;

    sides_start("late", fails, 0);
    if (device_outlive(sides.device, notes, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    daemons++;
}

/* Whether the part is new memory, which is kept from now on. */
static bool open_asked(struct device_part part)
{
    struct device_left left;
    struct error err;

    part.store = STORE;
    part.lost = part.number == MAIN && daemons > 1;
    if (device_open_part(sides.device, &part, &left, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(left.store, STORE);
    assert_int_equal(left.number, part.number);
    if (left.descriptor < 0) {
        assert_string_equal(left.text, kept[part.number].text);
        return false;
    }
    if (kept[part.number].descriptor >= 0) {
        (void)close(kept[part.number].descriptor);
    }
    kept[part.number] = left;
    kept[part.number].descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 0);
    assert_true(kept[part.number].descriptor >= 0);
    return true;
}

static bool open_part(unsigned number)
{
    return open_asked(sides_part(number, sides_size(number)));
}

/* A job with residuals, and the daemon that has them comes to its end. */
static void leave(const char *fails)
{
    begin_daemon(fails);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(open_part(usual[i]));
    }
    sides_step(1, NULL);
    sides_step(2, NULL);
}

static void next_daemon(const char *fails)
{
    device_stop(sides.device);
    device_destroy(sides.device);
    begin_daemon(fails);
}

static enum adtopk_status take_left(struct device_left left, struct error *err)
{
    left.descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 0);
    assert_true(left.descriptor >= 0);
    return device_take_left(sides.device, &left, err);
}

static void take(unsigned number)
{
    struct error err;

    if (take_left(kept[number], &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
}

static void take_usual(void)
{
    for (unsigned i = 0; i < 4; i++) {
        take(usual[i]);
    }
}

/* The job returns, and finds its parts from the first-th on. */
static void claim_from(unsigned first)
{
    for (unsigned i = first; i < 4; i++) {
        assert_false(open_part(usual[i]));
    }
}

static void claim_usual(void)
{
    claim_from(0);
}

static int setup(void **state)
{
    (void)state;
    daemons = 0;
    notes = calloc(1, sizeof(*notes));
    for (unsigned number = 0; number < PARTS; number++) {
        kept[number] = (struct device_left){.descriptor = -1};
    }
    sides_prepare(SIDES_MEDIUM);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sides_close();
    for (unsigned number = 0; number < PARTS; number++) {
        if (kept[number].descriptor >= 0) {
            (void)close(kept[number].descriptor);
        }
    }
    free(notes);
    return 0;
}

/* ------------------------------------------------------------------ what is there */

static struct device_info device_now(void)
{
    struct device_info info;

    assert_true(device_info(sides.device, 0, &info));
    return info;
}

/* Feeders give memory back in their own time. */
static void wait_for_use(uint64_t residuals)
{
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS; waited_ms++) {
        if (device_now().use.residuals == residuals) {
            return;
        }
        (void)usleep(1000);
    }
    assert_int_equal(device_now().use.residuals, residuals);
}

/* The residuals are those of the host, and none counts as lost. */
static void same_residuals(void)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(NULL);
    sides_compare();
}

/* The residuals are zeros, and the first results say so. Then the job goes on. */
static void lost_residuals(uint64_t step)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        (void)sides_order(&sides.cuda, ENGINE_SUMS, t);
    }
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    assert_int_equal(sides_event().type, DEVICE_DONE);
    sides_losses_told(true);
    engine_batch_clear(&sides.cuda.batch);
    sides_lose_on_host();
    same_residuals();
    sides_step(step, NULL);
}

/* What a daemon says of a part. */
struct words {
    unsigned format;
    char uuid[64];
    unsigned long long place, size, begin, bytes, mark;
    unsigned blocks, note;
};

static struct words words_of(const struct device_left *left)
{
    struct words words;

    assert_int_equal(sscanf(left->text, "%u,%63[^,],%llx,%llx,%llx,%llx,%llx,%x,%x", &words.format,
                         words.uuid, &words.place, &words.size, &words.begin, &words.bytes,
                         &words.mark, &words.blocks, &words.note),
        9);
    return words;
}

static void assert_apart(const struct device_left *left)
{
    const struct words words = words_of(left);

    for (unsigned i = 0; i < 4; i++) {
        const struct words other = words_of(&kept[usual[i]]);

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
    leave("");
    before = device_now();
    for (uint64_t number = 3; number < 9; number += 3) {
        next_daemon("");
        take_usual();
        assert_int_equal(device_now().use.residuals, before.use.residuals);
        assert_int_equal(device_now().jobs, 0);
        claim_usual();
        assert_int_equal(device_now().jobs, 1);
        same_residuals();
        sides_step(number - 1, NULL);
        sides_step(number, NULL);
        assert_string_equal(sides.trouble, "");
        sides_step(number + 1, sides_kill);
        sides_step(number + 2, NULL);
    }
    assert_int_equal(device_now().use.residuals, before.use.residuals);
}

/* The mark of the part, if a worker has had it. */
static _Atomic uint64_t *begun(const struct device_left *left)
{
    return &notes->begun[words_of(left).note - 1];
}

static void wait_for_note(const struct device_left *left, uint64_t mark)
{
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && atomic_load(begun(left)) != mark;
         waited_ms++) {
        (void)usleep(1000);
    }
    assert_int_equal(atomic_load(begun(left)), mark);
}

/* Another job of the same user has a part, and a worker. */
static void open_other(void)
{
    struct device_part other = sides_part(MAIN, 3u << 20);
    const uint64_t before = device_now().use.residuals;
    struct device_left left;
    struct error err;

    other.job = JOB + 1;
    other.store = STORE + 1;
    assert_int_equal(device_open_part(sides.device, &other, &left, &err), ADTOPK_OK);
    assert_true(left.descriptor >= 0);
    assert_apart(&left);
    assert_int_equal(device_now().use.residuals, before + words_of(&left).size);
    wait_for_note(&left, words_of(&left).mark);
}

/* No worker runs for memory that waits, and none has it. Others get other addresses. */
static void test_waits(void **state)
{
    struct device_worker_info worker;

    (void)state;
    leave("");
    next_daemon("");
    take_usual();
    (void)usleep(WORKS_US);
    assert_true(device_worker_info(sides.device, 0, &worker));
    assert_int_equal(worker.owner, OWNER);
    assert_int_equal(worker.starts, 0);
    atomic_store(begun(&kept[RESIDUALS]), 0);
    open_other();
    (void)usleep(WORKS_US);
    assert_int_equal(atomic_load(begun(&kept[RESIDUALS])), 0);
    assert_false(open_part(MAIN));
    assert_true(open_part(NEXT_VELOCITIES));
    assert_apart(&kept[NEXT_VELOCITIES]);
    assert_int_equal(device_now().jobs, 2);
    claim_from(1);
    same_residuals();
    sides_step(3, NULL);
    assert_string_equal(sides.trouble, "");
}

/* A part was opened, and the daemon ended before a worker had cleared it. The next one clears it,
 * and nothing counts as lost. */
static void test_never_cleared(void **state)
{
    (void)state;
    leave("cuMemImportFromShareableHandle:5:hang");
    assert_true(open_part(OTHER));
    assert_int_equal(atomic_load(begun(&kept[OTHER])), 0);
    next_daemon("");
    take_usual();
    take(OTHER);
    claim_usual();
    assert_false(open_part(OTHER));
    same_residuals();
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
    begin_daemon("");
    part.store = STORE;
    for (part.shard = 0; part.shard < 2; part.shard++) {
        assert_int_equal(device_open_part(sides.device, &part, &left[part.shard], &err), ADTOPK_OK);
        left[part.shard].descriptor = fcntl(left[part.shard].descriptor, F_DUPFD_CLOEXEC, 0);
    }
    next_daemon("");
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

/* ------------------------------------------------------------------ some of it cannot */

/* The job returns and asks for other residuals than were left. Returns whether these have as many
 * bytes of the device. */
static bool lost_by_asking(struct device_part residuals)
{
    uint64_t before;

    leave("");
    before = words_of(&kept[RESIDUALS]).size;
    next_daemon("");
    take_usual();
    assert_false(open_part(MAIN));
    assert_false(open_part(RANK));
    assert_true(open_asked(residuals));
    assert_false(open_part(VELOCITIES));
    lost_residuals(3);
    return words_of(&kept[RESIDUALS]).size == before;
}

static void test_another_size(void **state)
{
    (void)state;
    assert_false(lost_by_asking(sides_part(RESIDUALS, 8 * sides_size(RESIDUALS))));
}

/* Memory has whole granules, so the size alone does not say how residuals lie in it. */
static void test_nearly_the_same_size(void **state)
{
    (void)state;
    assert_true(lost_by_asking(sides_part(RESIDUALS, sides_size(RESIDUALS) + POOL_SLOT)));
}

/* The job is spread otherwise, and other tensors of the same size are in this shard. */
static void test_another_stretch(void **state)
{
    struct device_part residuals = sides_part(RESIDUALS, sides_size(RESIDUALS));

    (void)state;
    residuals.begin = sides_size(RESIDUALS);
    assert_true(lost_by_asking(residuals));
}

static void test_another_owner(void **state)
{
    (void)state;
    leave("");
    next_daemon("");
    for (unsigned i = 0; i < 4; i++) {
        struct device_left left = kept[usual[i]];
        struct error err;

        left.owner = usual[i] == RESIDUALS ? OWNER + 1 : OWNER;
        assert_int_equal(take_left(left, &err), ADTOPK_OK);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(open_part(usual[i]), usual[i] == RESIDUALS);
    }
    lost_residuals(3);
}

/* Without the first part nothing is known of the others, which are given back. */
static void test_first_is_missing(void **state)
{
    uint64_t before;

    (void)state;
    leave("");
    before = device_now().use.residuals;
    next_daemon("");
    for (unsigned i = 1; i < 4; i++) {
        take(usual[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_true(open_part(usual[i]));
    }
    wait_for_use(before);
    lost_residuals(3);
}

/* The driver does not know the memory. The third worker gets other memory in its place. The next
 * daemon must not find what was there before, even if its driver knows it. */
static void test_driver_refuses(void **state)
{
    struct device_left unknown;
    struct device_worker_info worker;
    struct error err;

    (void)state;
    leave("");
    next_daemon("");
    unknown = kept[RESIDUALS];
    unknown.descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(device_take_left(sides.device, &unknown, &err), ADTOPK_OK);
    for (unsigned i = 0; i < 4; i++) {
        if (usual[i] != RESIDUALS) {
            take(usual[i]);
        }
    }
    claim_usual();
    lost_residuals(3);
    assert_true(device_worker_info(sides.device, 0, &worker));
    assert_non_null(strstr(worker.last.text, "cuMemImportFromShareableHandle"));
    assert_int_equal(worker.starts, DEVICE_ATTEMPTS);
    next_daemon("");
    take(MAIN);
    assert_int_equal(take_left(kept[RESIDUALS], &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, "the daemon before could not use it either"));
}

/* A driver that refuses all memory: the job hears so, once. What waits is not lost with it. */
static void test_driver_refuses_all(void **state)
{
    struct device_event event;

    (void)state;
    leave("");
    next_daemon("cuMemImportFromShareableHandle:1:1");
    take_usual();
    assert_false(open_part(MAIN));
    event = sides_event();
    assert_int_equal(event.type, DEVICE_LOST);
    assert_int_equal(event.job, JOB);
    assert_non_null(strstr(event.text, "cuMemImportFromShareableHandle"));
    while (device_take(sides.device, &event)) {
        assert_int_not_equal(event.type, DEVICE_LOST);
    }
    claim_from(1);
    next_daemon("");
    for (unsigned i = 1; i < 4; i++) {
        take(usual[i]);
    }
}

/* ------------------------------------------------------------------ what is not taken */

static void refuse_text(const char *text, const char *sentence)
{
    struct device_left left = kept[RESIDUALS];
    struct error err;

    (void)snprintf(left.text, sizeof(left.text), "%s", text);
    left.descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 100);
    assert_int_equal(device_take_left(sides.device, &left, &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, sentence));
    assert_non_null(strstr(err.text, text));
    assert_int_equal(fcntl(left.descriptor, F_GETFD), -1);
}

static void refuse(struct words words, const char *sentence)
{
    char text[DEVICE_LEFT_SIZE];

    (void)snprintf(text, sizeof(text), "%u,%s,%llx,%llx,%llx,%llx,%llx,%x,%x", words.format,
        words.uuid, words.place, words.size, words.begin, words.bytes, words.mark, words.blocks,
        words.note);
    refuse_text(text, sentence);
}

#define REFUSE(words, field, value, sentence)                                                      \
    do {                                                                                           \
        struct words other = (words);                                                              \
        other.field = (value);                                                                     \
        refuse(other, (sentence));                                                                 \
    } while (0)

static void test_texts(void **state)
{
    static const char unknown[] = "it is on a GPU that this node has not, or of another release: ";
    static const char taken[] = "its addresses are taken: ";
    struct words words, nowhere;

    (void)state;
    leave("");
    next_daemon("");
    words = nowhere = words_of(&kept[RESIDUALS]);
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
    REFUSE(words, place, page_window(device_now().device.memory), taken);
    take(RANK);
    REFUSE(words, place, words_of(&kept[RANK]).place, taken);
    take(RESIDUALS);
    refuse(words, taken); /* a manager may pass a descriptor twice */
    assert_int_equal(device_now().use.residuals, words.size + words_of(&kept[RANK]).size);
}

/* ------------------------------------------------------------------ what no job returns to */

/* Without a context nothing stays. */
static bool is_rank(void *context, const struct device_left *left)
{
    assert_int_equal(left->store, STORE);
    assert_int_equal(left->shard, 0);
    return context != NULL && left->number == RANK;
}

/* A job's memory that does not wait stays. */
static void test_dropped(void **state)
{
    (void)state;
    leave("");
    next_daemon("");
    take_usual();
    device_drop_left(sides.device, is_rank, kept);
    wait_for_use(words_of(&kept[RANK]).size);
    device_drop_left(sides.device, is_rank, NULL);
    wait_for_use(0);
    wait_for_note(&kept[RANK], 0);
    take_usual();
    assert_false(open_part(MAIN));
    device_drop_left(sides.device, is_rank, NULL);
    wait_for_use(words_of(&kept[MAIN]).size);
}

#define LEFT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LEFT_TEST(test_all_there),
        LEFT_TEST(test_waits),
        LEFT_TEST(test_never_cleared),
        LEFT_TEST(test_devices),
        LEFT_TEST(test_another_size),
        LEFT_TEST(test_nearly_the_same_size),
        LEFT_TEST(test_another_stretch),
        LEFT_TEST(test_another_owner),
        LEFT_TEST(test_first_is_missing),
        LEFT_TEST(test_driver_refuses),
        LEFT_TEST(test_driver_refuses_all),
        LEFT_TEST(test_texts),
        LEFT_TEST(test_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
