/*
 * Names of tensors while a rank registers them: each can be used once, however many there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "lone_core.h"

#define TENSORS 200u /* the table of names grows several times */

static enum adtopk_status register_named(struct lone_core *lone, unsigned number)
{
    struct tensor_spec spec;
    char name[16];

    (void)snprintf(name, sizeof(name), "layer.%u", number);
    spec = lone_spec(name, 1, (const uint64_t[]){8});
    return lone_rank_event(lone, 0, (struct event){.type = EVENT_RANK_REGISTER, .spec = &spec});
}

static void test_names_are_taken_once(void **state)
{
    const struct tensor_spec first = lone_spec("layer.0", 1, (const uint64_t[]){8});
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 1, "{}", &first, 1);
    for (unsigned t = 1; t < TENSORS; t++) {
        lone_must(&lone, register_named(&lone, t));
        for (unsigned other = 0; other <= t; other++) {
            assert_int_equal(register_named(&lone, other), ADTOPK_ERR_ARGUMENT);
            lone_assert_refused(&lone, ADTOPK_ERR_ARGUMENT, "layer.", "is registered twice");
        }
    }
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_taken_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
