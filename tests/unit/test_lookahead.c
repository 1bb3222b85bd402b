/*
 * Look-ahead in a core of one node: the places of residuals that it reports, and the shares that
 * ranks report. tests/integration/test_lookahead.py tests the client.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lone_core.h"
#include "proto/local.h"

static enum adtopk_status push_ahead(struct lone_core *lone, uint32_t tensor, float lookahead)
{
    const struct event event = {.type = EVENT_RANK_PUSH,
        .step = {.tensor = tensor, .number = lone->step, .lookahead = lookahead}};

    return lone_rank_event(lone, 0, event);
}

/* A number that is no share is refused and changes nothing. Shares show in reports. */
static void test_shares(void **state)
{
    static const float bad[] = {-0.1f, 1.01f, NAN, INFINITY, -INFINITY};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{\"sparsifier\":\"topk\",\"density\":0.1,\"lookahead\":0.5}");
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(push_ahead(&lone, 0, bad[i]), ADTOPK_ERR_ARGUMENT);
        lone_assert_refused(&lone, ADTOPK_ERR_ARGUMENT, "rank 0", "looked ahead");
    }
    assert_int_equal(push_ahead(&lone, 0, 0.25f), ADTOPK_OK);
    assert_true(fabs(lone_tensor(&lone, 0).lookahead - 0.25) < 1e-9);
    assert_true(fabs(lone_tensor(&lone, 0).lookahead_policy - 0.5) < 1e-9);
    assert_true(fabs(lone_tensor(&lone, 1).lookahead_policy) < 1e-9); /* dense */
    lone_free(&lone);
}

static struct local_pending pending_of(const struct lone_core *lone, uint32_t tensor)
{
    const uint8_t *results = lone->host.memory.results.bytes;
    const struct local_results *table = (const void *)results;
    const struct local_update *update =
        (const void *)(results + table->tensor[tensor].update_offset);

    return update->pending;
}

/* A residual is the sum over the ranks that share it. An update is their mean, or their sum. */
static void test_scales(void **state)
{
    static const struct {
        const char *keys;
        float scale;
        bool own;
    } cases[] = {{"\"scope\":\"node\"", 0.5f, false}, {"\"scope\":\"rank\"", 1, true},
        {"\"scope\":\"node\",\"reduce\":\"sum\"", 1, false},
        {"\"scope\":\"rank\",\"reduce\":\"sum\"", 2, true}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct lone_core lone;
        char policy[160];
        (void)snprintf(policy, sizeof(policy),
            "{\"sparsifier\":\"topk\",\"density\":0.1,\"lookahead\":1,%s}", cases[i].keys);
        lone_begin(&lone, policy);
        const struct local_pending pending = pending_of(&lone, 0);
        assert_true(pending.since > 0 && pending.lookahead >= 1);
        assert_true(fabsf(pending.scale - cases[i].scale) < 1e-6f);
        assert_int_equal(pending.rank_size != 0, cases[i].own);
        assert_int_equal(pending_of(&lone, 1).part, LOCAL_PARTS); /* dense */
        lone_free(&lone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares), cmocka_unit_test(test_scales)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
