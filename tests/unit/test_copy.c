/* Copies between the program's arrays and shared memory: client/src/copy.h and
 * adtopk_copy_update(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <adtopk/adtopk.h>

#include "client/src/copy.h"

/* Copies of every size and place, and what lies before and behind them. */
static void test_copy(void **state)
{
    static const size_t sizes[] = {0, 1, 100, ((size_t)2 << 20) - 1, (size_t)2 << 20,
        ((size_t)2 << 20) + 63, ((size_t)3 << 20) + 7};
    const size_t room = (size_t)4 << 20;
    uint8_t *from = malloc(room), *to = malloc(room);

    (void)state;
    assert_true(from != NULL && to != NULL);
    for (size_t i = 0; i < room; i++) {
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t at = 60; at < 70; at++) {
            memset(to, 0xee, room);
            client_copy(to + at, from + 3, sizes[s]);
            assert_memory_equal(to + at, from + 3, sizes[s]);
            assert_true(to[at - 1] == 0xee && to[at + sizes[s]] == 0xee);
        }
    }
    free(from);
    free(to);
}

static void test_copy_update(void **state)
{
    const uint32_t index[] = {3, 1};
    const float value[] = {2, -1}, dense[] = {5, 6, 7, 8};
    const uint16_t dense16[] = {1, 2, 3, 4};
    struct adtopk_update update = {
        .size = sizeof update, .index = index, .value = value, .count = 2, .numel = 4};
    float to[4] = {9, 9, 9, 9};

    (void)state;
    adtopk_copy_update(to, &update);
    assert_true(to[0] == 0 && to[1] == -1 && to[2] == 0 && to[3] == 2);
    update.dense = dense;
    adtopk_copy_update(to, &update);
    assert_memory_equal(to, dense, sizeof dense);
    update.dense16 = dense16;
    adtopk_copy_update(to, &update);
    assert_memory_equal(to, dense16, sizeof dense16);
}

#define LARGEST ((size_t)600000)
#define GUARD 20u

/* A list of some of `numel` elements, in ascending order. */
struct copied_list {
    uint32_t index[LARGEST];
    float value[LARGEST];
    size_t count;
};

static void list_fill(struct copied_list *list, size_t numel, uint32_t every)
{
    uint32_t state = 1;

    list->count = 0;
    for (size_t i = 0; i < numel; i++) {
        state = state * 1664525u + 1013904223u;
        if (every == 1 || (state >> 8) % every == 0) {
            list->index[list->count] = (uint32_t)i;
            list->value[list->count++] = (float)(i % 1000) + 1;
        }
    }
}

static void list_swap(struct copied_list *list, size_t a, size_t b)
{
    const uint32_t index = list->index[a];
    const float value = list->value[a];

    list->index[a] = list->index[b];
    list->value[a] = list->value[b];
    list->index[b] = index;
    list->value[b] = value;
}

/* The copy beside the plain definition, with what lies before and behind. */
static void list_compare(const struct copied_list *list, float *to, float *expected, size_t numel)
{
    for (size_t at = GUARD - 2; at < GUARD + 16; at += 3) {
        for (size_t i = 0; i < numel + 2 * GUARD + 16; i++) {
            to[i] = -7;
            expected[i] = i >= at && i - at < numel ? 0.0f : -7.0f;
        }
        for (size_t i = 0; i < list->count; i++) {
            expected[at + list->index[i]] = list->value[i];
        }
        client_copy_list(to + at, numel, list->index, list->value, list->count);
        assert_memory_equal(to, expected, (numel + 2 * GUARD + 16) * sizeof *to);
    }
}

/* Lists of every length and order, in small and large arrays at every place in a line. */
static void test_copy_list(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 1000, 524287, 524288, 525313, LARGEST - 1};
    static const uint32_t every[] = {1, 3, 40, 5000, UINT32_MAX};
    struct copied_list *list = malloc(sizeof *list);
    float *to = malloc((LARGEST + 4 * GUARD) * sizeof *to);
    float *expected = malloc((LARGEST + 4 * GUARD) * sizeof *expected);

    (void)state;
    assert_true(list != NULL && to != NULL && expected != NULL);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t e = 0; e < sizeof every / sizeof *every; e++) {
            list_fill(list, sizes[s], every[e]);
            list_compare(list, to, expected, sizes[s]);
            for (size_t i = list->count; i > list->count / 2 + 1; i -= 2) { /* the second half */
                list_swap(list, i - 1, i - 2);
            }
            list_compare(list, to, expected, sizes[s]);
            for (size_t i = 0; i < list->count / 2; i++) { /* backwards */
                list_swap(list, i, list->count - 1 - i);
            }
            list_compare(list, to, expected, sizes[s]);
        }
    }
    free(list);
    free(to);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_copy_update),
        cmocka_unit_test(test_copy_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
