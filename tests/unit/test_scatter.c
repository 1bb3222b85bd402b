/* Lists as elements and as dense arrays, against the definition of a view. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/scatter.h"
#include "tests/unit/arrays.h"

/* Runs parts as several threads might, the last part first. */
static void backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    unsigned *most = context;

    *most = parts > *most ? parts : *most;
    for (unsigned p = parts; p-- > 0;) {
        part(arg, p, caller);
    }
}

static struct sparse some_list(uint64_t n, uint64_t chance)
{
    struct sparse list = sparse_make(n);

    for (uint64_t p = 0; p < n; p++) {
        if (random_below(1u << 20) < chance) {
            list.position[list.count] = (uint32_t)p;
            list.value[list.count++] = random_below(9) == 0 ? -0.0f : random_value();
        }
    }
    return list;
}

static void check_dense(const struct view *view, const struct sparse *list, const uint64_t *map,
    const struct parallel *parallel)
{
    const uint64_t n = view_size(view);
    float *dense = allocate(n, sizeof(*dense)), *expected = allocate(n, sizeof(*expected));

    memset(dense, 0x55, n * sizeof(*dense)); /* the rest of the last turn */
    for (size_t i = 0; i < list->count; i++) {
        expected[map[list->position[i]]] = list->value[i];
    }
    scatter_dense(dense, view, list, parallel);
    assert_same_bits(dense, expected, n);
    free(dense);
    free(expected);
}

static void check_index(const struct view *view, struct sparse *list, const uint64_t *map,
    const struct parallel *parallel)
{
    uint32_t *index = allocate(list->count, sizeof(*index));

    scatter_index(index, view, list, parallel);
    for (size_t i = 0; i < list->count; i++) {
        assert_int_equal(index[i], map[list->position[i]]);
    }
    scatter_index(list->position, view, list, parallel);
    assert_memory_equal(list->position, index, list->count * sizeof(*index));
    free(index);
}

static void check_view(uint64_t outer, uint64_t length, uint64_t stride, uint64_t chance)
{
    const struct view view = {.fibres = outer * stride, .length = length, .stride = stride};
    const struct parallel none = {0};
    unsigned most = 1; /* parts of a loop */
    const struct parallel many = {.run = backwards, .context = &most, .threads = 4},
                          eager = {.run = backwards, .context = &most, .threads = 4, .eager = true};
    uint64_t *map = reference_map(outer, length, stride);
    struct sparse list = some_list(view_size(&view), chance);

    check_dense(&view, &list, map, &none);
    check_dense(&view, &list, map, &many);
    assert_true(most > 1 || view_size(&view) < 2u << 19);
    check_dense(&view, &list, map, &eager);
    check_index(&view, &list, map, random_below(2) == 0 ? &many : &eager);
    sparse_drop(&list);
    free(map);
}

static void test_small(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        check_view(1 + random_below(5), 1 + random_below(20), 1 + random_below(5),
            UINT64_C(1) << random_below(21));
    }
}

/* Fibres across the whole tensor, which bands fill in: few and many of them, with lengths around
 * those of bands. */
static void test_far(void **state)
{
    static const uint64_t shape[][3] = {{1, 33, 2100}, {1, 32, 2049}, {2, 70, 1024}, {1, 4000, 17},
        {3, 2, 33000}, {1, 1, 70000}, {1, 31, 3000}};

    (void)state;
    for (unsigned s = 0; s < sizeof(shape) / sizeof(shape[0]); s++) {
        for (unsigned shift = 12; shift <= 20; shift += 2) {
            check_view(shape[s][0], shape[s][1], shape[s][2], UINT64_C(1) << shift);
        }
    }
}

/* Large enough to be cut in parts. */
static void test_parts(void **state)
{
    static const uint64_t shape[][3] = {
        {1, 1300000, 1}, {1000, 1300, 1}, {1, 1300, 1000}, {260, 500, 10}, {2, 5, 130000}};

    (void)state;
    for (unsigned s = 0; s < sizeof(shape) / sizeof(shape[0]); s++) {
        check_view(shape[s][0], shape[s][1], shape[s][2], 1u << 17);
        check_view(shape[s][0], shape[s][1], shape[s][2], 1u << 10);
    }
}

static void test_empty(void **state)
{
    const struct view view = {.fibres = 3, .length = 2, .stride = 3}, nothing = {0, 0, 1};
    const struct sparse none = {0};
    const struct parallel alone = {0};
    float dense[6] = {1, 2, 3, 4, 5, 6};
    const float zero[6] = {0};

    (void)state;
    scatter_dense(dense, &view, &none, &alone);
    assert_same_bits(dense, zero, 6);
    scatter_dense(dense, &nothing, &none, &alone);
    scatter_index(NULL, &view, &none, &alone);
    scatter_index(NULL, &nothing, &none, &alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
