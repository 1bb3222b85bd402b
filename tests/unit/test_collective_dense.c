/*
 * The dense collectives among 1 to 33 members in one process, which of them "allreduce" is, and how
 * many phases there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/collective_bucket.h"

static const unsigned counts[] = GROUP_SIZES;
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static void run_dense(const struct collective_ops *ops, unsigned members, enum payload_value value,
    const uint64_t *numel, unsigned tensors, uint64_t segment)
{
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
    group_set_values(&group, value, members % 2 == 0 ? 1.0f : 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, tensors);
    for (unsigned m = 0; m < members; m++) {
        group.exchange[m].segment = segment;
        for (unsigned t = 0; t < tensors; t++) {
            bucket_fill_dense(&bucket, &group, m, t);
        }
    }
    group_exchange(&group);
    group_finish(&group);
    bucket_check_dense(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

static void test_dense(void **state)
{
    static const struct collective_ops *const kinds[] = {
        &collective_allreduce, &collective_pairwise, &collective_ring, &collective_halving};
    static const uint64_t even[] = {64, 8, 72, 9}, small[] = {1}, few[] = {2, 1, 1},
                          lopsided[] = {1, 997, 1, 3};

    (void)state;
    for (unsigned i = 0; i < 4 * COUNTS; i++) {
        const struct collective_ops *ops = kinds[i % 4];
        unsigned members = counts[i / 4];
        int values = i % 4 < 2 ? PAYLOAD_VALUE_INT8 : PAYLOAD_VALUE_BF16;
        for (int value = PAYLOAD_VALUE_F32; value < values; value++) {
            run_dense(ops, members, (enum payload_value)value, even, 4, 0);
            run_dense(ops, members, (enum payload_value)value, small, 1, 0); /* empty slices */
            run_dense(ops, members, (enum payload_value)value, few, 3, 0);
            run_dense(ops, members, (enum payload_value)value, lopsided, 4, 0);
        }
    }
}

/* Several segments, one after the other. */
static void test_segments(void **state)
{
    static const uint64_t numel[] = {100, 60};

    (void)state;
    for (unsigned members = 2; members <= 9; members++) {
        run_dense(&collective_pairwise, members, PAYLOAD_VALUE_F32, numel, 2, 10);
        run_dense(&collective_ring, members, PAYLOAD_VALUE_F32, numel, 2, 10);
        run_dense(&collective_halving, members, PAYLOAD_VALUE_F32, numel, 2, 20);
    }
}

/* By hand from the costs in allreduce.c. */
static void test_choice(void **state)
{
    static const struct {
        unsigned members;
        uint64_t elements;
        enum payload_value value;
        bool halving;
    } cases[] = {
        {2, 1, PAYLOAD_VALUE_F32, false},
        {3, 1, PAYLOAD_VALUE_F32, false},
        {4, 1, PAYLOAD_VALUE_F32, true},
        {4, 1 << 30, PAYLOAD_VALUE_F32, true},
        {4, 1, PAYLOAD_VALUE_BF16, false},
        {5, 4311, PAYLOAD_VALUE_F32, true},
        {5, 4312, PAYLOAD_VALUE_F32, false},
        {6, 8936, PAYLOAD_VALUE_F32, true},
        {6, 8937, PAYLOAD_VALUE_F32, false},
        {33, 106500, PAYLOAD_VALUE_F32, true},
        {33, 106700, PAYLOAD_VALUE_F32, false},
        {1024, 1 << 20, PAYLOAD_VALUE_F32, true},
        {1024, 1 << 20, PAYLOAD_VALUE_F16, false},
        {1, 7, PAYLOAD_VALUE_F32, false},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct exchange_tensor tensor = {.numel = cases[i].elements};
        struct exchange exchange = {
            .members = cases[i].members, .tensors = 1, .tensor = &tensor, .value = cases[i].value};
        const struct collective_ops *ops =
            cases[i].halving ? &collective_halving : &collective_pairwise;
        assert_int_equal(collective_allreduce.phases(&exchange), ops->phases(&exchange));
        for (unsigned from = 1; from < cases[i].members; from++) {
            assert_int_equal(
                collective_allreduce.expects(&exchange, 0, from), ops->expects(&exchange, 0, from));
        }
    }
}

/* What a frame's header cannot count does not exist. */
static void test_phases(void **state)
{
    struct exchange_tensor tensor = {
        .numel = 1 << 30, .shape = {.view = {1, 1 << 30, 1}, .max_count = 1}};

    (void)state;
    for (unsigned members = 1; members <= 1024; members++) {
        struct exchange exchange = {
            .members = members, .segment = 1000, .tensors = 1, .tensor = &tensor};
        for (unsigned i = 0; collective_table[i] != NULL; i++) {
            const struct collective_ops *ops = collective_table[i];
            if (ops->members_max == 0 || members <= ops->members_max) {
                assert_in_range(ops->phases(&exchange), 1, EXCHANGE_PHASES_MAX);
            }
        }
    }
    assert_int_equal(collective_ring.members_max, 129);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_phases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
