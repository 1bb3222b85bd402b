/*
 * The dense collectives among 1 to 33 members in one process, the choice behind "allreduce", and
 * the number of phases.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/rest.h"
#include "tests/unit/arrays.h"
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
    static const struct collective_ops *const kinds[] = {&collective_allreduce, &collective_oneshot,
        &collective_pairwise, &collective_ring, &collective_halving, &collective_nccl_allreduce};
    static const uint64_t even[] = {64, 8, 72, 9}, small[] = {1}, few[] = {2, 1, 1},
                          lopsided[] = {1, 997, 1, 3};

    (void)state;
    for (unsigned i = 0; i < 6 * COUNTS; i++) {
        const struct collective_ops *ops = kinds[i % 6];
        unsigned members = counts[i / 6];
        int values = i % 6 < 4 ? PAYLOAD_VALUE_INT8 : PAYLOAD_VALUE_BF16;
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
        run_dense(&collective_oneshot, members, PAYLOAD_VALUE_BF16, numel, 2, 10);
        run_dense(&collective_pairwise, members, PAYLOAD_VALUE_F32, numel, 2, 10);
        run_dense(&collective_ring, members, PAYLOAD_VALUE_F32, numel, 2, 10);
        run_dense(&collective_ring, members, PAYLOAD_VALUE_F16, numel, 2, 10);
        run_dense(&collective_halving, members, PAYLOAD_VALUE_F32, numel, 2, 20);
    }
}

/* The nearest bf16, halves away from zero, by its definition. */
static float nearest_bf16(float x)
{
    int exponent;
    double unit, units;

    (void)frexp((double)x, &exponent);
    unit = ldexp(1, exponent - 8 > -133 ? exponent - 8 : -133);
    units = (double)x / unit;
    return (float)(trunc(units + copysign(0.5, units)) * unit);
}

/* Checks that the result is the sum, scaled and rounded, and that its owner has the rounding error
 * as rest. */
static void check_rests(const struct bucket *bucket, const struct group *group, unsigned m)
{
    const struct exchange_rest *rests = &group->exchange[m].rest;
    uint64_t at = 0;

    for (unsigned t = 0; t < bucket->tensors; t++) {
        for (uint64_t i = 0; i < bucket->numel[t]; i++, at++) {
            float sum, got = bucket->tensor[0][t].dense[i];
            float back = 0;
            struct rest rest = {.rounded = &got, .first = i, .count = 1, .unscale = 1, .shrink = 1};
            if (at < rests->first || at >= rests->first + rests->count) {
                continue;
            }
            assert_true(bucket_sum(bucket, group, t, i, &sum));
            sum *= group->exchange[m].scale;
            assert_int_equal(bits_of(got), bits_of(nearest_bf16(sum)));
            rest.low = &rests->low[at - rests->first];
            rest_add(&rest, i, 1, &back);
            assert_true((double)back == (double)sum - (double)got);
        }
    }
}

/* The nearest number with this many digits from this exponent on; halves go to even. By its
 * definition. */
static double nearest_of(double x, int digits, int smallest)
{
    int exponent;
    double unit;

    (void)frexp(x, &exponent);
    unit = ldexp(1, exponent - digits > smallest ? exponent - digits : smallest);
    return nearbyint(x / unit) * unit;
}

/* Member m's contribution to an element. */
static double part_of(const struct bucket *bucket, unsigned m, unsigned t, uint64_t i)
{
    float part;

    memcpy(&part, &bucket->sent[m][t][i], sizeof(part));
    return (double)part;
}

/* A member that adds to an element in the ring keeps the rest, if there was room for one and the
 * sum arrived rounded. Returns the new sum. */
static float check_way(
    const struct bucket *bucket, const struct group *group, unsigned t, uint64_t i, uint64_t at)
{
    unsigned first = bucket_ring_owner(bucket, group->exchange[0].segment, t, i);
    double sum = 0 + part_of(bucket, first, t, i);
    bool wide = false;

    for (unsigned k = 0; k < group->members; k++) {
        unsigned m = (first + k) % group->members;
        const struct exchange *exchange = &group->exchange[m];
        float back = 0;
        struct rest rest = {.low = &exchange->rest.low[at],
            .type = (enum quantisation)exchange->value,
            .count = exchange->rest.count > 0 ? 1 : 0};
        double part = k > 0 ? part_of(bucket, m, t, i) : 0, exact = sum + part, moved = exact - sum;
        /* The rounding error of the double sum. */
        double below = (sum - (exact - moved)) + (part - moved);
        wide |= k > 0 && exchange->rest.count == 0;
        sum = wide                                   ? (double)(float)exact
              : exchange->value == PAYLOAD_VALUE_F16 ? nearest_of(exact, 11, -24)
                                                     : nearest_of(exact, 8, -133);
        rest_add(&rest, 0, 1, &back);
        assert_true((double)back == (wide ? 0 : exact - sum + below));
    }
    return (float)sum;
}

/* Checks that all members have the result of the ring, scaled. */
static void check_ring(const struct bucket *bucket, const struct group *group)
{
    uint64_t at = 0;

    for (unsigned t = 0; t < bucket->tensors; t++) {
        for (uint64_t i = 0; i < bucket->numel[t]; i++, at++) {
            float sum = check_way(bucket, group, t, i, at) * group->exchange[0].scale;
            assert_int_equal(bits_of(bucket->tensor[0][t].dense[i]), bits_of(sum));
        }
    }
}

/* Every member rounds its slice, and together they round all elements. In a ring a member rounds
 * the elements to which it adds. */
static void run_rests(const struct collective_ops *ops, unsigned members, enum payload_value value,
    const uint64_t *numel, unsigned tensors, uint64_t segment)
{
    struct group group;
    struct bucket bucket;
    int16_t *low[GROUP_MAX];
    uint64_t total = 0, rounded = 0;
    bool rounds;

    group_init(&group, ops, members);
    group_set_values(&group, value, members % 2 == 0 ? 1.0f : 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, tensors);
    for (unsigned t = 0; t < tensors; t++) {
        total += numel[t];
    }
    for (unsigned m = 0; m < members; m++) {
        uint64_t room = ops->traits.rests(members, total);
        low[m] = allocate(room, sizeof(**low));
        group.exchange[m].segment = segment;
        group.exchange[m].rest = (struct exchange_rest){.low = low[m], .room = room};
        for (unsigned t = 0; t < tensors; t++) {
            bucket_fill_dense(&bucket, &group, m, t);
        }
    }
    group_exchange(&group);
    group_finish(&group);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < tensors; t++) {
            assert_same_bits(bucket.tensor[m][t].dense, bucket.tensor[0][t].dense, numel[t]);
        }
        if (!ops->traits.partial) {
            check_rests(&bucket, &group, m);
        }
        rounded += group.exchange[m].rest.count;
    }
    rounds = value != PAYLOAD_VALUE_F32 && members > 1;
    assert_int_equal(rounded, !rounds ? 0 : ops->traits.partial ? members * total : total);
    if (ops->traits.partial && rounds) {
        check_ring(&bucket, &group);
    }
    for (unsigned m = 0; m < members; m++) {
        free(low[m]);
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_rests(void **state)
{
    static const uint64_t even[] = {64, 8, 72, 9}, small[] = {1}, lopsided[] = {1, 997, 1, 3},
                          large[] = {40000};

    (void)state;
    for (unsigned i = 0; i < 2 * COUNTS; i++) {
        const struct collective_ops *ops = i % 2 == 0 ? &collective_pairwise : &collective_ring;
        unsigned members = counts[i / 2];
        for (int value = PAYLOAD_VALUE_F32; value < PAYLOAD_VALUE_INT8; value++) {
            run_rests(ops, members, (enum payload_value)value, even, 4, 0);
            run_rests(ops, members, (enum payload_value)value, even, 4, 5);
            run_rests(ops, members, (enum payload_value)value, even, 4, 40);
            run_rests(ops, members, (enum payload_value)value, small, 1, 0);
            run_rests(ops, members, (enum payload_value)value, lopsided, 4, 0);
        }
        if (members > 2 && i % 2 == 0) {
            run_rests(&collective_allreduce, members, PAYLOAD_VALUE_BF16, large, 1, 0);
        }
    }
    assert_int_equal(collective_allreduce.traits.rests(2, 1000), 0);
}

/* If a slice does not fit into the room for rests, only contributions are rounded. */
static void test_no_room(void **state)
{
    uint64_t numel[] = {100};
    struct group group;
    struct bucket bucket;
    int16_t low[33];

    (void)state;
    group_init(&group, &collective_pairwise, 3);
    group_set_values(&group, PAYLOAD_VALUE_BF16, 1);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < 3; m++) {
        group.exchange[m].rest = (struct exchange_rest){.low = low, .room = m == 2 ? 0 : 32};
        bucket_fill_dense(&bucket, &group, m, 0);
    }
    group_exchange(&group);
    group_finish(&group);
    for (unsigned m = 0; m < 3; m++) {
        assert_int_equal(group.exchange[m].rest.count, 0);
    }
    bucket_check_dense(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

/* In a ring that holds from the member on that has no room for the whole bucket. */
static void test_ring_no_room(void **state)
{
    uint64_t numel[] = {100};
    struct group group;
    struct bucket bucket;
    int16_t low[4][100] = {{0}};

    (void)state;
    for (int value = PAYLOAD_VALUE_BF16; value < PAYLOAD_VALUE_INT8; value++) {
        group_init(&group, &collective_ring, 4);
        group_set_values(&group, (enum payload_value)value, 0.25f);
        bucket_init(&bucket, &group, numel, 1);
        for (unsigned m = 0; m < 4; m++) {
            group.exchange[m].rest =
                (struct exchange_rest){.low = low[m], .room = m == 2 ? 99 : 100};
            bucket_fill_dense(&bucket, &group, m, 0);
        }
        group_exchange(&group);
        group_finish(&group);
        for (unsigned m = 0; m < 4; m++) {
            assert_int_equal(group.exchange[m].rest.count, m == 2 ? 0 : 100);
            assert_same_bits(bucket.tensor[m][0].dense, bucket.tensor[0][0].dense, 100);
        }
        check_ring(&bucket, &group);
        bucket_free(&bucket);
        group_free(&group);
    }
}

/* The expected choice is computed by hand from the costs in allreduce.c. */
static void test_choice(void **state)
{
    static const struct collective_ops *const oneshot = &collective_oneshot,
                                              *const pairwise = &collective_pairwise,
                                              *const halving = &collective_halving;
    static const struct {
        unsigned members;
        uint64_t elements;
        enum payload_value value;
        const struct collective_ops *ops;
    } cases[] = {
        {1, 7, PAYLOAD_VALUE_F32, oneshot},
        {2, 1, PAYLOAD_VALUE_F32, oneshot},
        {2, 40950, PAYLOAD_VALUE_F32, oneshot},
        {2, 40970, PAYLOAD_VALUE_F32, pairwise},
        {2, 1 << 30, PAYLOAD_VALUE_BF16, oneshot},
        {3, 9452, PAYLOAD_VALUE_F32, oneshot},
        {3, 9453, PAYLOAD_VALUE_F32, pairwise},
        {3, 18904, PAYLOAD_VALUE_BF16, oneshot},
        {3, 18905, PAYLOAD_VALUE_F16, pairwise},
        {4, 2482, PAYLOAD_VALUE_F32, oneshot},
        {4, 2483, PAYLOAD_VALUE_F32, halving},
        {4, 54613, PAYLOAD_VALUE_F32, halving},
        {4, 54614, PAYLOAD_VALUE_F32, pairwise},
        {4, 13653, PAYLOAD_VALUE_BF16, oneshot},
        {4, 13654, PAYLOAD_VALUE_BF16, pairwise},
        {5, 5851, PAYLOAD_VALUE_F32, oneshot},
        {5, 5852, PAYLOAD_VALUE_F32, pairwise},
        {6, 2482, PAYLOAD_VALUE_F32, oneshot},
        {6, 2483, PAYLOAD_VALUE_F32, halving},
        {6, 7504, PAYLOAD_VALUE_F32, halving},
        {6, 7505, PAYLOAD_VALUE_F32, pairwise},
        {33, 1, PAYLOAD_VALUE_F32, halving},
        {33, 89000, PAYLOAD_VALUE_F32, halving},
        {33, 89100, PAYLOAD_VALUE_F32, pairwise},
        {1024, 1 << 20, PAYLOAD_VALUE_F32, halving},
        {1024, 1 << 20, PAYLOAD_VALUE_F16, pairwise},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct exchange_tensor tensor = {.numel = cases[i].elements};
        struct exchange exchange = {
            .members = cases[i].members, .tensors = 1, .tensor = &tensor, .value = cases[i].value};
        assert_int_equal(collective_allreduce.phases(&exchange), cases[i].ops->phases(&exchange));
        for (unsigned from = 1; from < cases[i].members; from++) {
            assert_int_equal(collective_allreduce.expects(&exchange, 0, from),
                cases[i].ops->expects(&exchange, 0, from));
        }
    }
}

/* An exchange has no more phases than a frame's header can count. */
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
            exchange.ops = ops;
            if (ops->traits.members_max == 0 || members <= ops->traits.members_max) {
                assert_in_range(ops->phases(&exchange), 1, EXCHANGE_PHASES_MAX);
            }
        }
    }
    assert_int_equal(collective_ring.traits.members_max, 129);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_rests),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_ring_no_room),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_phases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
