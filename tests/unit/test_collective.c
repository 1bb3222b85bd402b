/*
 * The collectives among 1 to 33 members in one process. Their sums are compared with sums in double
 * precision, and, bit for bit, with sums in the order that each collective documents.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/arrays.h"
#include "tests/unit/collective_bucket.h"

static const unsigned counts[] = GROUP_SIZES;
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

/* percent: one per member in turn, at most nine. */
static void run_lists(const struct collective_ops *ops, unsigned members, enum payload_value value,
    const uint64_t numel[4], const unsigned percent[9])
{
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
    group_set_values(&group, value, 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, 4);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < 4; t++) {
            bucket_fill_list(&bucket, &group, m, t, percent[m % 9]);
            if (ops->traits.scatters && m % 3 != 0) {
                bucket_want_dense(&bucket, m, t, m % 3 == 2);
            }
        }
    }
    group_exchange(&group);
    group_finish(&group);
    bucket_check_lists(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

/* Sums that are sent again and must not be rounded are the exact sums of all lists. */
static void test_sparse(void **state)
{
    static const struct collective_ops *const kinds[] = {
        &collective_allgather,
        &collective_balanced,
        &collective_hierarchical,
        &collective_nccl_balanced,
        &collective_nccl_allgather,
    };
    const unsigned kinds_count = sizeof(kinds) / sizeof(kinds[0]);
    static const unsigned even[] = {10, 10, 10, 10, 10, 10, 10, 10, 10};
    static const unsigned empty[] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    static const unsigned lopsided[] = {0, 100, 0, 1, 50, 0, 2, 100, 0};
    static const unsigned full[] = {100, 100, 100, 100, 100, 100, 100, 100, 100};
    static const uint64_t numel[4] = {1000, 1, 130, 7};

    (void)state;
    for (unsigned i = 0; i < kinds_count * COUNTS; i++) {
        const struct collective_ops *ops = kinds[i % kinds_count];
        unsigned members = counts[i / kinds_count];
        for (int value = PAYLOAD_VALUE_F32; value < PAYLOAD_VALUE_COUNT; value++) {
            if ((ops->traits.values & 1u << value) == 0) {
                continue;
            }
            run_lists(ops, members, (enum payload_value)value, numel, even);
            run_lists(ops, members, (enum payload_value)value, numel, empty);
            run_lists(ops, members, (enum payload_value)value, numel, lopsided);
            run_lists(ops, members, (enum payload_value)value, numel, full);
        }
    }
}

/* The lists are so large that they are decoded and merged in parts. */
static void test_sparse_in_parts(void **state)
{
    static const uint64_t numel[4] = {9, 100000, 1, 70000};
    static const unsigned percent[9] = {90, 20, 60, 50, 0};

    (void)state;
    for (unsigned members = 2; members <= 5; members++) {
        run_lists(&collective_allgather, members, PAYLOAD_VALUE_F32, numel, percent);
        run_lists(&collective_balanced, members, PAYLOAD_VALUE_F32, numel, percent);
        run_lists(&collective_hierarchical, members, PAYLOAD_VALUE_F32, numel, percent);
    }
}

/* A list is cut into as many segments as its entries allow, and fibres are not cut. The sum has the
 * same bits for any number of segments. */
static void run_segments(unsigned members, uint64_t segment, uint64_t fibres, unsigned wanted)
{
    static const uint64_t numel[4] = {3000, 1, 130, 7};
    const unsigned percent[4] = {20, 100, 0, 60};
    struct group group;
    struct bucket bucket;

    group_init(&group, &collective_allgather, members);
    group_set_values(&group, PAYLOAD_VALUE_BF16, 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, 4);
    for (unsigned m = 0; m < members; m++) {
        group.exchange[m].segment = segment;
        for (unsigned t = 0; t < 4; t++) {
            bucket_fill_list(&bucket, &group, m, t, percent[(m + t) % 4]);
            bucket.tensor[m][t].select = numel[t] / 5;
            if (m % 3 != 0) {
                bucket_want_dense(&bucket, m, t, m % 3 == 2);
            }
        }
        bucket.tensor[m][0].shape.view = (struct view){fibres, numel[0] / fibres, 1};
    }
    assert_int_equal(collective_allgather.phases(&group.exchange[0]), wanted);
    group_exchange(&group);
    group_finish(&group);
    bucket_check_lists(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

static void test_segments(void **state)
{
    (void)state;
    for (unsigned members = 2; members <= 5; members++) {
        run_segments(members, 64 * 600, 1, 1); /* with 627 entries */
        run_segments(members, 64 * 280, 1, 2);
        run_segments(members, 64 * 93, 1, 5);
        run_segments(members, 64 * 7, 1, EXCHANGE_SEGMENTS_MAX);
        run_segments(members, 64 * 7, 30, EXCHANGE_SEGMENTS_MAX);
        run_segments(members, 64 * 7, 3, EXCHANGE_SEGMENTS_MAX); /* some segments have no entries */
    }
    run_segments(1, 64, 1, 1);
}

/* A list that is longer than a node's may be is refused, although each of its segments is short.
 * The error blames the sender. */
static void test_long_segments(void **state)
{
    static const uint64_t numel[1] = {3000};
    struct error err = {ADTOPK_OK, ""};
    struct group group;
    struct bucket bucket;

    (void)state;
    group_init(&group, &collective_allgather, 3);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < 3; m++) {
        group.exchange[m].segment = 64 * 7;
        bucket_fill_list(&bucket, &group, m, 0, m == 1 ? 100 : 20);
        bucket.tensor[m][0].select = numel[0] / 5;
        bucket.tensor[m][0].shape.max_count = 1000;
    }
    group_produce(&group, 0);
    for (unsigned phase = 1; phase < EXCHANGE_SEGMENTS_MAX && err.code == ADTOPK_OK; phase++) {
        (void)group.ops->produce(&group.exchange[0], phase, &err);
    }
    assert_int_equal(err.code, ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, "node 307 "));
    bucket_free(&bucket);
    group_free(&group);
}

/* Several frames that are decoded at the same time are bad. The error names the lowest node,
 * whichever frame was decoded first. */
static void test_bad_frames_in_parts(void **state)
{
    static const uint64_t numel[] = {100000};
    struct group group;
    struct bucket bucket;

    (void)state;
    group_init(&group, &collective_allgather, 4);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < 4; m++) {
        bucket_fill_list(&bucket, &group, m, 0, 60);
    }
    group_exchange(&group);
    for (unsigned bad = 3; bad > 0; bad--) {
        struct payload_writer writer = group_begin(&group, 0, bad);
        assert_int_equal(payload_put_bytes(&writer, numel, sizeof(numel)), ADTOPK_OK);
        group_end(&group, 0, bad, 0, &writer);
        group_assert_blamed(&group, 0, bad, 0);
    }
    bucket_free(&bucket);
    group_free(&group);
}

/* Sums of nearly all elements are sent as all elements, and sums that are 0 are not listed. */
static void test_full_lists(void **state)
{
    static const uint64_t numel[] = {90};

    (void)state;
    for (unsigned i = 1; i < COUNTS; i++) {
        struct group group;
        struct bucket bucket;
        group_init(&group, &collective_hierarchical, counts[i]);
        bucket_init(&bucket, &group, numel, 1);
        for (unsigned m = 0; m < counts[i]; m++) {
            struct exchange_tensor *tensor = &bucket.tensor[m][0];
            bucket_fill_list(&bucket, &group, m, 0, 100);
            for (unsigned e = 0; e < 90; e++) {
                tensor->sent.value[e] = e != 30 ? (float)(e + 1) : m == 0 ? 1.0f : -1.0f;
                bucket.sent[m][0][e] = bits_of(tensor->sent.value[e]);
            }
        }
        group_exchange(&group);
        if (counts[i] == 4) {
            struct payload_reader reader;
            const struct group_frame *frame = &group.frame[1][0][2];
            assert_int_equal(payload_open(&reader, frame->bytes, frame->size, NULL), ADTOPK_OK);
            assert_true(payload_next_is_dense(&reader));
        }
        group_finish(&group);
        bucket_check_lists(&bucket, &group);
        assert_int_equal(bucket.tensor[0][0].update.count, counts[i] == 2 ? 89 : 90);
        bucket_free(&bucket);
        group_free(&group);
    }
}

/* 1 + 2^-24 + 2^-24 is 1 from the left and 1 + 2^-23 from the right. So the values of the tests
 * above can show a wrong order. */
static void test_order_shows(void **state)
{
    static const uint64_t numel[] = {1};
    static const float sent[] = {1.0f, 0x1p-24f, 0x1p-24f};
    const struct collective_ops *const kinds[] = {&collective_pairwise, &collective_allgather};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned turn = 0; turn < 2; turn++) { /* forwards, backwards */
            struct group group;
            struct bucket bucket;
            float got;
            group_init(&group, kinds[k], 3);
            bucket_init(&bucket, &group, numel, 1);
            for (unsigned m = 0; m < 3; m++) {
                float value = sent[turn == 0 ? m : 2 - m];
                bucket_fill_list(&bucket, &group, m, 0, 100);
                bucket_fill_dense(&bucket, &group, m, 0);
                bucket.tensor[m][0].sent.value[0] = value;
                bucket.acc[m][0][0] = value;
            }
            group_exchange(&group);
            group_finish(&group);
            for (unsigned m = 0; m < 3; m++) {
                got = k == 0 ? bucket.tensor[m][0].dense[0] : bucket.tensor[m][0].update.value[0];
                assert_true(got == (turn == 0 ? 1.0f : 1.0f + 0x1p-23f));
            }
            bucket_free(&bucket);
            group_free(&group);
        }
    }
}

static void test_nonfinite_travels(void **state)
{
    /* Fewer elements than members, and all members must learn of them. */
    static const uint64_t numel[] = {1, 1};
    const struct collective_ops *const kinds[] = {&collective_pairwise, &collective_ring,
        &collective_halving, &collective_allgather, &collective_balanced, &collective_hierarchical,
        &collective_plain};

    (void)state;
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (unsigned culprit = 0; culprit <= 4; culprit++) { /* 4: nobody */
            struct group group;
            struct bucket bucket;
            struct exchange_op op = {.kind = OP_BARRIER};
            group_init(&group, kinds[k], 4);
            bucket_init(&bucket, &group, numel, 2);
            for (unsigned m = 0; m < 8; m++) {
                bucket_fill_list(&bucket, &group, m / 2, m % 2, 50);
                bucket_fill_dense(&bucket, &group, m / 2, m % 2);
            }
            for (unsigned m = 0; m < 4; m++) {
                bucket.tensor[m][1].nonfinite = m == culprit;
                group.exchange[m].op = kinds[k] == &collective_plain ? &op : NULL;
            }
            group_exchange(&group);
            group_finish(&group);
            for (unsigned m = 0; m < 4; m++) {
                assert_false(bucket.tensor[m][0].nonfinite);
                assert_int_equal(bucket.tensor[m][1].nonfinite, culprit < 4);
            }
            bucket_free(&bucket);
            group_free(&group);
        }
    }
}

static void test_table(void **state)
{
    (void)state;
    assert_ptr_equal(collective_find("allgather"), &collective_allgather);
    assert_ptr_equal(collective_find("allreduce"), &collective_allreduce);
    assert_null(collective_find("plain")); /* a policy may not name it */
    assert_null(collective_find(""));
    assert_null(collective_find("Allreduce"));
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        assert_ptr_equal(collective_find(collective_table[i]->name), collective_table[i]);
    }
    assert_true(collective_allreduce.traits.dense);
    assert_false(collective_allgather.traits.dense);
    assert_int_equal(collective_allgather.traits.picks, PICKS_NOTHING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_sparse_in_parts),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_long_segments),
        cmocka_unit_test(test_bad_frames_in_parts),
        cmocka_unit_test(test_full_lists),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_nonfinite_travels),
        cmocka_unit_test(test_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
