/* The memory with which users are charged, over memory that consists of numbers only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "daemon/core/inspect.h"
#include "daemon/loop/quota.h"

#define USER 4001u
#define OTHER 4002u

static uint64_t percent; /* one percent of this machine's memory */
static char bytes[1];

/* ---- a core: the jobs 40010 to 40019 belong to user 4001, and so on; each has one session, of the
 * same number ---- */

static const struct job_key *key_of(uint64_t number)
{
    static struct job_key key;

    key.owner = (uint32_t)(number / 10);
    return &key;
}

const struct job_key *core_job_key(const struct core *core, uint64_t id)
{
    (void)core;
    return key_of(id);
}

const struct job_key *core_session_key(const struct core *core, session_id session)
{
    (void)core;
    return key_of(session);
}

uint64_t core_session_job(const struct core *core, session_id session)
{
    (void)core;
    return session;
}

uint32_t core_jobs_beside(const struct core *core, const struct job_key *key)
{
    (void)core;
    return key->owner == USER ? 3 : 0;
}

/* ---- memory that gives all that the core asks for ---- */

static const void *give_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    (void)context;
    (void)session;
    (void)batch;
    (void)size;
    (void)err;
    return bytes;
}

static void *give_store(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    (void)context;
    (void)job;
    (void)part;
    (void)size;
    (void)shown;
    (void)err;
    *existing = false;
    return bytes;
}

static bool results_later, results_fail;

static enum adtopk_status give_results(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    (void)context;
    (void)job;
    (void)batch;
    (void)piece;
    (void)pieces;
    *later = results_later;
    return results_fail ? error_set(err, ADTOPK_ERR_SYSTEM, "no descriptor") : ADTOPK_OK;
}

static void drop_store(void *context, uint64_t job, unsigned part)
{
    (void)context;
    (void)job;
    (void)part;
}

static void release(void *context, uint64_t number)
{
    (void)context;
    (void)number;
}

/* ---- the scene ---- */

static struct quota_limits limits;
static struct quota *quota;
static struct core_memory memory;

static int start(void **state)
{
    static const struct core_memory inner = {.gradients = give_gradients,
        .store = give_store,
        .reserve_results = give_results,
        .drop_store = drop_store,
        .release_session = release,
        .release_job = release};

    (void)state;
    percent = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 100;
    limits = (struct quota_limits){.memory_percent = 50, .jobs = 3};
    quota = quota_create(&limits);
    assert_non_null(quota);
    memory = quota_memory(quota, &inner);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    quota_destroy(quota);
    return 0;
}

static bool store(uint64_t job, unsigned part, uint64_t percents)
{
    bool existing;
    struct error err = {.code = ADTOPK_OK};
    const bool given =
        memory.store(memory.context, job, part, percents * percent, false, &existing, &err) != NULL;

    assert_true(given || (err.code == ADTOPK_ERR_MEMORY && strstr(err.text, "user ") == err.text));
    return given;
}

static bool gradients(session_id session, uint64_t percents)
{
    struct error err;

    return memory.gradients(memory.context, session, 0, percents * percent, &err) != NULL;
}

static bool results(uint64_t job, uint64_t percents)
{
    const struct core_piece piece = {.size = percents * percent};
    struct error err;
    bool later;

    return memory.reserve_results(memory.context, job, 0, &piece, 1, &later, &err) == ADTOPK_OK;
}

/* Reserves two pieces of results at these places, with these sizes. */
static bool two_results(uint64_t job, uint64_t first, uint64_t second, uint64_t percents)
{
    const struct core_piece piece[] = {{.offset = first * percent, .size = percents * percent},
        {.offset = second * percent, .size = percents * percent}};
    struct error err;
    bool later;

    return memory.reserve_results(memory.context, job, 0, piece, 2, &later, &err) == ADTOPK_OK;
}

static bool affords(uint32_t uid, uint64_t percents)
{
    struct error err;

    return quota_afford(quota, uid, percents * percent, &err) == ADTOPK_OK;
}

/* A part that the job has already is charged once, with its new size. */
static void test_a_part_again(void **state)
{
    (void)state;
    assert_true(store(USER * 10 + 1, 2, 30));
    assert_true(store(USER * 10 + 1, 2, 30));
    assert_true(store(USER * 10 + 1, 2, 40));
    assert_true(affords(USER, 9));
    assert_false(affords(USER, 11));
    assert_true(store(USER * 10 + 1, 2, 10));
    assert_true(affords(USER, 39));
    assert_false(store(USER * 10 + 1, 2, 51));
    assert_true(affords(USER, 39));
}

/* The memory of a job is that of its stores, its results and its sessions' gradients. */
static void test_memory_of_a_job(void **state)
{
    const uint64_t job = USER * 10 + 1, other = USER * 10 + 2;

    (void)state;
    assert_int_equal(quota_job_bytes(quota, job), 0);
    assert_true(store(job, 2, 3));
    assert_true(store(other, 2, 5));
    assert_true(results(job, 2));
    assert_true(gradients(job, 4));
    assert_int_equal(quota_job_bytes(quota, job), 9 * percent);
    assert_int_equal(quota_job_bytes(quota, other), 5 * percent);
    memory.release_session(memory.context, job);
    assert_int_equal(quota_job_bytes(quota, job), 5 * percent);
    memory.release_job(memory.context, job);
    assert_int_equal(quota_job_bytes(quota, job), 0);
}

/* The tensors of a session count before it commits. */
static void test_tensors(void **state)
{
    const session_id session = USER * 10 + 1;
    const uint64_t fit = percent / 8192;
    struct error err = {.code = ADTOPK_OK};

    (void)state;
    limits.memory_percent = 1;
    for (uint64_t i = 0; i < fit; i++) {
        assert_int_equal(quota_register(quota, session, &err), ADTOPK_OK);
    }
    assert_int_equal(quota_register(quota, session, &err), ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(err.text, "user_memory"));
    assert_int_equal(quota_register(quota, OTHER * 10 + 1, &err), ADTOPK_OK);
    memory.release_session(memory.context, session);
    assert_int_equal(quota_register(quota, session, &err), ADTOPK_OK);
}

static void test_all_parts_count(void **state)
{
    (void)state;
    assert_true(gradients(USER * 10 + 1, 10));
    assert_true(results(USER * 10 + 1, 10));
    assert_true(results(USER * 10 + 1, 20)); /* ten more */
    assert_true(store(USER * 10 + 1, 0, 10));
    assert_true(store(USER * 10 + 2, 1, 9));
    assert_false(gradients(USER * 10 + 2, 2));
    assert_false(results(USER * 10 + 2, 2));
    assert_true(affords(OTHER, 45)); /* the memory of others matters only when little is left */
    memory.drop_store(memory.context, USER * 10 + 1, 0);
    assert_true(affords(USER, 10));
    memory.release_job(memory.context, USER * 10 + 1);
    assert_true(affords(USER, 30));
    memory.release_session(memory.context, USER * 10 + 1);
    assert_true(affords(USER, 40));
    assert_false(affords(USER, 42));
}

/* Only what was reserved is charged. */
static void test_results_that_fail(void **state)
{
    const uint64_t job = USER * 10 + 1;

    (void)state;
    assert_true(results(job, 10));
    results_fail = true;
    assert_false(results(job, 20));
    results_fail = false;
    assert_int_equal(quota_job_bytes(quota, job), 10 * percent);
    results_later = true;
    for (unsigned ok = 0; ok < 2; ok++) {
        assert_true(results(job, 20));
        assert_int_equal(quota_job_bytes(quota, job), 20 * percent); /* until it is known */
        quota_reserved(quota, job, ok > 0);
        assert_int_equal(quota_job_bytes(quota, job), (ok > 0 ? 20 : 10) * percent);
    }
    assert_true(results(job, 25));
    assert_true(two_results(job, 0, 30, 10));
    quota_reserved(quota, job, true);
    quota_reserved(quota, job, false);
    assert_int_equal(quota_job_bytes(quota, job), 35 * percent); /* which one it was is not known */
    results_later = false;
}

/* If another policy needs results at other places they take more memory. Earlier reservations stay.
 */
static void test_results_elsewhere(void **state)
{
    (void)state;
    assert_true(two_results(USER * 10 + 1, 0, 40, 10));
    assert_true(two_results(USER * 10 + 1, 20, 60, 10));
    assert_true(affords(USER, 10));
    assert_false(affords(USER, 11));
    assert_true(two_results(USER * 10 + 1, 5, 45, 10)); /* half of each is new */
    assert_false(affords(USER, 1));
    assert_true(two_results(USER * 10 + 1, 0, 60, 10));
    assert_false(two_results(USER * 10 + 1, 80, 100, 10));
    memory.release_job(memory.context, USER * 10 + 1);
    assert_true(affords(USER, 50));
}

static void test_the_last_part_is_roots(void **state)
{
    (void)state;
    assert_true(store(USER * 10 + 1, 0, 50));
    assert_true(store(OTHER * 10 + 1, 0, 44));
    assert_false(affords(OTHER, 2));
    assert_true(store(1, 0, 5)); /* root's job */
    assert_true(affords(0, 100));
    assert_false(affords(USER + 9, 1));
}

static void test_jobs(void **state)
{
    const struct job_key own = {.owner = USER}, other = {.owner = OTHER}, root = {.owner = 0};
    struct error err;

    (void)state;
    assert_int_equal(quota_open(quota, &own, &err), ADTOPK_ERR_DENIED);
    assert_non_null(strstr(err.text, "has 3 jobs"));
    assert_int_equal(quota_open(quota, &other, &err), ADTOPK_OK);
    assert_int_equal(quota_open(quota, &root, &err), ADTOPK_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_part_again),
        TEST(memory_of_a_job),
        TEST(tensors),
        TEST(all_parts_count),
        TEST(results_that_fail),
        TEST(results_elsewhere),
        TEST(the_last_part_is_roots),
        TEST(jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
