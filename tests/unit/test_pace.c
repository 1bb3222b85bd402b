/* The times that the core tells: the pace of local ranks, and how long phases took. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/lone_core.h"

static struct rank_info rank_of(const struct lone_core *lone, unsigned rank)
{
    struct rank_info info;

    assert_true(core_rank_info(lone->host.core, lone->job, rank, &info));
    assert_int_equal(info.number, rank);
    return info;
}

/* A job of two ranks whose clock moves only where a test moves it. */
static void pace_begin(struct lone_core *lone)
{
    lone_begin(lone, "{" LONE_EXACT "}");
    lone->host.tick_us = 0;
}

static void pace_end(struct lone_core *lone)
{
    lone_leave(lone);
    lone_free(lone);
}

/* One rank pushes every tensor; the last push is at this time of the host's clock. */
static void push_at(struct lone_core *lone, unsigned rank, uint64_t at_us)
{
    for (uint32_t t = 0; t < lone->tensors; t++) {
        lone->host.now_us = at_us;
        lone_must(lone, lone_push(lone, rank, t));
    }
}

/* Takes a step in which the last push of rank 0 comes 1,000 us after the end of the step before,
 * and that of rank 1 by this time later. */
static void late_step(struct lone_core *lone, uint64_t late_us)
{
    const uint64_t from = lone->host.now_us + 1000;

    push_at(lone, 0, from);
    push_at(lone, 1, from + late_us);
    lone_end_all(lone);
    lone_close(lone);
}

static void test_paces_of_two_ranks(void **state)
{
    struct lone_core lone;

    (void)state;
    pace_begin(&lone);
    late_step(&lone, 500); /* before it no step ended */
    assert_int_equal(rank_of(&lone, 1).pace_steps, 0);
    late_step(&lone, 30);
    late_step(&lone, 90);
    assert_int_equal(rank_of(&lone, 0).pace_steps, 2);
    assert_true(rank_of(&lone, 0).pace_us == 1000);
    assert_true(rank_of(&lone, 1).pace_us == 1060);
    assert_int_equal(rank_of(&lone, 1).pace_last_us, 1090);
    assert_false(core_rank_info(lone.host.core, lone.job, 2, &(struct rank_info){.number = 0}));
    pace_end(&lone);
}

/* A step that a rank ends late counts as long, although no push was late. The other rank of the
 * node has to wait for the end, and its pace has that time, too. */
static void test_late_end(void **state)
{
    struct lone_core lone;

    (void)state;
    pace_begin(&lone);
    for (unsigned i = 0; i < 2; i++) {
        push_at(&lone, 0, lone.host.now_us + 10);
        push_at(&lone, 1, lone.host.now_us);
        lone.host.now_us += 500;
        lone_end_all(&lone);
        lone_close(&lone);
    }
    assert_int_equal(rank_of(&lone, 0).pace_last_us, 510);
    assert_int_equal(rank_of(&lone, 1).pace_last_us, 510);
    pace_end(&lone);
}

static void test_old_steps_fade(void **state)
{
    struct lone_core lone;

    (void)state;
    pace_begin(&lone);
    late_step(&lone, 0);
    late_step(&lone, 1000000);
    for (unsigned i = 0; i < 1000; i++) {
        late_step(&lone, 10);
    }
    assert_true(rank_of(&lone, 1).pace_us > 1010);
    assert_true(rank_of(&lone, 1).pace_us < 1011);
    pace_end(&lone);
}

static void test_withdrawn_steps_do_not_count(void **state)
{
    struct lone_core lone;

    (void)state;
    pace_begin(&lone);
    late_step(&lone, 0);
    late_step(&lone, 30);
    lone_withdraw(&lone);
    assert_int_equal(rank_of(&lone, 1).pace_steps, 1);
    assert_int_equal(rank_of(&lone, 1).pace_last_us, 1030);
    pace_end(&lone);
}

static void test_what_a_rank_does(void **state)
{
    struct lone_core lone;

    (void)state;
    pace_begin(&lone);
    late_step(&lone, 30);
    lone_must(&lone, lone_push(&lone, 1, 0));
    assert_false(rank_of(&lone, 0).pushed);
    assert_true(rank_of(&lone, 1).pushed);
    assert_int_equal(rank_of(&lone, 1).step, 1);
    lone_must(&lone, lone_push(&lone, 1, 1));
    lone_must(&lone, lone_push(&lone, 1, 2));
    lone_must(&lone, lone_end(&lone, 1));
    assert_true(rank_of(&lone, 1).ended);
    assert_false(rank_of(&lone, 0).ended);
    push_at(&lone, 0, lone.host.now_us + 5);
    lone_must(&lone, lone_end(&lone, 0));
    lone_close(&lone);
    pace_end(&lone);
}

/* A length of 2^i microseconds is the last one that the i-th number counts. */
static void test_lengths_of_phases(void **state)
{
    static const struct {
        uint64_t us;
        unsigned bucket;
    } cases[] = {{0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {1024, 10}, {1025, 11},
        {UINT64_C(1) << 24, 24}, {(UINT64_C(1) << 24) + 1, 25}, {UINT64_C(1) << 26, 25}};
    uint64_t expected[PHASE_BUCKETS] = {0};
    struct lone_core lone;
    struct job_info info;

    (void)state;
    pace_begin(&lone);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t opened = lone.host.now_us;

        push_at(&lone, 0, opened);
        push_at(&lone, 1, opened + cases[i].us);
        lone_end_all(&lone);
        lone_close(&lone);
        assert_true(core_find_job(lone.host.core, lone.job, &info));
        expected[cases[i].bucket] += info.buckets;
        assert_memory_equal(info.phases.counts[PHASE_COLLECT], expected, sizeof(expected));
    }
    pace_end(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paces_of_two_ranks),
        cmocka_unit_test(test_late_end),
        cmocka_unit_test(test_old_steps_fade),
        cmocka_unit_test(test_withdrawn_steps_do_not_count),
        cmocka_unit_test(test_what_a_rank_does),
        cmocka_unit_test(test_lengths_of_phases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
