/*
 * bench_add against the loop on the host, bit by bit: what passes are compared with does the same
 * work.
 *
 * usage: test_bench [SEED ELEMENTS]
 */
#include "kernels/base/convert.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/input.h"
#include "tests/cuda/seeds.h"

#include <string.h>

static float bench_gradient(const void *g, uint32_t dtype, uint64_t i)
{
    return dtype == DTYPE_F32   ? ((const float *)g)[i]
           : dtype == DTYPE_F16 ? f16_to_f32(((const uint16_t *)g)[i])
                                : bf16_to_f32(((const uint16_t *)g)[i]);
}

static bool bench_case(uint64_t seed, uint64_t most)
{
    struct input input = {seed};
    const uint64_t n = (input_size(&input, most) + 3) / 4 * 4;
    const enum dtype dtype = (enum dtype)input_below(&input, DTYPE_COUNT);
    const struct launch how = input_launch(&input);
    float *const r = input_memory(n * sizeof *r, 0);
    float *const expected = input_memory(n * sizeof *expected, 0);
    void *const g = input_memory(n * dtype_size(dtype), 0);
    const struct bench_add add = {.r = r, .g = g, .dtype = dtype, .n = n};
    input_fill(&input, INPUT_NORMAL, DTYPE_F32, n, r);
    input_fill(&input, INPUT_NORMAL, dtype, n, g);
    for (uint64_t i = 0; i < n; i++) {
        expected[i] = r[i] + bench_gradient(g, dtype, i);
    }
    launch(&how, run_bench_add, &add);
    const bool same = memcmp(r, expected, n * sizeof *r) == 0;
    input_free(r);
    input_free(expected);
    input_free(g);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(bench_case, 1, 100, 5000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
    };
    if (argc == 3) {
        return bench_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
