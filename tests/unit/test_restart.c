/*
 * A restarted daemon and the memory that it finds. It may be memory that was new and not filled in
 * when the daemon was killed, a store of a job with another policy, or residuals that were being
 * joined.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/job/store.h"
#include "lone_core.h"

#define POLICY "{" LONE_EXACT "}"

static void goes_on(struct lone_core *lone)
{
    lone_restart(lone);
    assert_int_equal(lone->failed, 0);
    lone_train(lone, 3);
    lone_check(lone);
    lone_free(lone);
}

static void test_results_without_their_table(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.results.bytes, 0, lone.host.memory.results.size);
    goes_on(&lone);
}

/* The table shows the last update, for which others may ask. */
static void test_table_in_part(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.results.bytes, 0, lone.host.memory.results.size / 3);
    goes_on(&lone);
}

static void test_empty_store(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.store[STORE_MAIN].bytes, 0, lone.host.memory.store[STORE_MAIN].size);
    goes_on(&lone);
}

static void test_other_policy(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    lone_train(&lone, 2);
    lone.host.config.policy = "{" LONE_EXACT ",\"scope\":\"rank\"}";
    lone_restart(&lone);
    assert_int_equal(lone.failed, lone.ranks);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_MISMATCH);
    assert_non_null(strstr(lone.failure.text, "another policy"));
    lone_free(&lone);
}

/* The daemon completes the joining of ranks' residuals. It touches no other tensor, here one that
 * is sent whole and has no residual. */
static void test_joining(void **state)
{
    struct lone_core lone;
    const struct store_header *store;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\",\"rules\":[{\"match\":\"conv*\","
                      "\"sparsifier\":\"dense\",\"scope\":\"node\"}]}");
    lone_train(&lone, 2);
    ((struct store_header *)(void *)lone.host.memory.store[STORE_MAIN].bytes)->joining = 1;
    lone_restart(&lone);
    assert_int_equal(lone.failed, 0);
    store = (const void *)lone.host.memory.store[STORE_MAIN].bytes;
    assert_int_equal(store->joining, 0);
    assert_int_equal(store->tensor[0].filled, 1);
    assert_int_equal(store->tensor[2].filled, 0);
    lone_train(&lone, 3);
    lone_check(&lone);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_without_their_table),
        cmocka_unit_test(test_table_in_part),
        cmocka_unit_test(test_empty_store),
        cmocka_unit_test(test_other_policy),
        cmocka_unit_test(test_joining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
