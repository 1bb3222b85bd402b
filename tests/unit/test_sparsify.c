/* The sparsifiers: their arithmetic of counts and views, their selections, and error feedback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sparsify/sparsifier.h"
#include "kernels/cpu/leave.h"
#include "tests/unit/arrays.h"

static const struct sparsifier_ops *find(const char *name)
{
    const struct sparsifier_ops *ops = sparsifier_find(name);
    assert_non_null(ops);
    return ops;
}

static struct sparsifier_choice choose(const struct sparsifier_ops *ops,
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t number)
{
    const struct sparsifier_agreed agreed = {.real = {0}};
    const struct sparsifier_turn turn = {
        .shape = shape, .params = params, .agreed = &agreed, .turn = number};
    struct sparsifier_choice choice;
    ops->choose(&turn, &choice);
    return choice;
}

static uint64_t count_of(const struct sparsifier_ops *ops, const struct tensor_shape *shape,
    const struct sparsifier_params *params, uint64_t number)
{
    return choose(ops, shape, params, number).count;
}

static struct tensor_shape shape_4(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return (struct tensor_shape){.dims = 4, .size = {a, b, c, d}};
}

static struct tensor_shape shape_2(uint64_t a, uint64_t b)
{
    return (struct tensor_shape){.dims = 2, .size = {a, b}};
}

static void test_table(void **state)
{
    (void)state;
    static const char *const names[] = {"dense", "topk", "adtopk", "dgc", "gaussiank", "redsync",
        "redsync-trim", "sidco", "threshold", "randomk"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_string_equal(sparsifier_find(names[i])->name, names[i]);
    }
    for (size_t i = 0; sparsifier_table[i] != NULL; i++) {
        assert_ptr_equal(sparsifier_find(sparsifier_table[i]->name), sparsifier_table[i]);
    }
    assert_null(sparsifier_find("top"));
    assert_null(sparsifier_find(""));
    assert_null(sparsifier_find("topk2"));
}

static void test_numel(void **state)
{
    (void)state;
    const struct tensor_shape scalar = {.dims = 0};
    assert_int_equal(tensor_numel(&scalar), 1);
    const struct tensor_shape conv = shape_4(64, 3, 7, 7);
    assert_int_equal(tensor_numel(&conv), 9408);
    const struct tensor_shape empty = shape_4(64, 0, 7, 7);
    assert_int_equal(tensor_numel(&empty), 0);
    const struct tensor_shape largest = shape_2(UINT64_C(1) << 20, UINT64_C(1) << 20);
    assert_true(tensor_numel(&largest) == UINT64_C(1) << 40);
    const struct tensor_shape larger = shape_2((UINT64_C(1) << 20) + 1, UINT64_C(1) << 20);
    assert_int_equal(tensor_numel(&larger), 0);
    const struct tensor_shape wraps = shape_4(UINT64_C(1) << 32, UINT64_C(1) << 32, 5, 1);
    assert_int_equal(tensor_numel(&wraps), 0);
    struct tensor_shape too_many = {.dims = TENSOR_MAX_DIMS + 1};
    for (unsigned d = 0; d < TENSOR_MAX_DIMS; d++) {
        too_many.size[d] = 1;
    }
    assert_int_equal(tensor_numel(&too_many), 0);
}

/* floor(length * percent / 100) in integers, at least 1. */
static void test_counts_of_decimal_densities(void **state)
{
    (void)state;
    const struct sparsifier_ops *topk = find("topk");
    for (uint64_t percent = 1; percent <= 100; percent++) {
        const struct sparsifier_params params = {.density = (double)percent / 100};
        const struct sparsifier_params literal = {.density = (double)percent * 0.01};
        for (uint64_t n = 1; n <= 3000; n++) {
            const struct tensor_shape shape = shape_2(1, n);
            const uint64_t expected = n * percent / 100 > 0 ? n * percent / 100 : 1;
            assert_int_equal(count_of(topk, &shape, &params, 0), expected);
            assert_int_equal(count_of(topk, &shape, &literal, 0), expected);
        }
    }
    const struct tensor_shape large = shape_2(1 << 20, 1 << 12);
    const struct sparsifier_params permille = {.density = 0.001};
    assert_int_equal(count_of(topk, &large, &permille, 0), (UINT64_C(1) << 32) / 1000);
}

/* The densities that follow from the paper's rule and its minimum of one entry per fibre. */
static void test_adtopk_counts(void **state)
{
    (void)state;
    const struct sparsifier_ops *adtopk = find("adtopk");
    const struct sparsifier_params params = {.density = 0.01};
    const struct {
        struct tensor_shape shape;
        uint64_t per_fibre;
        uint64_t count;
    } cases[] = {
        {shape_4(64, 3, 7, 7), 1, 3136},
        {shape_4(64, 64, 3, 3), 1, 576},
        {shape_2(768, 768), 7, 5376},
        {shape_4(32, 1, 3, 3), 1, 288},
        {shape_2(10, 300), 3, 30},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(choose(adtopk, &cases[i].shape, &params, 3).per_fibre, cases[i].per_fibre);
        assert_int_equal(count_of(adtopk, &cases[i].shape, &params, 3), cases[i].count);
    }
}

static void assert_view(struct view view, uint64_t fibres, uint64_t length, uint64_t stride)
{
    assert_int_equal(view.fibres, fibres);
    assert_int_equal(view.length, length);
    assert_int_equal(view.stride, stride);
}

static struct view adtopk_view_of(struct tensor_shape shape, enum fibres view)
{
    const struct sparsifier_params params = {.density = 0.01, .fibres = view};
    return choose(find("adtopk"), &shape, &params, 0).view;
}

static void test_adtopk_views(void **state)
{
    (void)state;
    const struct tensor_shape conv = shape_4(64, 16, 3, 5);
    assert_view(adtopk_view_of(conv, FIBRES_AXIS_1), 64 * 15, 16, 15);
    assert_view(adtopk_view_of(conv, FIBRES_ROW), 64, 16 * 15, 1);
    assert_view(adtopk_view_of(conv, FIBRES_LONGEST), 16 * 15, 64, 16 * 15);
    const struct tensor_shape wide = shape_4(16, 64, 3, 5);
    assert_view(adtopk_view_of(wide, FIBRES_LONGEST), 16 * 15, 64, 15);
    assert_view(adtopk_view_of(shape_2(8, 8), FIBRES_LONGEST), 8, 8, 1);
    assert_view(adtopk_view_of(shape_2(30, 20), FIBRES_AXIS_1), 30, 20, 1);
    assert_view(adtopk_view_of(shape_2(30, 20), FIBRES_LONGEST), 20, 30, 20);
    assert_view(adtopk_view_of(shape_2(64, 128), FIBRES_CHUNK), 2, 4096, 1);
    assert_view(adtopk_view_of(shape_2(30, 20), FIBRES_CHUNK), 1, 600, 1);
    assert_view(adtopk_view_of(shape_2(50257, 768), FIBRES_CHUNK), 10398, 3712, 1);
    assert_view(adtopk_view_of(shape_2(2, 4099), FIBRES_CHUNK), 1, 8198, 1); /* a prime */
    assert_view(adtopk_view_of(shape_2(257, 257), FIBRES_CHUNK), 257, 257, 1);
    assert_view(adtopk_view_of(shape_2(251, 251), FIBRES_CHUNK), 1, 63001, 1);
    const struct tensor_shape bias = {.dims = 1, .size = {50}};
    assert_view(adtopk_view_of(bias, FIBRES_AXIS_1), 1, 50, 1);
}

static void test_interleave(void **state)
{
    (void)state;
    const struct sparsifier_ops *adtopk = find("adtopk");
    const struct tensor_shape shape = shape_4(64, 3, 7, 7);
    const struct sparsifier_params params = {.density = 0.01, .interleave = true};
    for (uint64_t turn = 0; turn < 6; turn++) {
        const bool global = turn % 2 == 1;
        const struct view view = choose(adtopk, &shape, &params, turn).view;
        if (global) {
            assert_view(view, 1, 9408, 1);
        } else {
            assert_view(view, 64 * 49, 3, 49);
        }
        assert_int_equal(choose(adtopk, &shape, &params, turn).per_fibre, global ? 0 : 1);
        assert_int_equal(count_of(adtopk, &shape, &params, turn), global ? 94 : 3136);
    }
}

static void assert_not_sparsified(const struct sparsifier_ops *ops,
    const struct tensor_shape *shape, const struct sparsifier_params *params)
{
    for (uint64_t turn = 0; turn < 2; turn++) {
        assert_int_equal(count_of(ops, shape, params, turn), 0);
        assert_int_equal(choose(ops, shape, params, turn).per_fibre, 0);
        assert_view(choose(ops, shape, params, turn).view, 1, tensor_numel(shape), 1);
    }
}

static void test_what_travels_dense(void **state)
{
    (void)state;
    const struct tensor_shape shapes[] = {{.dims = 0}, {.dims = 1, .size = {1000}},
        {.dims = 2, .size = {0, 5}}, {.dims = 2, .size = {5, 0}},
        {.dims = TENSOR_MAX_DIMS + 1, .size = {1, 1, 1, 1, 1, 1, 1, 1}}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t i = 0; sparsifier_table[i] != NULL; i++) {
            for (int view = 0; view < FIBRES_COUNT; view++) {
                const struct sparsifier_params params = {
                    .density = 0.5, .fibres = (enum fibres)view, .interleave = true};
                assert_not_sparsified(sparsifier_table[i], &shapes[s], &params);
            }
        }
    }
    const struct tensor_shape matrix = shape_2(100, 100);
    const struct sparsifier_params all = {.density = 1.0};
    assert_int_equal(count_of(find("dense"), &matrix, &all, 0), 0);
    /* A full density is a count like any other: the planner decides which tensors are sent dense.
     */
    assert_int_equal(count_of(find("topk"), &matrix, &all, 0), 10000);
    assert_int_equal(count_of(find("adtopk"), &matrix, &all, 0), 10000);
}

/* Counts the elements that rank before element `index` among x[start], x[start + step], ...
 * (`length` of them). They are larger in magnitude, or equal and earlier. */
static uint64_t beaten_by(
    const float *x, uint64_t start, uint64_t step, uint64_t length, uint64_t index)
{
    const double mine = fabs((double)x[start + index * step]);
    uint64_t count = 0;
    for (uint64_t j = 0; j < length; j++) {
        const double other = fabs((double)x[start + j * step]);
        count += other > mine || (other == mine && j < index);
    }
    return count;
}

struct turn {
    const struct sparsifier_ops *ops;
    struct tensor_shape shape;
    struct sparsifier_params params;
    uint64_t number;
};

/* Selects, checks the shape of the result, and marks selected elements in chosen[element]. */
static struct sparse select_turn(const struct turn *t, const float *x, bool *chosen)
{
    const struct view view = choose(t->ops, &t->shape, &t->params, t->number).view;
    const uint64_t n = tensor_numel(&t->shape);
    struct sparse out = sparse_make(count_of(t->ops, &t->shape, &t->params, t->number));
    void *scratch = allocate(1, select_scratch(n));
    const uint64_t per_fibre = choose(t->ops, &t->shape, &t->params, t->number).per_fibre;
    if (per_fibre > 0) {
        select_fibres(x, &view, per_fibre, &out, scratch);
    } else {
        select_top(x, &view, out.capacity, &out, scratch);
    }
    free(scratch);
    assert_int_equal(out.count, out.capacity);
    assert_int_equal(view_size(&view), n);
    for (size_t i = 0; i < out.count; i++) {
        assert_true(i == 0 || out.position[i - 1] < out.position[i]);
        const uint64_t element = view_element(&view, out.position[i]);
        assert_same_bits(&out.value[i], &x[element], 1);
        chosen[element] = true;
    }
    return out;
}

static float *coarse_values(uint64_t n)
{
    float *x = allocate(n, sizeof *x);
    for (uint64_t i = 0; i < n; i++) {
        x[i] = (float)((int)random_below(41) - 20); /* plenty of ties */
    }
    return x;
}

/* Element (o, j, y) of [outer][length][inner] is selected if fewer than k elements of its fibre
 * rank before it. */
static void check_fibres(
    const float *x, const bool *chosen, uint64_t outer, uint64_t length, uint64_t inner, uint64_t k)
{
    for (uint64_t o = 0; o < outer; o++) {
        for (uint64_t y = 0; y < inner; y++) {
            const uint64_t start = o * length * inner + y;
            for (uint64_t j = 0; j < length; j++) {
                assert_int_equal(
                    chosen[start + j * inner], beaten_by(x, start, inner, length, j) < k);
            }
        }
    }
}

static void test_selections(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const uint64_t a = 1 + random_below(12);
        const uint64_t b = 1 + random_below(12);
        const uint64_t c = 1 + random_below(4);
        const uint64_t d = 1 + random_below(3);
        const uint64_t n = a * b * c * d;
        const uint64_t percent = 1 + random_below(100);
        for (int view = 0; view < FIBRES_COUNT; view++) {
            struct turn t = {.ops = find("adtopk"),
                .shape = shape_4(a, b, c, d),
                .params = {.density = (double)percent / 100,
                    .fibres = (enum fibres)view,
                    .interleave = true}};
            const bool along_0 = view == FIBRES_LONGEST && a > b;
            const uint64_t outer = along_0 || view == FIBRES_CHUNK ? 1 : a;
            const uint64_t length = along_0                ? a
                                    : view == FIBRES_ROW   ? b * c * d
                                    : view == FIBRES_CHUNK ? n /* fewer than 4,096 */
                                                           : b;
            const uint64_t inner = n / (outer * length);
            const uint64_t k = length * percent / 100 > 0 ? length * percent / 100 : 1;
            const uint64_t k_global = n * percent / 100 > 0 ? n * percent / 100 : 1;
            float *x = coarse_values(n);
            for (; t.number < 3; t.number++) {
                bool *chosen = allocate(n, sizeof *chosen);
                struct sparse out = select_turn(&t, x, chosen);
                if (t.number % 2 == 0) {
                    check_fibres(x, chosen, outer, length, inner, k);
                } else {
                    check_fibres(x, chosen, 1, n, 1, k_global);
                }
                sparse_drop(&out);
                free(chosen);
            }
            free(x);
        }
    }
}

static void test_topk_selects_globally_every_turn(void **state)
{
    (void)state;
    struct turn t = {.ops = find("topk"), .shape = shape_4(7, 5, 3, 2), .params = {.density = 0.1}};
    for (; t.number < 4; t.number++) {
        float *x = coarse_values(210);
        bool *chosen = allocate(210, sizeof *chosen);
        struct sparse out = select_turn(&t, x, chosen);
        check_fibres(x, chosen, 1, 210, 1, 21);
        sparse_drop(&out);
        free(chosen);
        free(x);
    }
}

/* With error feedback everything is sent in the end, whatever the sparsifier selects. */
static void test_feedback_loses_nothing(void **state)
{
    (void)state;
    struct turn t = {.ops = find("adtopk"),
        .shape = shape_4(6, 10, 2, 2),
        .params = {.density = 0.1, .interleave = true}};
    const uint64_t n = tensor_numel(&t.shape);
    float *acc = allocate(n, sizeof *acc);
    float *received = allocate(n, sizeof *received);
    float *pushed = allocate(n, sizeof *pushed);
    bool *chosen = allocate(n, sizeof *chosen);
    double input[2] = {0, 0};
    double applied[2] = {0, 0};
    const struct parallel alone = {0};
    for (; t.number < 50; t.number++) {
        float *gradient = coarse_values(n);
        const void *gradients[] = {gradient};
        assert_int_equal(accumulate(acc, gradients, 1, DTYPE_F32, n, input), 0);
        dense_add(pushed, gradient, n);
        const struct view view = choose(t.ops, &t.shape, &t.params, t.number).view;
        struct sparse sent = select_turn(&t, acc, chosen);
        const struct leave leave = {&view, &sent, NULL};
        leave_sums(&leave, applied, &alone);
        leave_residual(acc, NULL, &leave, sent.value, &alone);
        for (size_t i = 0; i < sent.count; i++) {
            received[view_element(&view, sent.position[i])] += sent.value[i];
        }
        sparse_drop(&sent);
        free(gradient);
    }
    double kept[2] = {0, 0};
    ledger_sums(acc, n, kept);
    dense_add(received, acc, n);
    assert_same_bits(received, pushed, n);
    assert_true(input[0] == applied[0] + kept[0] && input[1] == applied[1] + kept[1]);
    free(chosen);
    free(pushed);
    free(received);
    free(acc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_numel),
        cmocka_unit_test(test_counts_of_decimal_densities),
        cmocka_unit_test(test_adtopk_counts),
        cmocka_unit_test(test_adtopk_views),
        cmocka_unit_test(test_interleave),
        cmocka_unit_test(test_what_travels_dense),
        cmocka_unit_test(test_selections),
        cmocka_unit_test(test_topk_selects_globally_every_turn),
        cmocka_unit_test(test_feedback_loses_nothing),
    };
    return cmocka_run_group_tests_name("sparsify", tests, NULL, NULL);
}
