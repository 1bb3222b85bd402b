/* Tensors that are spread over devices, against all ways to spread them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/shards.h"
#include "tests/unit/arrays.h"

#define TENSORS_MAX 12u
#define CASES 3000u

static uint64_t sum(const uint64_t *size, uint32_t from, uint32_t end)
{
    uint64_t all = 0;

    for (uint32_t t = from; t < end; t++) {
        all += size[t];
    }
    return all;
}

/* The largest of `shards` shards, where that is least. */
static uint64_t least(const uint64_t *size, uint32_t count, unsigned shards)
{
    uint64_t best = sum(size, 0, count);

    for (uint32_t first = 1; shards > 1 && first < count; first++) {
        const uint64_t begin = sum(size, 0, first),
                       rest = least(size + first, count - first, shards - 1);
        const uint64_t largest = begin > rest ? begin : rest;

        best = largest < best ? largest : best;
    }
    return best;
}

/* Shards have tensors each, and end with the last one. Returns the largest. */
static uint64_t largest_of(const struct engine_memory *memory, const uint64_t *size, uint32_t count)
{
    uint64_t largest = 0;
    uint32_t from = 0;

    for (unsigned s = 0; s < memory->shards; s++) {
        const uint64_t bytes = sum(size, from, memory->shard_end[0][s]);

        assert_true(memory->shard_end[0][s] > from);
        for (uint32_t t = from; t < memory->shard_end[0][s]; t++) {
            assert_int_equal(shards_of(memory, t), s);
        }
        largest = bytes > largest ? bytes : largest;
        from = memory->shard_end[0][s];
    }
    assert_int_equal(from, count);
    return largest;
}

static void test_spread(void **state)
{
    uint64_t size[TENSORS_MAX];

    (void)state;
    for (unsigned i = 0; i < CASES; i++) {
        static struct engine_memory memory;
        const uint32_t count = (uint32_t)(1 + random_below(TENSORS_MAX));
        const unsigned most = (unsigned)(1 + random_below(ENGINE_SHARDS));
        const uint32_t range = i % 3 == 0 ? 2 : i % 3 == 1 ? 20 : 1000000;

        for (uint32_t t = 0; t < count; t++) {
            size[t] = 1 + random_below(range) * (random_below(5) == 0 ? 50 : 1);
        }
        shards_spread(&memory, size, count, most);
        assert_in_range(memory.shards, 1, most);
        assert_int_equal(largest_of(&memory, size, count), least(size, count, most));
    }
}

/* Many small tensors on many devices, and more devices than there may be. */
static void test_many(void **state)
{
    static struct engine_memory memory;
    static uint64_t size[1000];

    (void)state;
    for (unsigned t = 0; t < 1000; t++) {
        size[t] = 10;
    }
    shards_spread(&memory, size, 1000, 1000);
    assert_int_equal(memory.shards, ENGINE_SHARDS);
    assert_int_equal(largest_of(&memory, size, 1000), 630);
    shards_spread(&memory, size, 3, 8);
    assert_int_equal(memory.shards, 3);
}

/* Batches are spread over the devices of the first one, each as evenly as it can be. */
static void test_batches(void **state)
{
    static struct engine_memory memory;
    const uint64_t size[5] = {1, 1, 1, 1, 1};
    const uint64_t large[3] = {7, 1, 1};
    const unsigned shard[] = {0, 0, 0, 1, 1, 0, 0, 0, 1, 1};

    (void)state;
    memory.shards = 0;
    assert_int_equal(shards_tensors(&memory), 0);
    shards_spread(&memory, size, 5, 2);
    shards_spread_more(&memory, large, 1);
    shards_spread_more(&memory, large + 1, 1);
    shards_spread_more(&memory, large, 3);
    assert_int_equal(memory.batches, 4);
    assert_int_equal(shards_tensors(&memory), 10);
    for (uint32_t t = 0; t < 10; t++) {
        assert_int_equal(shards_of(&memory, t), shard[t]);
    }
    assert_int_equal(shards_first(&memory, 0, 1), 3);
    assert_int_equal(shards_first(&memory, 3, 0), 7);
    assert_int_equal(shards_first(&memory, 1, 1), memory.shard_end[1][1]); /* it has none */
}

/* Stretches of a part follow one another, some may be empty, and a part without marks is whole. */
static void test_stretches(void **state)
{
    static struct engine_memory memory;
    const uint64_t size[4] = {5, 5, 5, 5};
    const uint64_t offset[5] = {0, 300, 300, 300, 700};

    (void)state;
    shards_spread(&memory, size, 4, 4);
    assert_int_equal(memory.shards, 4);
    for (uint32_t t = 0; t <= 4; t++) {
        shards_mark(&memory, 2, t, offset[t]);
    }
    for (unsigned s = 0; s < 4; s++) {
        assert_int_equal(shards_begin(&memory, 2, s), offset[s]);
        assert_int_equal(shards_size(&memory, 2, s, 700), offset[s + 1] - offset[s]);
        assert_int_equal(shards_begin(&memory, 3, s), 0);
        assert_int_equal(shards_size(&memory, 3, s, 900), 900);
    }
    memory = (struct engine_memory){.shards = 0};
    assert_int_equal(shards_of(&memory, 77), 0);
    assert_int_equal(shards_size(&memory, 2, 0, 700), 700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_stretches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
