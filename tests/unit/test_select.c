/* The selection kernels, compared with sorting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/plain.h"
#include "tests/unit/arrays.h"
#include "tests/unit/select_reference.h"

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
    /* Exactly the documented size, so that the address sanitizer finds every overrun. */
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
    /* Too long to be gathered into scratch, and strided. */
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
