/* Partitions: every position has one owner and one slot, and no partition has more than its share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/base/partition.h"
#include "tests/unit/payload_lists.h"

/* For every n up to a few groups the partitions are disjoint, complete and of equal size. Slots
 * ascend with positions. Slot and position are each other's inverse. */
static void test_all_positions(void **state)
{
    static const uint32_t all_parts[] = {1, 2, 3, 4, 7, 16, 61};

    (void)state;
    for (int i = 0; i < 7; i++) {
        uint32_t parts = all_parts[i];

        for (uint64_t n = 0; n <= 5 * parts + 3; n++) {
            uint64_t *next = calloc(parts, sizeof(*next));

            assert_non_null(next);
            for (uint64_t position = 0; position < n; position++) {
                uint32_t part = partition_of(position, parts);

                assert_true(part < parts);
                assert_int_equal(partition_slot(position, parts), next[part]);
                assert_int_equal(partition_position(next[part], part, parts), position);
                next[part]++;
            }
            for (uint32_t part = 0; part < parts; part++) {
                assert_int_equal(partition_size(n, part, parts), next[part]);
                assert_true(next[part] == n / parts || next[part] == n / parts + 1);
            }
            free(next);
        }
    }
}

/* The definition, written out, for positions up to the largest. */
static void test_definition(void **state)
{
    uint64_t seed = 5;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint32_t parts = (uint32_t)(1 + random_below(&seed, i % 2 == 0 ? 20 : UINT32_MAX));
        uint64_t position = random_below(&seed, UINT32_MAX);
        uint32_t part = partition_of(position, parts);
        uint64_t z = (position / parts + 1) * UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        assert_int_equal((z % parts + part) % parts, position % parts);
        assert_int_equal(
            partition_position(partition_slot(position, parts), part, parts), position);
    }
}

/* Entries at any distance from each other spread evenly, also at the number of parts. */
static void test_balance(void **state)
{
    (void)state;
    for (uint64_t stride = 1; stride <= 64; stride++) {
        uint64_t count[16] = {0};

        for (uint64_t i = 0; i < 16000; i++) {
            count[partition_of(i * stride, 16)]++;
        }
        for (int part = 0; part < 16; part++) {
            assert_in_range(count[part], 850, 1150); /* 1000 and five standard deviations */
        }
    }
}

#define EACH 4000u /* mean number of entries per partition */

/* The largest partition of this many entries, in percent of the mean. position_of gives their
 * positions. */
static uint64_t largest(
    uint32_t parts, uint64_t (*position_of)(uint64_t i, uint64_t way), uint64_t way)
{
    uint64_t count[64] = {0}, most = 0;

    for (uint64_t i = 0; i < (uint64_t)EACH * parts; i++) {
        uint64_t *one = &count[partition_of(position_of(i, way), parts)];
        most = ++*one > most ? *one : most;
    }
    return most * 100 / EACH;
}

static uint64_t strided(uint64_t i, uint64_t stride)
{
    return i * stride;
}

/* The first half of every group of this size. */
static uint64_t halves(uint64_t i, uint64_t parts)
{
    const uint64_t half = (parts + 1) / 2;

    return i / half * parts + i % half;
}

/* Runs as long as a group, at every fourth group, one position off. */
static uint64_t runs(uint64_t i, uint64_t parts)
{
    return i / parts * 4 * parts + 1 + i % parts;
}

/* In patterns that are aligned to groups, no partition has more than 1.1 times the mean. */
static void test_aligned(void **state)
{
    static const uint32_t all_parts[] = {2, 3, 4, 6, 7, 8, 9, 11, 13, 16, 32, 33, 64};

    (void)state;
    for (size_t p = 0; p < sizeof(all_parts) / sizeof(all_parts[0]); p++) {
        const uint32_t parts = all_parts[p];
        for (uint64_t times = 1; times <= 4096; times *= 2) {
            assert_in_range(largest(parts, strided, times), 100, 110);
            assert_in_range(largest(parts, strided, times * parts), 100, 110);
            assert_in_range(largest(parts, strided, times * (parts + 1)), 100, 110);
            assert_in_range(largest(parts, strided, times * parts + 1), 100, 110);
        }
        assert_in_range(largest(parts, halves, parts), 100, 110);
        assert_in_range(largest(parts, runs, parts), 100, 110);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_positions),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_aligned),
    };

    return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
