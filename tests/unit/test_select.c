/* The selection kernels against sorting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "tests/unit/arrays.h"

struct ranked {
    double magnitude; /* NaN as 2^200, infinity as 2^199 */
    uint32_t position;
    float value;
};

static int by_rank(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    if (a->magnitude != b->magnitude) {
        return a->magnitude > b->magnitude ? -1 : 1;
    }
    return a->position < b->position ? -1 : a->position > b->position;
}

static int by_position(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    return a->position < b->position ? -1 : a->position > b->position;
}

/* Leaves the k best of list[0..n) in its first k places, in the order of positions. */
static void reference_select(struct ranked *list, uint64_t n, uint64_t k)
{
    qsort(list, n, sizeof *list, by_rank);
    qsort(list, k, sizeof *list, by_position);
}

static struct ranked *reference_list(const float *x, const uint64_t *map, uint64_t n)
{
    struct ranked *list = allocate(n, sizeof *list);
    for (uint64_t p = 0; p < n; p++) {
        const float v = x[map[p]];
        const double magnitude = isnan(v) ? 0x1p200 : isinf(v) ? 0x1p199 : fabs((double)v);
        list[p] = (struct ranked){.magnitude = magnitude, .position = (uint32_t)p, .value = v};
    }
    return list;
}

static void assert_selected(const struct sparse *out, const struct ranked *list, uint64_t k)
{
    for (uint64_t i = 0; i < k; i++) {
        assert_int_equal(out->position[i], list[i].position);
        assert_int_equal(bits_of(out->value[i]), bits_of(list[i].value));
    }
}

static void check_select(
    const float *x, uint64_t outer, uint64_t length, uint64_t stride, uint64_t k, bool fibres)
{
    const struct view view = {.fibres = outer * stride, .length = length, .stride = stride};
    const uint64_t n = view_size(&view);
    const uint64_t span = fibres ? length : n;
    const uint64_t wanted = k < span ? k : span;
    const uint64_t spans = fibres ? view.fibres : 1;
    uint64_t *map = reference_map(outer, length, stride);
    struct ranked *list = reference_list(x, map, n);
    struct sparse out = sparse_make(spans * wanted);
    /* Exactly what was asked for, so that the address sanitizer sees every overrun. */
    void *scratch = allocate(1, select_scratch(n));
    (fibres ? select_fibres : select_top)(x, &view, k, &out, scratch);
    assert_int_equal(out.count, spans * wanted);
    for (uint64_t s = 0; s < spans; s++) {
        reference_select(list + s * span, span, wanted);
        const struct sparse part = {
            .position = out.position + s * wanted, .value = out.value + s * wanted};
        assert_selected(&part, list + s * span, wanted);
    }
    free(scratch);
    sparse_drop(&out);
    free(list);
    free(map);
}

enum pattern {
    RANDOM,
    QUANTISED,
    CONSTANT,
    ASCENDING,
    DESCENDING,
    MOSTLY_ZERO,
    ZERO,
    HOT_BLOCK,
    SUBNORMAL,
    NOT_FINITE,
    ANY_BITS,
    PATTERN_COUNT
};

static float pattern_value(enum pattern pattern, uint64_t i, uint64_t n)
{
    const float sign = random_below(2) == 0 ? 1.0f : -1.0f;
    uint32_t bits = (uint32_t)random_next();
    float value;
    switch (pattern) {
    case QUANTISED: return sign * (float)random_below(4);
    case CONSTANT: return sign * 0.75f;
    case ASCENDING: return sign * (float)(i + 1);
    case DESCENDING: return sign * (float)(n - i);
    case MOSTLY_ZERO: return random_below(50) == 0 ? random_value() : sign * 0.0f;
    case ZERO: return sign * 0.0f;
    case HOT_BLOCK: return random_value() * (i >= n / 3 && i < n / 3 + 40 ? 1e6f : 1.0f);
    case NOT_FINITE:
        return random_below(20) == 0 ? NAN : random_below(20) == 0 ? sign * INFINITY : sign;
    case SUBNORMAL: bits &= 0x800007ffu; break;
    case ANY_BITS: bits &= (bits & 0x7f800000u) == 0x7f800000u ? 0xff800000u : UINT32_MAX; break;
    default: return random_value();
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float *pattern_make(enum pattern pattern, uint64_t n)
{
    float *x = allocate(n, sizeof *x);
    for (uint64_t i = 0; i < n; i++) {
        x[i] = pattern_value(pattern, i, n);
    }
    return x;
}

/* Some of the sizes and counts where off-by-one errors live. */
static uint64_t random_count(uint64_t length)
{
    switch (random_below(8)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return length;
    case 3: return length + 5;
    case 4: return length > 0 ? length - 1 : 0;
    case 5: return length / 100 + 1;
    default: return random_below(length + 1);
    }
}

static void check_random_shape(uint64_t outer, uint64_t length, uint64_t stride)
{
    const uint64_t n = outer * length * stride;
    float *x = pattern_make((enum pattern)random_below(PATTERN_COUNT), n);
    check_select(x, outer, length, stride, random_count(length), true);
    check_select(x, outer, length, stride, random_count(n), false);
    free(x);
}

static void test_select_small(void **state)
{
    (void)state;
    for (int round = 0; round < 4000; round++) {
        check_random_shape(random_below(6), random_below(40), 1 + random_below(5));
    }
    for (int round = 0; round < 400; round++) {
        check_random_shape(1 + random_below(3), random_below(3000), 1 + random_below(3));
    }
    for (int round = 0; round < 100; round++) {
        check_random_shape(1, random_below(1100) + 1000, 1);
        check_random_shape(1 + random_below(500), 1, 1 + random_below(9));
    }
}

static void test_select_every_pattern(void **state)
{
    (void)state;
    for (int pattern = 0; pattern < PATTERN_COUNT; pattern++) {
        const uint64_t n = 3 * 2500 * 2;
        float *x = pattern_make((enum pattern)pattern, n);
        static const uint64_t counts[] = {0, 1, 2, 25, 1250, 2499, 2500, 2501};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            check_select(x, 3, 2500, 2, counts[c], true);
            check_select(x, 3, 2500, 2, counts[c] * 6, false);
            check_select(x, 6, 2500, 1, counts[c], true);
            check_select(x, 1, n, 1, counts[c] * 6, false);
        }
        free(x);
    }
}

static void test_select_large(void **state)
{
    (void)state;
    check_random_shape(1, 100000, 1);
    check_random_shape(100, 1, 1000);
    check_random_shape(10, 100, 100);
    /* Longer than what is gathered into scratch, strided. */
    float *x = pattern_make(QUANTISED, 140000);
    check_select(x, 1, 70000, 2, 20000, true);
    check_select(x, 1, 70000, 2, 700, false);
    free(x);
    assert_true(select_scratch(UINT32_MAX) < 300 * 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select_small),
        cmocka_unit_test(test_select_every_pattern),
        cmocka_unit_test(test_select_large),
    };
    return cmocka_run_group_tests_name("select", tests, NULL, NULL);
}
