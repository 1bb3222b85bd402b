/* Values of 1 to 4 bits: every implementation compared with double precision, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/packed.h"
#include "tests/unit/arrays.h"
#include "tests/unit/values_reference.h"

enum { BLOCK = QUANTISE_BLOCK, KINDS = 9 };

static const enum quantisation types[] = {
    QUANTISE_TWO, QUANTISE_SIGN, QUANTISE_INT4, QUANTISE_INT3};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

static float any_bits(void)
{
    const uint32_t bits = (uint32_t)random_below(UINT64_C(1) << 32);
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float uniform(void)
{
    return (float)((double)random_below(1 << 24) / (1 << 23) - 1);
}

/* Selected entries of a residual, and values that are hard for an encoder. */
static void fill(float *x, size_t n, unsigned kind)
{
    const float one = uniform();

    for (size_t i = 0; i < n; i++) {
        const float u = uniform();

        switch (kind) {
        case 0: x[i] = u < 0 ? u - 1 : u + 1; break; /* beyond a threshold */
        case 1: x[i] = u / (u * u + 0.01f); break;   /* a long tail */
        case 2: x[i] = any_bits(); break;            /* NaN, infinity, denormals */
        case 3: x[i] = random_below(10) == 0 ? 0 : u; break;
        case 4: x[i] = 0; break;
        case 5: x[i] = one; break;
        case 6: x[i] = u * 0x1p-140f; break;                             /* denormals */
        case 7: x[i] = random_below(3) == 0 ? 3.0f : -0.0078125f; break; /* bf16 holds them */
        default: x[i] = (float)(int)random_below(5) - 2; break;
        }
    }
}

static void encode(const struct packed_ops *ops, const float *x, size_t n, enum quantisation type,
    struct packed_block *block, float *decoded)
{
    memset(block, 0x5a, sizeof(*block));
    packed_encode(ops, x, n, type, block);
    packed_decode(ops, block, n, type, decoded);
}

static void assert_values(const float *got, const float *wanted, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &wanted[i], sizeof(*got)) != 0) {
            fail_msg("value %zu of %zu, %a, became %a, not %a", i, n, (double)x[i], (double)got[i],
                (double)wanted[i]);
        }
    }
}

/* All implementations make the same block. It decodes to the values of the definition, and those
 * encode to the same block again. */
static void check_block(const float *x, size_t n, enum quantisation type)
{
    float wanted[BLOCK], decoded[BLOCK], again[BLOCK];
    struct packed_block first, block;

    reference_block(x, n, type, wanted);
    encode(&packed_plain, x, n, type, &first, decoded);
    assert_values(decoded, wanted, x, n);
    assert_null(packed_fault(&first, n, type));
    for (size_t i = 0; packed_table[i] != NULL; i++) {
        const struct packed_ops *ops = packed_table[i];

        if (!ops->supported()) {
            continue;
        }
        encode(ops, x, n, type, &block, decoded);
        assert_memory_equal(&block, &first, sizeof(block));
        assert_values(decoded, wanted, x, n);
        encode(ops, decoded, n, type, &block, again);
        assert_memory_equal(&block, &first, sizeof(block));
        assert_values(again, decoded, x, n);
    }
}

static void test_definition(void **state)
{
    float x[BLOCK];

    (void)state;
    for (unsigned turn = 0; turn < 20000; turn++) {
        const size_t n = turn % 3 == 0 ? BLOCK : 1 + random_below(BLOCK);

        fill(x, n, turn / TYPES % KINDS);
        check_block(x, n, types[turn % TYPES]);
    }
}

/* All pairs of extreme numbers, at the ends of blocks of several lengths. */
static void test_extremes(void **state)
{
    const float cases[] = {0, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-133f, 0x1.8p-133f,
        0x1.fffffep-127f, -0x1p-126f, 1, -0x1.0002p0f, 0x1.fep127f, 0x1.ff8p127f, 0x1.fffffep127f,
        INFINITY, -INFINITY, NAN, -NAN};
    const size_t count = sizeof(cases) / sizeof(cases[0]), sizes[] = {2, 3, 17, 127, 128};
    float x[BLOCK];

    (void)state;
    for (size_t i = 0; i < count * count * TYPES * 5; i++) {
        const size_t n = sizes[i / count / count % 5];

        for (size_t j = 0; j < n; j++) {
            x[j] = cases[j % 2 == 0 ? i % count : i / count % count];
        }
        check_block(x, n, types[i / count / count / 5]);
    }
}

/* The mean magnitude is 1, so values above 1.15 form the upper group. */
static void test_groups(void **state)
{
    const float x[] = {0.5f, -0.75f, 1.0f, -1.15f, 1.6f};
    const float two[] = {0.8515625f, -0.8515625f, 0.8515625f, -0.8515625f, 1.6015625f};
    const float one[] = {1, -1, 1, -1, 1};
    struct packed_block block;
    float decoded[5];

    (void)state;
    encode(packed_best(), x, 5, QUANTISE_TWO, &block, decoded);
    assert_values(decoded, two, x, 5);
    encode(packed_best(), x, 5, QUANTISE_SIGN, &block, decoded);
    assert_values(decoded, one, x, 5);
}

/* A block with one fault that no encoder makes. */
struct fault {
    const char *text;
    enum quantisation type;
    size_t n;
    struct packed_block block;
};

static const struct fault faults[] = {
    {"a scale that is too large", QUANTISE_TWO, 1, {{0x7f80, 0}, {{0}}}},
    {"a scale that is too large", QUANTISE_TWO, 2, {{1, 0x8000}, {{0}, {1}}}},
    {"a scale that is too large", QUANTISE_SIGN, 1, {{0x7f80}, {{0}}}},
    {"a scale that is too large", QUANTISE_INT4, 1, {{0x7e13}, {{0}, {1}, {1}, {1}}}},
    {"a scale that is too large", QUANTISE_INT3, 1, {{0x7eab}, {{0}, {1}, {1}}}},
    {"padding that is not zero", QUANTISE_TWO, 3, {{1, 2}, {{0}, {9}}}},
    {"padding that is not zero", QUANTISE_SIGN, 8, {{1}, {{0, 1}}}},
    {"padding that is not zero", QUANTISE_INT3, 127,
        {{1}, {{0}, {1}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}}}},
    {"no upper magnitude, but values that have it", QUANTISE_TWO, 2, {{1, 0}, {{0}, {1}}}},
    {"an upper magnitude that no value has", QUANTISE_TWO, 2, {{1, 2}, {{0}, {0}}}},
    {"an upper magnitude that is not above the lower one", QUANTISE_TWO, 2, {{2, 2}, {{0}, {1}}}},
    {"no value of the lower magnitude", QUANTISE_TWO, 2, {{1, 2}, {{0}, {3}}}},
    {"a negative 0", QUANTISE_TWO, 2, {{0, 2}, {{2}, {1}}}},
    {"a negative 0", QUANTISE_SIGN, 2, {{0}, {{2}}}},
    {"a negative 0", QUANTISE_INT4, 2, {{1}, {{2}, {1}, {1}, {1}}}},
    {"levels without a step", QUANTISE_INT4, 2, {{0}, {{0}, {1}}}},
    {"no value of the largest level", QUANTISE_INT3, 2, {{1}, {{0}, {1}, {2}}}},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        const char *text = packed_fault(&faults[i].block, faults[i].n, faults[i].type);

        assert_non_null(text);
        assert_string_equal(text, faults[i].text);
    }
}

/* Any bits: a block without a fault is the block of its values, so every value has one form. */
static void test_one_form(void **state)
{
    unsigned good = 0;

    (void)state;
    for (unsigned turn = 0; turn < 200000; turn++) {
        const enum quantisation type = types[turn % TYPES];
        const size_t n = 1 + random_below(12);
        struct packed_block block = {.scale = {0}}, again;
        float decoded[BLOCK], twice[BLOCK];

        for (unsigned s = 0; s < packed_scales(type); s++) {
            block.scale[s] = (uint16_t)(random_below(3) * random_below(0x8000));
        }
        for (unsigned p = 0; p < packed_planes(type); p++) {
            block.plane[p][0] = (uint8_t)(random_below(256) & random_below(256));
            block.plane[p][1] = (uint8_t)(random_below(16) & random_below(16));
        }
        packed_decode(packed_best(), &block, n, type, decoded);
        encode(packed_best(), decoded, n, type, &again, twice);
        assert_true((packed_fault(&block, n, type) == NULL) ==
                    (memcmp(&block, &again, sizeof(block)) == 0));
        good += packed_fault(&block, n, type) == NULL;
    }
    assert_true(good > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_one_form),
    };

    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}
