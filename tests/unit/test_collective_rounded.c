/* Sums that a collective rounds before it sends them again: each rounding error comes back to a
 * member as a rest, or the sum is sent unrounded. */
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
        unsigned members = counts[i / 2 % (COUNTS)];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded_sums),
        cmocka_unit_test(test_no_room_to_round),
        cmocka_unit_test(test_few_without_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
