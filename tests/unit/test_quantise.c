/* Rounding of values, compared with double precision, and its general properties. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/convert.h"
#include "kernels/base/quantise.h"
#include "kernels/cpu/plain.h"
#include "tests/unit/values_reference.h"

enum { MANY = 1000 };

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static float of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void assert_bits(float got, float wanted, float of)
{
    if (memcmp(&got, &wanted, sizeof(got)) != 0) {
        fail_msg("%a became %a, not %a", (double)of, (double)got, (double)wanted);
    }
}

/* A value of one kind: any finite bits, magnitudes of similar size, or a binary16. */
static float random_value(int kind, uint64_t *seed)
{
    uint64_t word = random_next(seed);
    float x = of_bits((uint32_t)(word >> 32));

    switch (kind) {
    case 0: return isfinite(x) ? x : 0;
    case 1: return (float)((double)(int64_t)word * 0x1p-63);
    case 2:
        return convert_f16((uint16_t)(word >> 48)) == 0
                   ? 0
                   : of_bits(0x38000000u + (uint32_t)(word >> 37));
    default: return (word >> 60) == 0 ? x * 0x1p-140f : 0;
    }
}

static void fill(float *x, size_t n, int kind, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = random_value(kind, seed);
        x[i] = isfinite(x[i]) ? x[i] : 1;
    }
}

static void test_f16_and_back(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = convert_f16((uint16_t)bits);

        if (isnan(x)) {
            assert_true(isnan(convert_f16(convert_to_f16(x))));
        } else if (isinf(x)) {
            assert_int_equal(convert_to_f16(x), (bits & 0x8000) | 0x7bff);
        } else {
            assert_int_equal(convert_to_f16(x), bits);
        }
    }
    assert_int_equal(convert_to_f16(0x1p120f), 0x7bff);
    assert_int_equal(convert_to_f16(-65505.0f), 0xfbff);
}

/* Around every binary16 and every middle between two. */
static void test_f16_rounds(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        float low = convert_f16((uint16_t)bits), high = convert_f16((uint16_t)(bits + 1));
        float middle = (low + high) / 2;
        const float near[] = {low, middle, high, nextafterf(low, high), nextafterf(middle, low),
            nextafterf(middle, high), nextafterf(high, low)};

        for (int i = 0; i < 14; i++) {
            float x = i % 2 == 0 ? near[i / 2] : -near[i / 2];

            assert_bits(convert_f16(convert_to_f16(x)), reference_f16(x), x);
        }
    }
}

static void test_each_value(void **state)
{
    uint64_t seed = 1;
    float x[MANY], rounded[MANY];

    (void)state;
    for (int turn = 0; turn < 400; turn++) {
        fill(x, MANY, turn % 4, &seed);
        memcpy(rounded, x, sizeof(x));
        quantise_values(rounded, MANY, QUANTISE_F32, 1);
        assert_memory_equal(rounded, x, sizeof(x));
        quantise_values(rounded, MANY, QUANTISE_BF16, 2);
        for (int i = 0; i < MANY; i++) {
            assert_bits(rounded[i], reference_bf16(x[i]), x[i]);
        }
        memcpy(rounded, x, sizeof(x));
        quantise_values(rounded, MANY, QUANTISE_F16, 3);
        for (int i = 0; i < MANY; i++) {
            assert_bits(rounded[i], reference_f16(x[i]), x[i]);
        }
    }
}

/* The random numbers by their definition. */
static uint64_t plain_hash(uint64_t index)
{
    uint64_t z = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static float plain_uniform(uint64_t seed, size_t i)
{
    uint64_t word = plain_hash(plain_hash(seed) + i / 4);

    return (float)(word >> i % 4 * 16 & 0xffff) / 65536.0f;
}

static void test_int8(void **state)
{
    uint64_t seed = 2;

    (void)state;
    for (int turn = 0; turn < 3000; turn++) {
        size_t n = random_next(&seed) % 400;
        uint64_t of = random_next(&seed);
        float x[400], rounded[400], wanted[400], u[400];

        fill(x, n, turn % 4, &seed);
        for (size_t i = 0; i < n; i++) {
            u[i] = plain_uniform(of, i);
        }
        for (size_t i = 0; i < n; i += 128) {
            reference_levels(x + i, n - i < 128 ? n - i : 128, 127, u + i, wanted + i);
        }
        memcpy(rounded, x, n * sizeof(*x));
        quantise_values(rounded, n, QUANTISE_INT8, of);
        for (size_t i = 0; i < n; i++) {
            assert_bits(rounded[i], wanted[i], x[i]);
        }
    }
}

/* A rounded value stays as it is when it is rounded again, with any random numbers and any cuts. */
static void test_rounded_stays(void **state)
{
    uint64_t seed = 3;

    (void)state;
    for (int turn = 0; turn < 8000; turn++) {
        enum quantisation type = (enum quantisation)(turn / 4 % 8);
        float x[200], again[200], decoded[200];
        size_t n = 1 + random_next(&seed) % 200;

        fill(x, n, turn % 4, &seed);
        quantise_values(x, n, type, random_next(&seed));
        memcpy(again, x, sizeof(x));
        quantise_values(again, n, type, random_next(&seed));
        assert_memory_equal(again, x, n * sizeof(*x));
        if (type == QUANTISE_INT8) {
            int8_t level[128], level_again[128];
            size_t block = n < 128 ? n : 128;
            uint16_t step = quantise_block(x, block, 127, level);

            quantise_decode(step, level, block, decoded);
            assert_memory_equal(decoded, x, block * sizeof(*x));
            assert_int_equal(quantise_block(decoded, block, 127, level_again), step);
            assert_memory_equal(level_again, level, block);
        }
    }
}

/* On average nothing is lost: the mean over many seeds is as close as the square root of their
 * number says. */
static void test_unbiased(void **state)
{
    enum { SEEDS = 20000 };
    double mean[8] = {0};
    const float x[8] = {127, -0.25f, 0.5f, 3.75f, -100.125f, 0.0625f, 126.5f, 0};

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        float rounded[8];

        memcpy(rounded, x, sizeof(x));
        quantise_values(rounded, 8, QUANTISE_INT8, seed); /* the step is 1 */
        for (int i = 0; i < 8; i++) {
            assert_true(fabsf(rounded[i] - x[i]) < 1);
            mean[i] += (double)rounded[i] / SEEDS;
        }
    }
    for (int i = 0; i < 8; i++) {
        assert_true(fabs(mean[i] - (double)x[i]) < 5 * 0.5 / sqrt(SEEDS));
    }
}

/* Blocks of zeros, of the least and the greatest numbers, and without any number. */
static void test_int8_extremes(void **state)
{
    const float cases[] = {0, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-133f, 0x1.fffffep-127f, 0x1p-126f,
        0x1.fffffep127f, 0x1.fff8p127f, INFINITY, -INFINITY, NAN, -NAN};
    const size_t count = sizeof(cases) / sizeof(cases[0]);

    (void)state;
    for (size_t a = 0; a < count; a++) {
        for (size_t b = 0; b < count; b++) {
            const float x[3] = {cases[a], cases[b], cases[a]}, u[3] = {0.5f, 0.5f, 0.5f};
            float wanted[3], got[3];
            int8_t level[3];
            uint16_t step = quantise_block(x, 3, 127, level);

            reference_levels(x, 3, 127, u, wanted);
            assert_true(step <= quantise_step_max(127));
            quantise_decode(step, level, 3, got);
            for (int i = 0; i < 3; i++) {
                assert_true(isfinite(got[i]));
                assert_bits(got[i], wanted[i], x[i]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_and_back),
        cmocka_unit_test(test_f16_rounds),
        cmocka_unit_test(test_each_value),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_rounded_stays),
        cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_int8_extremes),
    };

    return cmocka_run_group_tests_name("quantise", tests, NULL, NULL);
}
