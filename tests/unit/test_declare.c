/*
 * Which residuals a node reads to tell their magnitudes, and when: as much in a second as a job may
 * have read, one tensor after the other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/job/declare.h"

#define TENSORS 6u
#define SECOND UINT64_C(1000000)
#define MIB (UINT64_C(1) << 20)

struct bench {
    struct core core;
    struct plan plan;
    struct tensor tensor[TENSORS];
    struct store_tensor store[TENSORS];
    struct plan_tensor planned[TENSORS];
    struct job job;
};

/* elements: of each tensor. */
static void begin(struct bench *bench, const uint64_t elements[TENSORS])
{
    *bench = (struct bench){.plan = {.tensor = bench->planned}};
    bench->plan.policy.on_peer_loss = PEER_LOSS_SHRINK;
    bench->job = (struct job){.core = &bench->core,
        .plan = &bench->plan,
        .tensor = bench->tensor,
        .tensors = TENSORS,
        .ranks = 2};
    for (unsigned t = 0; t < TENSORS; t++) {
        bench->store[t].filled = 1;
        bench->tensor[t].numel = elements[t];
        bench->tensor[t].store = &bench->store[t];
    }
}

/* A step is closed at this time. It reads the tensors from `first` up to `end`. */
static void expect_read(struct bench *bench, uint64_t now_us, uint32_t first, uint32_t end)
{
    const struct work *work = &bench->job.step.settle;

    bench->core.now_us = now_us;
    declare_begin(&bench->job);
    assert_int_equal(work->measure_end - work->measure, end - first);
    if (end > first) {
        assert_int_equal(work->measure, first);
    }
    if (bench->job.figures.tells) {
        bench->job.figures.told_us = now_us; /* as declare_tell() notes */
    }
}

/* 8 MiB each but the third, which has 128 MiB. */
static void test_pace(void **state)
{
    static const uint64_t elements[TENSORS] = {
        2 * MIB, 2 * MIB, 32 * MIB, 2 * MIB, 2 * MIB, 2 * MIB};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    expect_read(&bench, 1, 0, 3);
    expect_read(&bench, SECOND / 2, 0, 0);
    assert_false(bench.job.figures.tells);
    for (uint64_t second = 1; second <= 4; second++) { /* 144 MiB take 4.5 s */
        expect_read(&bench, second * SECOND + 1, 0, 0);
        assert_true(bench.job.figures.tells);
    }
    expect_read(&bench, 5 * SECOND + 1, 3, 6);
    expect_read(&bench, 6 * SECOND + 1, 0, 3);
}

/* A residual for each of two ranks is twice as much to read. */
static void test_ranks(void **state)
{
    static const uint64_t elements[TENSORS] = {
        2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    expect_read(&bench, 1, 0, 4);
    expect_read(&bench, SECOND + 1, 4, 6);
    for (unsigned t = 0; t < TENSORS; t++) {
        bench.planned[t].by_rank = true;
    }
    expect_read(&bench, 2 * SECOND + 1, 0, 2);
    expect_read(&bench, 3 * SECOND + 1, 2, 4);
}

/* A job that waits for lost nodes tells nothing. It reads less, for statistics. */
static void test_nobody_asks(void **state)
{
    static const uint64_t elements[TENSORS] = {MIB, MIB, 6 * MIB, 1, 1, 1};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    bench.plan.policy.on_peer_loss = PEER_LOSS_WAIT;
    expect_read(&bench, 1, 0, 2);
    expect_read(&bench, SECOND, 0, 0);
    expect_read(&bench, SECOND + 1, 2, 3);
    expect_read(&bench, 4 * SECOND, 0, 0);
    expect_read(&bench, 4 * SECOND + 1, 3, 6); /* 24 MiB took three seconds */
    expect_read(&bench, 5 * SECOND, 0, 0);
    expect_read(&bench, 5 * SECOND + 1, 0, 2);
    assert_false(bench.job.figures.tells);
}

/* Tensors that are sent whole have no residual, and take no time of the others. What is read counts
 * as part of the compute. */
static void test_not_filled(void **state)
{
    static const uint64_t elements[TENSORS] = {600 * MIB, MIB, 600 * MIB, MIB, 600 * MIB, MIB};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    for (unsigned t = 0; t < TENSORS; t += 2) {
        bench.store[t].filled = 0;
    }
    expect_read(&bench, 1, 0, TENSORS);
    bench.core.now_us = SECOND;
    assert_int_equal(declare_begin(&bench.job), 0);
    bench.core.now_us = SECOND + 1;
    assert_int_equal(declare_begin(&bench.job), 12 * MIB);
}

/* A step that is withdrawn reads, too. */
static void test_withdrawn(void **state)
{
    static const uint64_t elements[TENSORS] = {1, 1, 1, 1, 1, 1};
    struct store_header header = {.steps_done = 7};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    bench.job.store = &header;
    bench.job.step.machine.state = STEP_WITHDRAW;
    expect_read(&bench, 1, 0, TENSORS);
    bench.tensor[3].magnitude = 5;
    declare_tell(&bench.job);
    assert_int_equal(bench.tensor[3].read.step, 7);
    assert_true(bench.tensor[3].read.magnitude == 5);
}

/* The pace is that of the policy in force. */
static void test_pace_changes(void **state)
{
    static const uint64_t elements[TENSORS] = {32 * MIB, 1, 1, 1, 1, 1};
    struct bench bench;

    (void)state;
    begin(&bench, elements);
    bench.plan.policy.on_peer_loss = PEER_LOSS_WAIT;
    expect_read(&bench, 1, 0, 1);
    expect_read(&bench, 4 * SECOND + 1, 0, 0); /* 128 MiB take 16 s */
    bench.plan.policy.on_peer_loss = PEER_LOSS_SHRINK;
    expect_read(&bench, 4 * SECOND + 2, 1, TENSORS);
}

/* Node 2 was lost and joins anew, and this node did not hear of the view between: its view before
 * the next one is the one with node 2. kept: it comes back with its residuals. */
static struct lost_info lost_unheard(bool kept)
{
    static struct views views;
    struct store_header header = {.steps_done = 9};
    uint64_t since[] = {0, 0, 0}, anew[] = {0, 0, SINCE_UNKNOWN};
    uint16_t node[] = {0, 1, 2};
    uint32_t returned[] = {2};
    struct member member = {.node = 2, .residual = {.told = true, .step = 8, .sums = {5, -3}}};
    struct member *members[] = {&member};
    struct core core = {.now_us = 1};
    struct job job = {.core = &core, .store = &header, .member = members, .members = 1};
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    struct declared declared = {.nodes = 0};

    job.in_force = (struct membership){.node = node, .since = since, .nodes = 3};
    job.agreement.members = (struct membership){.node = node, .since = anew, .nodes = 3};
    job.agreement.views = &views;
    commit.kept = returned;
    commit.n_kept = kept ? 1 : 0;
    assert_true(declare_returns(&job, &commit, &declared));
    declare_lost(&job, &declared);
    assert_int_equal(declared.nodes, 0); /* nobody can withdraw it any more */
    assert_int_equal(member.residual.told, kept);
    return declared_total(&declared);
}

static void test_view_was_not_heard(void **state)
{
    const struct lost_info lost = lost_unheard(false);

    (void)state;
    assert_int_equal(lost.nodes, 1);
    assert_int_equal(lost.unknown, 0);
    assert_int_equal(lost.step, 8);
    assert_true(lost.sums[0] == 5 && lost.sums[1] == -3);
    assert_int_equal(lost_unheard(true).nodes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_nobody_asks),
        cmocka_unit_test(test_not_filled),
        cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_pace_changes),
        cmocka_unit_test(test_view_was_not_heard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
