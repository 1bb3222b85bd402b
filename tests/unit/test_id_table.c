/* The hash table from numbers to pointers, compared with a plain array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/job/hash.h"
#include "daemon/job/id_table.h"

#define NUMBERS 3000u

static void test_like_an_array(void **state)
{
    static char thing[NUMBERS];
    static void *expected[NUMBERS];
    struct id_table table = {.slots = 0};
    uint32_t there = 0;

    (void)state;
    assert_null(id_table_find(&table, 1));
    id_table_remove(&table, 1);
    for (uint64_t i = 0; i < 100000; i++) {
        const uint32_t at = (uint32_t)(hash_mix(i) % NUMBERS);
        const uint64_t number = at; /* neighbours, as sessions have them */

        if (expected[at] == NULL && hash_mix(i) >> 62 != 0) {
            assert_true(id_table_add(&table, number, &thing[at]));
            expected[at] = &thing[at];
            there++;
        } else {
            id_table_remove(&table, number);
            there -= expected[at] != NULL;
            expected[at] = NULL;
        }
        assert_ptr_equal(id_table_find(&table, number), expected[at]);
        assert_int_equal(table.count, there);
    }
    for (uint32_t at = 0; at < NUMBERS; at++) {
        assert_ptr_equal(id_table_find(&table, at), expected[at]);
    }
    assert_null(id_table_find(&table, NUMBERS));
    id_table_free(&table);
    assert_null(id_table_find(&table, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_an_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
