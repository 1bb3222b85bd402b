/*
 * The memory of a job: reservations before writes, and room in the store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/compute/layout_plan.h"
#include "daemon/compute/results.h"
#include "daemon/job/model.h"
#include "lone_core.h"

/* Updates of large tensors lie far apart, and lists fill only the beginning of their room. The core
 * reserves what it writes, also after a change that makes the lists longer. */
static void test_updates_are_reserved(void **state)
{
    const struct tensor_spec spec[] = {lone_spec("a", 2, (const uint64_t[]){500, 400}),
        lone_spec("b", 2, (const uint64_t[]){300, 500}),
        lone_spec("c", 2, (const uint64_t[]){500, 300})};
    struct lone_core lone;

    (void)state;
    lone_start(&lone, 2, "{" LONE_EXACT "}", spec, 3);
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_must_change(&lone, "{\"density\":0.3}");
    lone_must_change(&lone, "{\"sparsifier\":\"dense\"}");
    lone_free(&lone);
}

/* The rests of sums for which the store has room when two nodes sum a tensor in bf16. */
static uint64_t rests_of_two(uint64_t elements)
{
    const struct tensor_spec spec = lone_spec("a", 1, &elements);
    struct error err = {ADTOPK_OK, ""};
    struct lone_core lone;
    struct job *job;
    uint64_t rests;

    lone_start(&lone, 1, "{\"dense_values\":\"bf16\",\"dense_collective\":\"ring\"}", &spec, 1);
    job = lone.host.core->jobs;
    assert_int_equal(job->plan->rests, 0); /* one node sums nothing */
    job->agreement.views->founders = 2;
    assert_int_equal(layout_kept(job, job->plan, job->store->policies + 1, &err), ADTOPK_OK);
    rests = job->plan->rests;
    job->agreement.views->founders = 1;
    lone_free(&lone);
    return rests;
}

/* Rests of 2 bytes each take up to 32 MiB and a third of a byte per element. */
static void test_room_for_rests(void **state)
{
    (void)state;
    assert_int_equal(rests_of_two(1000), 1000);
    for (uint64_t elements = 16000000; elements < 24000000; elements += 500000) {
        bool fits = 2 * elements <= (UINT64_C(32) << 20) + elements / 3;
        assert_int_equal(rests_of_two(elements), fits ? elements : 0);
    }
}

/* Ranks say that they return, with more batches of tensors than any store of theirs can have. */
static void test_batches_of_no_store(void **state)
{
    const struct tensor_spec spec[] = {lone_spec("a", 1, (const uint64_t[]){8}),
        lone_spec("b", 1, (const uint64_t[]){8}), lone_spec("c", 1, (const uint64_t[]){8})};
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 0, "{" LONE_EXACT "}", NULL, 0);
    for (unsigned r = 0; r < 2; r++) {
        lone_must(&lone, lone_rank_event(&lone, r,
                             (struct event){.type = EVENT_RANK_OPEN,
                                 .open = {.key = {.owner = 1000, .name = "lone", .run_id = "1"},
                                     .rank = r,
                                     .world_size = 2,
                                     .run = 5,
                                     .batches = 3 - r,
                                     .returns = true}}));
    }
    for (unsigned i = 0; i < 5; i++) { /* the first rank has one batch more */
        const struct event describe = {.type = EVENT_RANK_REGISTER, .spec = &spec[i / 2]};
        lone_must(&lone, lone_rank_event(&lone, i % 2, describe));
        lone_must(&lone, lone_rank_event(&lone, i % 2, (struct event){.type = EVENT_RANK_COMMIT}));
        lone_must(&lone, lone_rank_event(&lone, i % 2, (struct event){.type = EVENT_RANK_MAPPED}));
    }
    assert_int_equal(lone.failed, 2);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_MISMATCH);
    assert_non_null(strstr(lone.failure.text, "rank 0 returns to job 'lone' after 3 commits"));
    lone_free(&lone);
}

static enum adtopk_status reserve_later(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    (void)context;
    (void)job;
    (void)batch;
    (void)piece;
    (void)pieces;
    (void)err;
    *later = true;
    return ADTOPK_OK;
}

/* Starts a core with one job, whose reservations end when the test says so. */
static struct job *start_reserving_later(struct lone_core *lone)
{
    const struct tensor_spec spec = lone_spec("a", 1, (const uint64_t[]){100});

    lone_start(lone, 1, "{" LONE_EXACT "}", &spec, 1);
    lone->host.core->config.memory.reserve_results = reserve_later;
    return lone->host.core->jobs;
}

/* What the last reservation of a job came to. */
static struct reserved {
    unsigned calls;
    enum adtopk_status code;
} reserved_;

static void note_reserved(struct job *job, const struct error *error)
{
    (void)job;
    reserved_.calls++;
    reserved_.code = error != NULL ? error->code : ADTOPK_OK;
}

/* A reservation whose policy was called off fails while that of the next policy waits. That one is
 * told of its own errors only. */
static void test_reservation_that_is_stale(void **state)
{
    const struct error none = {ADTOPK_ERR_MEMORY, "no room"};
    struct error err = {ADTOPK_OK, ""};
    struct lone_core lone;
    struct job *job = start_reserving_later(&lone);

    (void)state;
    for (unsigned fails = 0; fails < 2; fails++) {
        reserved_ = (struct reserved){0};
        assert_int_equal(results_reserve(job, job->plan, note_reserved, &err), ADTOPK_OK);
        assert_int_equal(results_reserve(job, job->plan, note_reserved, &err), ADTOPK_OK);
        results_reserved(job->core, job->number, fails == 0 ? &none : NULL);
        assert_int_equal(reserved_.calls, 0);
        results_reserved(job->core, job->number, fails == 1 ? &none : NULL);
        assert_int_equal(reserved_.calls, 1);
        assert_int_equal(reserved_.code, fails == 0 ? ADTOPK_OK : ADTOPK_ERR_MEMORY);
    }
    lone_free(&lone);
}

/* A policy is called off while it waits for its memory, and the next one has not got so far: what
 * comes is nobody's. */
static void test_reservation_that_is_forgotten(void **state)
{
    struct error err = {ADTOPK_OK, ""};
    struct lone_core lone;
    struct job *job = start_reserving_later(&lone);

    (void)state;
    reserved_ = (struct reserved){0};
    assert_int_equal(results_reserve(job, job->plan, note_reserved, &err), ADTOPK_OK);
    results_forget_reserved(job, NULL); /* somebody else's */
    results_forget_reserved(job, note_reserved);
    results_reserved(job->core, job->number, NULL);
    assert_int_equal(reserved_.calls, 0);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_are_reserved),
        cmocka_unit_test(test_room_for_rests),
        cmocka_unit_test(test_batches_of_no_store),
        cmocka_unit_test(test_reservation_that_is_stale),
        cmocka_unit_test(test_reservation_that_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
