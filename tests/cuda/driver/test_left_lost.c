/*
 * Residuals that outlive their daemon, and cannot be used, or not all of them: they are zeros, and
 * results say so, even if the next daemon ends before they do.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/page.h"
#include "tests/cuda/driver/daemons.h"

/* Results say that the residuals of the first tensors are lost. */
static void hear_loss(unsigned tensors)
{
    for (unsigned t = 0; t < tensors; t++) {
        (void)sides_order(&sides.cuda, ENGINE_SUMS, t);
    }
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    assert_int_equal(sides_event().type, DEVICE_DONE);
    sides_losses_told(true);
    engine_batch_clear(&sides.cuda.batch);
}

/* The job returns, and finds none of its parts. */
static void open_all_anew(void)
{
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        assert_true(daemons_open_part(daemons_usual[i]));
    }
}

/* The residuals are zeros, and the first results say so. Then the job goes on. */
static void lost_residuals(uint64_t step)
{
    hear_loss(TENSORS);
    sides_lose_on_host();
    daemons_same_residuals();
    sides_step(step, NULL);
}

/* ------------------------------------------------------------------ some of it cannot */

/* The job returns and asks for other residuals than were left. The next daemon has these. Returns
 * whether they have as many bytes of the device. */
static bool lost_by_asking(struct device_part residuals)
{
    uint64_t before;

    daemons_leave("");
    before = daemons_words(&daemons.kept[RESIDUALS]).size;
    daemons_next("");
    daemons_take_usual();
    assert_false(daemons_open_part(MAIN));
    assert_false(daemons_open_part(RANK));
    assert_true(daemons_open(residuals));
    assert_false(daemons_open_part(VELOCITIES));
    lost_residuals(3);
    daemons_next("");
    daemons_take_usual();
    assert_false(daemons_open_part(MAIN));
    assert_false(daemons_open(residuals));
    assert_false(daemons_open_part(VELOCITIES));
    daemons_same_residuals();
    return daemons_words(&daemons.kept[RESIDUALS]).size == before;
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

/* The job is spread over more devices. The stretch is the same, but others need not be. */
static void test_more_shards(void **state)
{
    struct device_part residuals = sides_part(RESIDUALS, sides_size(RESIDUALS));

    (void)state;
    residuals.shards++;
    assert_true(lost_by_asking(residuals));
}

static void test_another_owner(void **state)
{
    (void)state;
    daemons_leave("");
    daemons_next("");
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        struct device_left left = daemons.kept[daemons_usual[i]];
        struct error err;

        left.owner = daemons_usual[i] == RESIDUALS ? OWNER + 1 : OWNER;
        assert_int_equal(daemons_take_left(left, &err), ADTOPK_OK);
    }
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        assert_int_equal(daemons_open_part(daemons_usual[i]), daemons_usual[i] == RESIDUALS);
    }
    lost_residuals(3);
}

/* Without the first part nothing is known of the others, which are given back. */
static void test_first_is_missing(void **state)
{
    uint64_t before;

    (void)state;
    daemons_leave("");
    before = daemons_device().use.residuals;
    daemons_next("");
    for (unsigned i = 1; i < DAEMONS_USUAL; i++) {
        daemons_take(daemons_usual[i]);
    }
    open_all_anew();
    sides_wait_for_use(before);
    lost_residuals(3);
    daemons_next("");
    daemons_take_usual(); /* what the job has since then */
    daemons_claim();
    daemons_same_residuals();
}

/* The first part of one shard is missing, and a new one may not be made on the device that has the
 * other shard. */
static void test_devices(void **state)
{
    struct device_part other = sides_part(MAIN, 4u << 20), part = sides_part(MAIN, 4096);
    struct device_left left[2], ignored;
    struct error err;
    unsigned index[2];

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_DEVICES", "2", 1);
    daemons_begin("");
    part.store = DAEMONS_STORE;
    part.shards = 2;
    for (part.shard = 0; part.shard < 2; part.shard++) {
        assert_int_equal(device_open_part(sides.device, &part, &left[part.shard], &err), ADTOPK_OK);
        left[part.shard].descriptor = fcntl(left[part.shard].descriptor, F_DUPFD_CLOEXEC, 0);
    }
    daemons_next("");
    other.job = JOB + 1; /* so the second device has more memory left */
    assert_int_equal(device_open_part(sides.device, &other, &ignored, &err), ADTOPK_OK);
    assert_int_equal(device_take_left(sides.device, &left[1], &err), ADTOPK_OK);
    (void)close(left[0].descriptor);
    part.lost = true;
    (void)unsetenv("ADTOPK_TEST_CUDA_DEVICES");
    for (part.shard = 0; part.shard < 2; part.shard++) {
        assert_int_equal(device_open_part(sides.device, &part, &ignored, &err), ADTOPK_OK);
        assert_true(device_of_shard(sides.device, JOB, part.shard, &index[part.shard]));
    }
    assert_int_not_equal(index[0], index[1]);
}

/* ------------------------------------------------------------------ some of it is missing */

/* Takes all but this one. Whether the daemon knows that its store lacks something. */
static bool misses(unsigned missing)
{
    uint32_t at = 0;
    uint64_t store;

    daemons_next("");
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        if (daemons_usual[i] != missing) {
            daemons_take(daemons_usual[i]);
        }
    }
    store = device_next_missing(sides.device, &at);
    assert_true(store == 0 || store == DAEMONS_STORE);
    assert_int_equal(device_next_missing(sides.device, &at), 0);
    return store != 0;
}

static bool is_not_velocities(void *context, const struct device_left *left)
{
    (void)context;
    return left->number != VELOCITIES;
}

static void test_something_is_missing(void **state)
{
    (void)state;
    daemons_leave("");
    assert_false(misses(OTHER));
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        assert_true(misses(daemons_usual[i]));
    }
    assert_false(misses(OTHER));
}

/* What was dropped is not missing, whether it waited for the job or not. */
static void test_dropped_is_not_missing(void **state)
{
    (void)state;
    daemons_leave("");
    device_drop_part(sides.device, JOB, VELOCITIES);
    assert_false(misses(VELOCITIES));
    daemons_take(VELOCITIES);
    device_drop_left(sides.device, is_not_velocities, NULL);
    assert_false(misses(VELOCITIES));
}

/* Nor is what a job has lost that began anew since. */
static void test_lost_is_not_missing(void **state)
{
    (void)state;
    daemons_leave("");
    daemons_next("");
    open_all_anew();
    lost_residuals(3);
    assert_false(misses(OTHER));
}

/* Nor is what no worker has cleared yet, or what nobody has been told of. */
static void test_new_is_not_missing(void **state)
{
    struct device_part part = sides_part(OTHER, sides_size(OTHER));
    struct device_left left;
    struct error err;

    (void)state;
    daemons_leave("cuMemImportFromShareableHandle:5:hang");
    assert_true(daemons_open_part(OTHER));
    assert_false(misses(OTHER));
    daemons_claim();
    part.store = DAEMONS_STORE;
    assert_int_equal(device_open_part(sides.device, &part, &left, &err), ADTOPK_OK);
    daemons_wait_for_note(&left, daemons_words(&left).mark);
    assert_false(misses(OTHER));
}

/* ------------------------------------------------------------------ and nobody has said so */

/* The next daemon does not take the part. */
static void assert_not_taken(unsigned number)
{
    struct error err;

    assert_int_equal(daemons_take_left(daemons.kept[number], &err), ADTOPK_ERR_LOST);
    assert_non_null(strstr(err.text, "the daemon before had lost what was there, and had not said "
                                     "so, or had other memory: "));
}

/* The daemon after a loss ends before results say so. The next one must not take zeros for the
 * residuals, whether a worker has cleared them or not. */
static void test_ends_before_it_says_so(void **state)
{
    (void)state;
    daemons_leave("");
    for (unsigned cleared = 0; cleared < 2; cleared++) {
        daemons_next("");
        open_all_anew();
        if (cleared == 1) {
            const struct device_left *last = &daemons.kept[VELOCITIES];

            daemons_wait_for_note(last, daemons_words(last).mark);
        }
        daemons_next("");
        daemons_take(VELOCITIES);
        assert_not_taken(MAIN);
    }
}

/* The results of some tensors have said so. */
static void test_ends_before_it_says_all(void **state)
{
    (void)state;
    daemons_leave("");
    daemons_next("");
    open_all_anew();
    hear_loss(TENSORS - 1);
    daemons_next("");
    assert_not_taken(MAIN);
}

/* Results have said so, but the core may not have read them before the daemon ended. The next
 * orders show that it has. */
static void test_ends_before_it_is_noted(void **state)
{
    (void)state;
    daemons_leave("");
    daemons_next("");
    open_all_anew();
    hear_loss(TENSORS);
    daemons_next("");
    assert_not_taken(MAIN);
}

static void wait_for_loss(void)
{
    struct device_worker_info worker = {.losses = 0};

    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && worker.losses == 0; waited_ms++) {
        (void)usleep(1000);
        assert_true(device_worker_info(sides.device, 0, &worker));
    }
    assert_int_equal(worker.losses, 1);
}

/* The same of residuals that cannot be used, beside a first part that can: one of them is not
 * taken, and then its store's are dropped. */
static void ends_with_some(bool cleared)
{
    struct error err;

    daemons_leave("");
    daemons_next("");
    daemons_take_usual();
    assert_false(daemons_open_part(MAIN));
    assert_true(daemons_open(sides_part(RESIDUALS, sides_size(RESIDUALS) + POOL_SLOT)));
    if (cleared) {
        wait_for_loss();
    }
    daemons_next("");
    if (cleared || daemons_take_left(daemons.kept[MAIN], &err) != ADTOPK_OK) {
        assert_not_taken(MAIN);
    } else {
        assert_not_taken(RESIDUALS);
    }
}

static void test_ends_with_some(void **state)
{
    (void)state;
    ends_with_some(false);
}

static void test_ends_with_some_cleared(void **state)
{
    (void)state;
    ends_with_some(true);
}

/* The device has lost what was there, and then the daemon dies, too. */
static void test_ends_after_memory_was_lost(void **state)
{
    (void)state;
    daemons_leave("");
    sides_forget();
    daemons_next("");
    assert_not_taken(MAIN);
}

/* A daemon may die when a worker has cleared a part that had lost its content, and maps the others.
 * So it notes the loss of each part at once. */
static void test_loss_is_noted_at_once(void **state)
{
    const struct device_left *last = &daemons.kept[VELOCITIES]; /* which is mapped first */
    char path[] = "/tmp/adtopk-forgets-XXXXXX";
    const int file = mkstemp(path);
    struct device_worker_info worker;

    (void)state;
    assert_true(file >= 0);
    (void)close(file);
    daemons_leave("");
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", "cuMemImportFromShareableHandle:2:hang", 1);
    (void)setenv("ADTOPK_TEST_CUDA_FORGETS", path, 1);
    assert_true(device_worker_info(sides.device, 0, &worker));
    assert_int_equal(kill(worker.pid, SIGKILL), 0);
    daemons_wait_for_note(last, ~daemons_words(last).mark);
    assert_int_equal(
        atomic_load(daemons_begun(&daemons.kept[MAIN])), daemons_words(&daemons.kept[MAIN]).mark);
    (void)unlink(path);
    (void)unsetenv("ADTOPK_TEST_CUDA_FORGETS");
    daemons_next("");
    assert_not_taken(MAIN);
}

/* ------------------------------------------------------------------ drivers that refuse it */

/* The driver does not know the memory. The third worker gets other memory in its place. The next
 * daemon must not find what was there before, even if its driver knows it. */
static void test_driver_refuses(void **state)
{
    struct device_left unknown;
    struct device_worker_info worker;
    struct error err;

    (void)state;
    daemons_leave("");
    daemons_next("");
    unknown = daemons.kept[RESIDUALS];
    unknown.descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(device_take_left(sides.device, &unknown, &err), ADTOPK_OK);
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        if (daemons_usual[i] != RESIDUALS) {
            daemons_take(daemons_usual[i]);
        }
    }
    daemons_claim();
    lost_residuals(3);
    assert_true(device_worker_info(sides.device, 0, &worker));
    assert_non_null(strstr(worker.last.text, "cuMemImportFromShareableHandle"));
    assert_int_equal(worker.starts, DEVICE_ATTEMPTS);
    daemons_next("");
    daemons_take(MAIN);
    assert_not_taken(RESIDUALS);
}

/* A driver that refuses all memory: the job hears so, once. What waits is not lost with it. */
static void test_driver_refuses_all(void **state)
{
    struct device_event event;

    (void)state;
    daemons_leave("");
    daemons_next("cuMemImportFromShareableHandle:1:1");
    daemons_take_usual();
    assert_false(daemons_open_part(MAIN));
    event = sides_event();
    assert_int_equal(event.type, DEVICE_LOST);
    assert_int_equal(event.job, JOB);
    assert_non_null(strstr(event.text, "cuMemImportFromShareableHandle"));
    while (device_take(sides.device, &event)) {
        assert_int_not_equal(event.type, DEVICE_LOST);
    }
    daemons_claim_from(1);
    daemons_next("");
    for (unsigned i = 1; i < DAEMONS_USUAL; i++) {
        daemons_take(daemons_usual[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DAEMONS_TEST(test_another_size),
        DAEMONS_TEST(test_nearly_the_same_size),
        DAEMONS_TEST(test_another_stretch),
        DAEMONS_TEST(test_more_shards),
        DAEMONS_TEST(test_devices),
        DAEMONS_TEST(test_another_owner),
        DAEMONS_TEST(test_first_is_missing),
        DAEMONS_TEST(test_something_is_missing),
        DAEMONS_TEST(test_dropped_is_not_missing),
        DAEMONS_TEST(test_lost_is_not_missing),
        DAEMONS_TEST(test_new_is_not_missing),
        DAEMONS_TEST(test_ends_before_it_says_so),
        DAEMONS_TEST(test_ends_before_it_says_all),
        DAEMONS_TEST(test_ends_before_it_is_noted),
        DAEMONS_TEST(test_ends_with_some),
        DAEMONS_TEST(test_ends_with_some_cleared),
        DAEMONS_TEST(test_ends_after_memory_was_lost),
        DAEMONS_TEST(test_loss_is_noted_at_once),
        DAEMONS_TEST(test_driver_refuses),
        DAEMONS_TEST(test_driver_refuses_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
