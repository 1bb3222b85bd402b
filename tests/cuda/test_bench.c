/*
 * bench_add and bench_work against loops on the host, bit by bit: what passes are compared with
 * does the same work.
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
           : dtype == DTYPE_F16 ? convert_f16(((const uint16_t *)g)[i])
                                : convert_bf16(((const uint16_t *)g)[i]);
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

static bool work_case(uint64_t seed, uint64_t most)
{
    struct input input = {seed};
    const struct launch how = input_launch(&input);
    const uint64_t threads = (uint64_t)how.blocks * LAUNCH_THREADS;
    float *const out = input_memory(threads * sizeof *out, 0);
    const struct bench_work work = {
        .out = out, .rounds = (uint32_t)input_below(&input, 1 + most / 100)};
    bool same = true;
    launch(&how, run_bench_work, &work);
    for (uint64_t i = 0; i < threads; i++) {
        float x = (float)i;
        for (uint32_t round = 0; round < work.rounds; round++) {
            x = x * 0.75f;
            x = x + 1.0f;
        }
        same = same && memcmp(&out[i], &x, sizeof x) == 0;
    }
    input_free(out);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(bench_case, 1, 100, 5000);
}

static void test_work(void **state)
{
    (void)state;
    seeds_try(work_case, 1, 100, 5000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_work),
    };
    if (argc == 3) {
        const uint64_t seed = strtoull(argv[1], NULL, 0), most = strtoull(argv[2], NULL, 0);
        return bench_case(seed, most) && work_case(seed, most) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
