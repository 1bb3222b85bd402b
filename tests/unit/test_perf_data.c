/* What adtopk-perf measures with: every floor loop adds what it should, lists are well formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"

#define LONGEST 2100 /* beyond the distance of the prefetches */

static float element(const void *g, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DTYPE_F16: return f16_to_f32(((const uint16_t *)g)[i]);
    case DTYPE_BF16: return bf16_to_f32(((const uint16_t *)g)[i]);
    default: return ((const float *)g)[i];
    }
}

static void check_loop(const struct floor_loop *loop, enum dtype dtype, uint64_t n)
{
    float *x = malloc((LONGEST + 1) * sizeof(*x));
    float *r = malloc((LONGEST + 1) * sizeof(*r));
    void *g = malloc((LONGEST + 1) * sizeof(float));

    assert_true(x != NULL && r != NULL && g != NULL);
    data_fill(x, n + 1, DATA_NORMAL, 3);
    data_store(g, dtype, x, n + 1);
    data_fill(r, n + 1, DATA_LAPLACE, 5);
    memcpy(x, r, (n + 1) * sizeof(*x));
    loop->add(r, g, dtype, n);
    for (uint64_t i = 0; i < n; i++) {
        if (r[i] != x[i] + element(g, dtype, i)) {
            fail_msg(
                "%s, type %d: element %u of %u", loop->name, (int)dtype, (unsigned)i, (unsigned)n);
        }
    }
    assert_true(r[n] == x[n]); /* and no further */
    free(x);
    free(r);
    free(g);
}

static void test_loops(void **state)
{
    static const uint64_t lengths[] = {0, 1, 7, 16, 17, 100, 1024, 1031, LONGEST};

    (void)state;
    for (unsigned loop = 0; loop < FLOOR_LOOPS; loop++) {
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                check_loop(&floor_loops[loop], (enum dtype)dtype, lengths[i]);
            }
        }
    }
}

static void test_race(void **state)
{
    struct floor_race race = {0};
    float r[64];
    float g[64];
    float start[64];

    (void)state;
    data_fill(start, 64, DATA_NORMAL, 1);
    data_fill(g, 64, DATA_NORMAL, 2);
    assert_int_equal(floor_fastest(&race), 0);
    for (int i = 0; i < 3; i++) {
        assert_true(floor_sample(&race, r, g, DTYPE_F32, 64, start));
    }
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        assert_int_equal(race.time[i].count, 3);
        for (size_t k = 0; k < 3; k++) {
            race.time[i].value[k] = i == 2 ? 1 : 5;
        }
    }
    assert_true(r[63] == start[63] + g[63]); /* every loop began at the start */
    assert_int_equal(floor_fastest(&race), 2);
    floor_free(&race);
}

static void check_list(uint64_t n, uint64_t length, uint64_t k)
{
    struct sparse list;

    assert_true(data_list(&list, n, length, k, 7));
    assert_int_equal(list.count, n / length * k);
    for (size_t i = 0; i < list.count; i++) {
        assert_int_equal(list.position[i] / length, i / k);
        assert_true(i == 0 || list.position[i] > list.position[i - 1]);
        assert_true(isfinite(list.value[i]));
    }
    data_list_free(&list);
}

static void test_lists(void **state)
{
    (void)state;
    check_list(1000, 1000, 10);
    check_list(1000, 1000, 1000); /* all elements */
    check_list(1000, 1000, 1);
    check_list(1024, 32, 3);
    check_list(1, 1, 1);
    assert_int_equal(data_share(1000, 0.01), 10);
    assert_int_equal(data_share(10, 0.001), 1);
    assert_int_equal(data_share(10, 1), 10);
}

static void test_distributions(void **state)
{
    static float x[16000];
    unsigned zeros = 0;

    (void)state;
    for (unsigned d = 0; d < DATA_COUNT; d++) {
        data_fill(x, 16000, (enum distribution)d, 1);
        for (unsigned i = 0; i < 16000; i++) {
            assert_true(isfinite(x[i]));
        }
        assert_non_null(data_names[d]);
    }
    assert_null(data_names[DATA_COUNT]);
    data_fill(x, 16000, DATA_SORTED, 1);
    for (unsigned i = 1; i < 16000; i++) {
        assert_true(x[i] >= x[i - 1]);
    }
    data_fill(x, 16000, DATA_MOSTLY_ZERO, 1);
    for (unsigned i = 0; i < 16000; i++) {
        zeros += x[i] == 0;
    }
    assert_in_range(zeros, 15900, 15999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_race),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_distributions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
