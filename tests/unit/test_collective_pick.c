/* Collectives that pick the entries of the update: the k largest sums, and the largest elements of
 * exclusive partitions. */
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

/* ---- the k largest sums ---- */

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

/* ---- exclusive partitions ---- */

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

static void run_exclusive(const struct collective_ops *ops, unsigned members, uint64_t numel,
    uint64_t select, enum payload_value value, size_t room, size_t *returned)
{
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
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
    for (unsigned i = 0; i < 2 * COUNTS; i++) {
        const struct collective_ops *ops =
            i < COUNTS ? &collective_exclusive : &collective_nccl_exclusive;
        const unsigned members = counts[i % COUNTS];

        for (unsigned turn = 0; turn < 6; turn++) {
            uint64_t numel = 1 + random_below(turn == 0 ? 40 : 500);
            uint64_t select = 1 + random_below(turn < 3 ? numel : numel / 20 + 1);
            run_exclusive(ops, members, numel, select, PAYLOAD_VALUE_F32, 0, &none);
            run_exclusive(ops, members, numel, select, PAYLOAD_VALUE_BF16, 0, &none);
            run_exclusive(ops, members, numel, select, PAYLOAD_VALUE_F16, numel, &returned);
        }
    }
    assert_int_equal(none, 0);
    assert_true(returned > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_exclusive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
