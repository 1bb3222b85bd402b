/* Conversions, accumulation and sums, compared with plain loops. test_select.c tests the
 * selections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rest.h"
#include "tests/unit/arrays.h"
#include "tests/unit/push.h"

static void assert_near(double actual, double expected, double tolerance)
{
    if (!(fabs(actual - expected) <= tolerance)) {
        fail_msg("%.17g is not within %g of %.17g", actual, tolerance, expected);
    }
}

static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* ---- conversions ---- */

static void test_dtype_size(void **state)
{
    (void)state;
    assert_int_equal(dtype_size(DTYPE_F32), 4);
    assert_int_equal(dtype_size(DTYPE_F16), 2);
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
    assert_int_equal(dtype_size(DTYPE_COUNT), 0);
}

static void assert_converts(float actual, double expected, uint32_t code)
{
    if (isnan(expected) ? !isnan(actual) : !same_double((double)actual, expected)) {
        fail_msg("code %04x: %a, not %a", code, (double)actual, expected);
    }
}

static void test_half_types_to_f32(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        assert_converts(convert_f16((uint16_t)code), format_value(code, 5, 10), code);
        assert_converts(convert_bf16((uint16_t)code), format_value(code, 8, 7), code);
    }
}

/* Every code with every implementation, beginning at an odd element. Ranks without a gradient add
 * nothing. */
static void check_gather(const struct chunk_ops *ops, enum dtype dtype)
{
    enum { CODES = 65536, FIRST = 3 };
    uint16_t *codes = allocate(CODES, sizeof *codes);
    float *sum = allocate(CODES - FIRST, sizeof *sum);
    const void *const each[] = {NULL, codes, NULL};
    const struct gradients gradients = {each, 3, dtype, true};
    const struct gradients none = {each, 1, dtype, false};
    for (uint32_t code = 0; code < CODES; code++) {
        codes[code] = (uint16_t)code;
    }
    ops->gather(&gradients, FIRST, CODES - FIRST, sum);
    for (uint32_t code = FIRST; code < CODES; code++) {
        const double expected =
            dtype == DTYPE_F16 ? format_value(code, 5, 10) : format_value(code, 8, 7);
        assert_converts(sum[code - FIRST], expected, code);
    }
    ops->gather(&none, FIRST, CODES - FIRST, sum);
    for (uint32_t i = 0; i < CODES - FIRST; i++) {
        assert_converts(sum[i], -0.0, i);
    }
    free(codes);
    free(sum);
}

static void test_gather(void **state)
{
    (void)state;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        for (int dtype = DTYPE_F16; dtype <= DTYPE_BF16 && chunk_table[i]->supported(); dtype++) {
            check_gather(chunk_table[i], (enum dtype)dtype);
        }
    }
}

static void test_bf16_keeps_its_own_values(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        const float value = convert_bf16((uint16_t)code);
        const uint16_t back = convert_to_bf16(value);
        if (isnan(value)) {
            assert_true(isnan(convert_bf16(back)));
            assert_int_equal(back >> 15, code >> 15);
        } else {
            assert_int_equal(back, code);
        }
    }
}

/* The value of a bf16 magnitude code. Infinity stands for the next power of two, because IEEE 754
 * rounds that way at the upper end. */
static double bf16_magnitude(uint32_t code)
{
    return code == 0x7f80 ? 0x1p128 : format_value(code, 8, 7);
}

static void check_bf16_rounding(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    const uint32_t below = (bits >> 16) & 0x7fffu;
    const double magnitude = fabs((double)value);
    const double down = magnitude - bf16_magnitude(below);
    const double up = bf16_magnitude(below + 1) - magnitude;
    const bool take_up = up < down || (up == down && below % 2 == 1);
    const uint32_t expected = (bits >> 31 << 15) | (take_up ? below + 1 : below);
    assert_int_equal(convert_to_bf16(value), expected);
}

static void test_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t code = 0; code < 65536; code++) {
        if ((code & 0x7fffu) >= 0x7f80u) {
            continue;
        }
        for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
            check_bf16_rounding(code << 16 | low[i]);
        }
        check_bf16_rounding(code << 16 | (uint32_t)random_below(65536));
    }
    /* A NaN whose fraction lies in the lower half only must not become infinity. */
    const uint32_t low_nan = 0x7f800001u;
    float value;
    memcpy(&value, &low_nan, sizeof value);
    assert_true(isnan(convert_bf16(convert_to_bf16(value))));
}

/* ---- sums of rounded values ---- */

/* a + b, and the rounding error of the double sum. */
static double exact_sum(double a, double b, double *below)
{
    const double sum = a + b;
    const double moved = sum - a;
    *below = (a - (sum - moved)) + (b - moved);
    return sum;
}

static float rest_sum_of(float a, float b, enum quantisation type, float *rest)
{
    int16_t low;
    const struct rest list = {.low = &low, .type = type, .count = 1};
    rest_sum(&a, &b, &low, 1, type);
    *rest = 0;
    rest_add(&list, 0, 1, rest);
    return a;
}

/* Nothing is lost. The sum is the nearest that the type has, or the largest f16. */
static void check_rest_sum(float a, float b, enum quantisation type)
{
    const bool is_bf16 = type == QUANTISE_BF16;
    double below, kept_below;
    float rest;
    int exponent;
    const double exact = exact_sum((double)a, (double)b, &below);
    const float sum = rest_sum_of(a, b, type, &rest);
    if (!isfinite(sum)) {
        assert_true(rest == 0 && (!isfinite(a) || !isfinite(b) || fabs(exact) > 0x1.fep127));
        return;
    }
    assert_true(exact_sum((double)sum, (double)rest, &kept_below) == exact && kept_below == below);
    if (!is_bf16 && fabs(exact) > 65504) {
        assert_true(fabs((double)sum) == 65504);
        return;
    }
    (void)frexp((double)sum, &exponent);
    const double unit =
        is_bf16 ? fmax(ldexp(1, exponent - 8), 0x1p-133) : fmax(ldexp(1, exponent - 11), 0x1p-24);
    assert_true(fabs((double)rest) <= unit / 2);
    if (fabs((double)rest) == unit / 2) {
        assert_true(fmod((double)sum / unit, 2) == 0);
    }
}

/* If a small loss scale turns a rounded sum into 0, its lower half restores nothing. */
static void test_rest_of_vanished_sum(void **state)
{
    const int16_t low[] = {-1, -0x8000, 0x7fff};
    const float rounded[] = {0, -0.0f, 0};
    const struct rest rest = {
        .rounded = rounded, .low = low, .count = 3, .unscale = 5, .shrink = 0x1p30f};
    float x[3] = {1, 2, 3};

    (void)state;
    rest_add(&rest, 0, 3, x);
    assert_true(x[0] == 1 && x[1] == 2 && x[2] == 3);
}

/* A sum that is not finite has no rest, even if it becomes the largest f16. */
static void test_rest_sum_not_finite(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    static const enum quantisation types[] = {QUANTISE_BF16, QUANTISE_F16};
    for (unsigned i = 0; i < 6; i++) {
        float rest;
        (void)rest_sum_of(odd[i % 3], 1.0f, types[i / 3], &rest);
        assert_true(rest == 0);
        (void)rest_sum_of(-2.0f, odd[i % 3], types[i / 3], &rest);
        assert_true(rest == 0);
    }
}

/* Every value with values of similar size, and with any. */
static void test_rest_sum(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        for (unsigned i = 0; i < 8; i++) {
            const uint32_t any = (uint32_t)random_below(65536);
            const uint16_t a = (uint16_t)code;
            const uint16_t near = (uint16_t)((code + any % 4096 - 2048) ^ (any & 0x8000u));
            const uint16_t b = i % 2 == 0 ? near : (uint16_t)any;
            check_rest_sum(convert_bf16(a), convert_bf16(b), QUANTISE_BF16);
            if ((a & 0x7c00u) != 0x7c00u && (b & 0x7c00u) != 0x7c00u) {
                check_rest_sum(convert_f16(a), convert_f16(b), QUANTISE_F16);
            }
        }
    }
}

/* ---- accumulate, withdraw, ledger ---- */

static void check_accumulate(enum dtype dtype, unsigned ranks, uint64_t n)
{
    struct push push = push_make(dtype, ranks, n);
    const void *const *gradients = (const void *const *)push.gradients;
    float *acc = allocate(n, sizeof *acc);
    float *expected = allocate(n, sizeof *expected);
    float *added = allocate(n, sizeof *added);
    for (uint64_t i = 0; i < n; i++) {
        acc[i] = expected[i] = random_below(9) == 0 ? -0.0f : random_value();
    }
    const uint64_t left_out = reference_accumulate(expected, added, &push);

    double sums[2] = {3.0, -5.0};
    assert_int_equal(accumulate(acc, gradients, ranks, dtype, n, sums), left_out);
    assert_same_bits(acc, expected, n);
    double expected_sums[2] = {3.0, -5.0};
    reference_ledger(added, n, expected_sums);
    assert_true(same_double(sums[0], expected_sums[0]));
    assert_true(same_double(sums[1], expected_sums[1]));
    double ledger[2] = {3.0, -5.0};
    ledger_sums(added, n, ledger);
    assert_true(same_double(ledger[0], sums[0]));
    assert_true(same_double(ledger[1], sums[1]));

    for (uint64_t i = 0; i < n; i++) {
        expected[i] = acc[i] - added[i];
    }
    double size = 8;
    for (uint64_t i = 0; i < n; i++) {
        size += fabs((double)added[i]);
    }
    withdraw(acc, gradients, ranks, dtype, n, sums);
    assert_same_bits(acc, expected, n);
    assert_near(sums[0], 3.0, size * 0x1p-50);
    assert_near(sums[1], -5.0, size * 0x1p-50);
    free(acc);
    free(expected);
    free(added);
    push_drop(&push);
}

static void test_accumulate_and_withdraw(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {
        0, 1, 7, 63, 64, 65, 255, 256, 257, 511, 1000, 4096, 4099, 8200};
    for (int round = 0; round < 20; round++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
                check_accumulate((enum dtype)dtype, (unsigned)random_below(10), sizes[s]);
            }
        }
    }
    check_accumulate(DTYPE_BF16, 65, 300);
}

/* Small integers cause no rounding, so adding and withdrawing is exact. */
static void test_round_trip_of_integers_is_exact(void **state)
{
    (void)state;
    enum { N = 1000, RANKS = 5 };
    static float gradient[RANKS][N];
    static float acc[N];
    static float before[N];
    const void *gradients[RANKS];
    double plain = 0;
    double hashed = 0;
    for (unsigned r = 0; r < RANKS; r++) {
        gradients[r] = gradient[r];
        for (unsigned i = 0; i < N; i++) {
            gradient[r][i] = (float)random_below(2001) - 1000.0f;
            plain += (double)gradient[r][i];
            hashed += (double)gradient[r][i] * ledger_sign(i);
        }
    }
    for (unsigned i = 0; i < N; i++) {
        acc[i] = before[i] = (float)random_below(2001) - 1000.0f;
    }
    double sums[2] = {0, 0};
    assert_int_equal(accumulate(acc, gradients, RANKS, DTYPE_F32, N, sums), 0);
    assert_true(sums[0] == plain && sums[1] == hashed);
    withdraw(acc, gradients, RANKS, DTYPE_F32, N, sums);
    assert_same_bits(acc, before, N);
    assert_true(sums[0] == 0 && sums[1] == 0);
}

static void test_finite_limit(void **state)
{
    (void)state;
    const float gradient[] = {
        nextafterf(0x1p120f, 0), 0x1p120f, -0x1p120f, INFINITY, -INFINITY, NAN, 1.0f};
    const float opposite[] = {0, 0, 0, -INFINITY, 0, 0, 0};
    const void *gradients[] = {gradient, opposite};
    float acc[7] = {-0.0f, -0.0f, 2, 3, 4, 5, 6};
    const float expected[7] = {nextafterf(0x1p120f, 0), -0.0f, 2, 3, 4, 5, 7};
    double sums[2] = {0, 0};
    assert_int_equal(accumulate(acc, gradients, 2, DTYPE_F32, 7, sums), 5);
    assert_same_bits(acc, expected, 7);
    assert_true(sums[0] == (double)nextafterf(0x1p120f, 0) + 1.0);
}

/* The signs of element i by the documented product. */
static double reference_sign(uint64_t i)
{
    static const int parity[] = {0, 1, 1, 0};
    uint64_t bits[2];
    for (uint64_t b = 0; b < 2; b++) { /* two numbers of splitmix64 per chunk, seeded with 0 */
        uint64_t z = (2 * (i / 4096) + b + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        bits[b] = z ^ (z >> 31);
    }
    const uint64_t word = bits[0] >> (i % 4096 / 64) & 1;
    const uint64_t lane = bits[1] >> (i % 16) & 1;
    return (word + lane + (uint64_t)parity[i % 64 / 16]) % 2 == 1 ? -1.0 : 1.0;
}

static void test_ledger_sign(void **state)
{
    (void)state;
    static const uint64_t shifts[] = {1, 2, 7, 8, 9, 64, 65, 100, 4096, 4097, 100000};
    enum { N = 1 << 20 };
    int64_t balance = 0;
    int64_t changes[sizeof shifts / sizeof *shifts] = {0};
    for (uint64_t i = 0; i < N; i++) {
        const double sign = ledger_sign(i);
        assert_true(sign == reference_sign(i));
        balance += sign > 0 ? 1 : -1;
        for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
            changes[s] += sign != ledger_sign(i + shifts[s]);
        }
    }
    assert_true(llabs((long long)balance) < N / 20);
    /* A shift by any distance gives many elements the other sign. */
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
        assert_true(changes[s] > N / 3 && changes[s] < 3 * (N / 4));
    }
}

/* ---- dense sums ---- */

static void test_dense(void **state)
{
    (void)state;
    float acc[] = {1, 2, -3, 0.5f, 7};
    const float x[] = {0.25f, -2, 1e9f, 0.5f, 100};
    dense_add(acc, x, 4);
    const float added[] = {1.25f, 0, 1e9f - 3.0f, 1, 7};
    assert_same_bits(acc, added, 5);
    dense_scale(acc, 4, 0.1f);
    const float scaled[] = {1.25f * 0.1f, 0, (1e9f - 3.0f) * 0.1f, 0.1f, 7};
    assert_same_bits(acc, scaled, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_size),
        cmocka_unit_test(test_half_types_to_f32),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_bf16_keeps_its_own_values),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_rest_sum),
        cmocka_unit_test(test_rest_of_vanished_sum),
        cmocka_unit_test(test_rest_sum_not_finite),
        cmocka_unit_test(test_accumulate_and_withdraw),
        cmocka_unit_test(test_round_trip_of_integers_is_exact),
        cmocka_unit_test(test_finite_limit),
        cmocka_unit_test(test_ledger_sign),
        cmocka_unit_test(test_dense),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
