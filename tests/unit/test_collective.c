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

static bool is_in(const struct sparse *list, uint32_t position)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->position[i] == position) {
            return true;
        }
    }
    return false;
}

/* Every contribution is in the sum or comes back to a member, element for element. */
static void check_returned(const struct bucket *bucket, const struct group *group, size_t *returned)
{
    const struct sparse *update = &group->exchange[0].tensor[0].update;
    double *total = allocate(bucket->numel[0], sizeof(*total));

    for (unsigned m = 0; m < bucket->members; m++) {
        const struct exchange_tensor *tensor = &group->exchange[m].tensor[0];
        for (size_t i = 0; i < tensor->sent.count; i++) {
            total[tensor->sent.position[i]] += (double)tensor->sent.value[i];
        }
        for (size_t i = 0; i < tensor->rests.count; i++) {
            assert_true(i == 0 || tensor->rests.position[i - 1] < tensor->rests.position[i]);
            total[tensor->rests.position[i]] -= (double)tensor->rests.value[i];
        }
        *returned += tensor->rests.count;
    }
    for (unsigned m = 1; m < bucket->members; m++) {
        const struct sparse *other = &group->exchange[m].tensor[0].update;
        assert_int_equal(other->count, update->count);
        assert_memory_equal(other->position, update->position, update->count * sizeof(uint32_t));
        assert_same_bits(other->value, update->value, update->count);
    }
    for (size_t i = 0; i < update->count; i++) {
        total[update->position[i]] -= (double)update->value[i];
    }
    for (uint64_t i = 0; i < bucket->numel[0]; i++) {
        assert_true(total[i] == 0 ||
                    (group->ops->traits.picks == PICKS_ENTRIES && !is_in(update, (uint32_t)i)));
    }
    free(total);
}

/* Whole numbers that bf16 rounds only when they are summed. */
static void run_rounded(const struct collective_ops *ops, unsigned members, size_t room,
    unsigned percent, size_t *returned)
{
    static const uint64_t numel[] = {700};
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
    group_set_values(&group, PAYLOAD_VALUE_BF16, 1);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < members; m++) {
        struct exchange_tensor *tensor = &bucket.tensor[m][0];
        bucket_fill_list(&bucket, &group, m, 0, percent);
        for (size_t i = 0; i < tensor->sent.count; i++) {
            tensor->sent.value[i] = (float)random_below(255) - 127;
        }
        tensor->rests.position = allocate(room, sizeof(uint32_t));
        tensor->rests.value = allocate(room, sizeof(float));
        tensor->rests.capacity = room;
    }
    group_exchange(&group);
    group_finish(&group);
    check_returned(&bucket, &group, returned);
    for (unsigned m = 0; m < members; m++) {
        free(bucket.tensor[m][0].rests.position);
        free(bucket.tensor[m][0].rests.value);
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_rounded_sums(void **state)
{
    size_t returned = 0;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        const struct collective_ops *ops = i % 2 == 0 ? &collective_balanced : &collective_oktopk;
        unsigned members = counts[i / 2 % (sizeof(counts) / sizeof(counts[0]))];
        run_rounded(ops, members, 700, (unsigned)random_below(101), &returned);
    }
    assert_true(returned > 200);
    returned = 0;
    for (unsigned i = 0; i < 100; i++) {
        run_rounded(
            &collective_hierarchical, 1 + i % 9, 700, (unsigned)random_below(101), &returned);
    }
    assert_int_equal(returned, 0); /* its sums are sent as f32 */
}

static void test_no_room_to_round(void **state)
{
    size_t returned = 0;

    (void)state;
    run_rounded(&collective_balanced, 5, 0, 100, &returned);
    assert_int_equal(returned, 0);
    run_rounded(&collective_balanced, 5, 20, 50, &returned);
    returned = 0;
    run_rounded(&collective_oktopk, 5, 0, 100, &returned);
    assert_int_equal(returned, 0);
    run_rounded(&collective_oktopk, 5, 20, 50, &returned);
}

/* A few sums, some of which bf16 does not hold, and no room for their rounding errors. They arrive
 * unrounded, wherever they are among a member's sums. */
static void run_few(unsigned members, uint64_t sums)
{
    static const uint64_t numel[] = {700};
    struct group group;
    struct bucket bucket;
    size_t returned = 0;

    group_init(&group, &collective_oktopk, members);
    group_set_values(&group, PAYLOAD_VALUE_BF16, 1);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < members; m++) {
        struct exchange_tensor *tensor = &bucket.tensor[m][0];
        bucket_fill_list(&bucket, &group, m, 0, 0);
        for (uint64_t i = 0; i < sums; i++) {
            tensor->sent.position[i] = (uint32_t)((i + 1) * numel[0] / (sums + 1));
            tensor->sent.value[i] = (float)((1 + random_below(127)) << random_below(5));
        }
        tensor->sent.count = tensor->select = sums;
    }
    group_exchange(&group);
    group_finish(&group);
    check_returned(&bucket, &group, &returned);
    assert_int_equal(group.exchange[0].tensor[0].update.count, sums);
    assert_int_equal(returned, 0);
    bucket_free(&bucket);
    group_free(&group);
}

static void test_few_without_room(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        run_few(2 + i % 4, 1 + i % 9);
    }
}

/* ------------------------------------------------------------------ the k largest sums */

/* An entry of the sum. The selection orders entries by the upper 16 bits of their magnitude, then
 * by position. */
struct summed {
    uint32_t cell;
    uint32_t position;
    float value;
};

static int by_size(const void *a, const void *b)
{
    const struct summed *left = a, *right = b;

    if (left->cell != right->cell) {
        return left->cell > right->cell ? -1 : 1;
    }
    return left->position < right->position ? -1 : left->position > right->position;
}

/* An entry that is not selected is at most 0.4% larger than the smallest selected one. */
static void check_line(const struct summed *sums, size_t k, size_t count)
{
    double least = INFINITY, most = 0;

    for (size_t i = 0; i < count; i++) {
        double size = fabs((double)sums[i].value);
        least = i < k ? fmin(least, size) : least;
        most = i < k ? most : fmax(most, size);
    }
    assert_true(most <= 1.004 * least);
}

/* Marks the k entries that must be selected, where k is the mean length of the members' lists. */
static size_t expected_largest(const struct bucket *bucket, const struct group *group, bool *marked)
{
    struct summed *sums = allocate(bucket->numel[0], sizeof(*sums));
    size_t count = 0, sent = 0, k;

    for (unsigned m = 0; m < bucket->members; m++) {
        sent += group->exchange[m].tensor[0].sent.count;
    }
    for (uint64_t i = 0; i < bucket->numel[0]; i++) {
        float sum = 0;
        if (bucket_sum(bucket, group, 0, i, &sum) && sum != 0) {
            sums[count++] = (struct summed){(bits_of(sum) & 0x7fffffffu) >> 15, (uint32_t)i, sum};
        }
    }
    qsort(sums, count, sizeof(*sums), by_size);
    k = (sent + bucket->members - 1) / bucket->members;
    k = k < count ? k : count;
    for (size_t i = 0; i < k; i++) {
        marked[sums[i].position] = true;
    }
    check_line(sums, k, count);
    free(sums);
    return k;
}

static void check_largest(const struct bucket *bucket, const struct group *group)
{
    bool *marked = allocate(bucket->numel[0], sizeof(*marked));
    size_t k = expected_largest(bucket, group, marked);

    for (unsigned m = 0; m < bucket->members; m++) {
        const struct sparse *update = &group->exchange[m].tensor[0].update;
        assert_int_equal(update->count, k);
        for (size_t i = 0; i < k; i++) {
            assert_true(marked[update->position[i]]);
            assert_true(i == 0 || update->position[i - 1] < update->position[i]);
            bucket_check_element(bucket, group, m, 0, update->position[i], update->value[i]);
        }
    }
    free(marked);
}

/* Some turns with one memory: the first turn has none, then come similar turns, then another one.
 */
static void run_largest(unsigned members, uint64_t numel, unsigned skew)
{
    struct exchange_memory memory[GROUP_MAX] = {0};

    for (unsigned turn = 0; turn < 5; turn++) {
        struct group group;
        struct bucket bucket;
        group_init(&group, &collective_oktopk, members);
        bucket_init(&bucket, &group, &numel, 1);
        for (unsigned m = 0; m < members; m++) {
            struct sparse *sent;
            bucket_fill_list(&bucket, &group, m, 0, skew == 1 && m > 0 ? 0 : 20);
            sent = &bucket.tensor[m][0].sent;
            for (size_t i = 0; i < sent->count; i++) {
                if (skew == 2 && sent->position[i] > numel / 8) {
                    sent->value[i] *= 0x1p-20f;
                } else if (skew == 3) {
                    sent->value[i] = 1;
                } else if (turn == 4) {
                    sent->value[i] *= 1000;
                }
                bucket.sent[m][0][sent->position[i]] = bits_of(sent->value[i]);
            }
            bucket.tensor[m][0].memory = &memory[m];
        }
        group_exchange(&group);
        group_finish(&group);
        check_largest(&bucket, &group);
        bucket_free(&bucket);
        group_free(&group);
    }
    for (unsigned m = 0; m < members; m++) {
        free(memory[m].cut);
    }
}

static void test_largest(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20 * 9; i++) {
        run_largest(1 + i % 9, 1 + random_below(1500), i % 4);
    }
    run_largest(4, 60000, 2);
}

/* ------------------------------------------------------------------ exclusive partitions */

/* Whether an element is among the first `count` of its partition, by magnitude, then position. */
static bool leads(const float *acc, uint64_t first, uint64_t end, uint64_t element, uint64_t count)
{
    uint64_t before = 0;

    for (uint64_t i = first; i < end; i++) {
        bool larger = fabsf(acc[i]) > fabsf(acc[element]);
        before += larger || (fabsf(acc[i]) == fabsf(acc[element]) && i < element);
    }
    return before < count;
}

static bool is_selected(
    const struct bucket *bucket, const struct group *group, uint64_t select, uint64_t element)
{
    unsigned members = group->members;
    uint64_t numel = bucket->numel[0];

    for (unsigned m = 0; m < members; m++) {
        uint64_t part = (m + group->exchange[0].header.number) % members;
        uint64_t first = numel * part / members, end = numel * (part + 1) / members;
        uint64_t count = select * (part + 1) / members - select * part / members;
        if (element >= first && element < end) {
            return leads(bucket->acc[m][0], first, end, element, count);
        }
    }
    return false;
}

/* Checks the sums of all contributions at the selected places, and the rounding error of each. */
static void check_exclusive(const struct bucket *bucket, const struct group *group, uint64_t select)
{
    double *back = allocate(bucket->numel[0], sizeof(*back));

    for (unsigned m = 0; m < group->members; m++) {
        const struct sparse *returned = &group->exchange[m].tensor[0].rests;
        for (size_t i = 0; i < returned->count; i++) {
            back[returned->position[i]] += (double)returned->value[i];
        }
    }
    for (unsigned m = 0; m < group->members; m++) {
        const struct sparse *update = &group->exchange[m].tensor[0].update;
        size_t at = 0;
        for (uint64_t i = 0; i < bucket->numel[0]; i++) {
            float sum = 0, value;
            if (!is_selected(bucket, group, select, i)) {
                continue;
            }
            for (unsigned n = 0; n < group->members; n++) {
                memcpy(&value, &bucket->sent[n][0][i], sizeof(value));
                sum = n == 0 ? value : sum + value;
            }
            assert_true(at < update->count);
            assert_int_equal(update->position[at], i);
            assert_true((double)update->value[at++] + back[i] == (double)sum);
        }
        assert_int_equal(at, update->count);
    }
    free(back);
}

static void run_exclusive(unsigned members, uint64_t numel, uint64_t select,
    enum payload_value value, size_t room, size_t *returned)
{
    struct group group;
    struct bucket bucket;

    group_init(&group, &collective_exclusive, members);
    group_set_values(&group, value, 1);
    bucket_init(&bucket, &group, &numel, 1);
    for (unsigned m = 0; m < members; m++) {
        struct exchange_tensor *tensor = &bucket.tensor[m][0];
        bucket_fill_dense(&bucket, &group, m, 0);
        tensor->select = select;
        tensor->update = (struct sparse){.position = allocate(select, sizeof(uint32_t)),
            .value = allocate(select, sizeof(float)),
            .capacity = select};
        tensor->rests = (struct sparse){.position = allocate(room, sizeof(uint32_t)),
            .value = allocate(room, sizeof(float)),
            .capacity = room};
    }
    group_exchange(&group);
    group_finish(&group);
    check_exclusive(&bucket, &group, select);
    for (unsigned m = 0; m < members; m++) {
        *returned += bucket.tensor[m][0].rests.count;
        free(bucket.tensor[m][0].rests.position);
        free(bucket.tensor[m][0].rests.value);
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_exclusive(void **state)
{
    size_t returned = 0, none = 0;

    (void)state;
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (unsigned turn = 0; turn < 6; turn++) {
            uint64_t numel = 1 + random_below(turn == 0 ? 40 : 500);
            uint64_t select = 1 + random_below(turn < 3 ? numel : numel / 20 + 1);
            run_exclusive(counts[i], numel, select, PAYLOAD_VALUE_F32, 0, &none);
            run_exclusive(counts[i], numel, select, PAYLOAD_VALUE_BF16, 0, &none);
            run_exclusive(counts[i], numel, select, PAYLOAD_VALUE_F16, numel, &returned);
        }
    }
    assert_int_equal(none, 0);
    assert_true(returned > 200);
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
        cmocka_unit_test(test_rounded_sums),
        cmocka_unit_test(test_no_room_to_round),
        cmocka_unit_test(test_few_without_room),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_exclusive),
        cmocka_unit_test(test_bad_frames_in_parts),
        cmocka_unit_test(test_full_lists),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_nonfinite_travels),
        cmocka_unit_test(test_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
