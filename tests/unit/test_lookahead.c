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

#define ALL 3u

/* Changes of the policy, and the parts that are shown after them to who asked for that. */
static const struct {
    const char *policy;
    unsigned parts;
} changes[] = {{"{\"residual\":\"bf16\"}", 1u << 5},
    {"{\"residual\":\"f32\",\"scope\":\"rank\"}", 1u << 1 | 1u << 4}};

static enum adtopk_status push_ahead(struct lone_core *lone, uint32_t tensor, float lookahead)
{
    const struct event event = {.type = EVENT_RANK_PUSH,
        .step = {.tensor = tensor, .number = lone->step, .lookahead = lookahead}};

    return lone_rank_event(lone, 0, event);
}

/* Two ranks and three tensors, of which the second is sent dense; ranks ask for the residuals
 * of ALL, or of `only` one. */
static void begin_shown(struct lone_core *lone, const char *policy, unsigned only)
{
    struct tensor_spec spec[3] = {lone_spec("wide", 2, (const uint64_t[]){16, 40}),
        lone_spec("bias", 1, (const uint64_t[]){40}),
        lone_spec("deep", 4, (const uint64_t[]){4, 5, 3, 3})};

    for (unsigned t = 0; t < 3; t++) {
        spec[t].forms |= only == ALL || only == t ? (unsigned)LOCAL_FORM_PENDING : 0u;
    }
    lone_start(lone, 2, policy, spec, 3);
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

/* The parts that ranks may map: a bit each. */
static uint64_t shown_parts(const struct lone_core *lone)
{
    uint64_t parts = 0;

    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        const struct host_area *area = &lone->host.memory.store[part];
        parts |= area->bytes != NULL && area->shown ? (uint64_t)1 << part : 0;
    }
    return parts;
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
        begin_shown(&lone, policy, ALL);
        const struct local_pending pending = pending_of(&lone, 0);
        assert_true(pending.since > 0 && pending.lookahead >= 1);
        assert_true(fabsf(pending.scale - cases[i].scale) < 1e-6f);
        assert_int_equal(pending.rank_size != 0, cases[i].own);
        assert_int_equal(pending_of(&lone, 1).part, LOCAL_PARTS); /* dense */
        lone_free(&lone);
    }
}

/* What nobody asked for is in memory of its own, whatever the policy does with it. */
static void test_nobody_asks(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{\"sparsifier\":\"topk\",\"lookahead\":0.5," LONE_EXACT "}");
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        lone_train(&lone, 2);
        assert_int_equal(shown_parts(&lone), 0);
        assert_int_equal(pending_of(&lone, 0).part, LOCAL_PARTS);
        lone_must_change(&lone, changes[i].policy);
    }
    lone_restart(&lone);
    assert_int_equal(shown_parts(&lone), 0);
    lone_free(&lone);
}

/* One tensor is enough that the residuals of its batch are shown; ranks find its own alone. */
static void test_one_asks(void **state)
{
    struct lone_core lone;

    (void)state;
    begin_shown(&lone, "{\"sparsifier\":\"topk\",\"lookahead\":0.5," LONE_EXACT "}", 2);
    assert_int_equal(shown_parts(&lone), 1u << 4);
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        lone_must_change(&lone, changes[i].policy);
        lone_train(&lone, 2);
        assert_int_equal(shown_parts(&lone), changes[i].parts);
        assert_int_equal(pending_of(&lone, 0).part, LOCAL_PARTS);
        assert_true(changes[i].parts >> pending_of(&lone, 2).part & 1);
    }
    lone_restart(&lone);
    assert_int_equal(shown_parts(&lone), changes[sizeof(changes) / sizeof(changes[0]) - 1].parts);
    lone_free(&lone);
}

/* Each batch of tensors for itself. */
static void test_batches(void **state)
{
    static const unsigned asks[] = {0, LOCAL_FORM_PENDING, 0, LOCAL_FORM_PENDING};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{\"sparsifier\":\"topk\",\"density\":0.1}");
    for (unsigned b = 0; b < sizeof(asks) / sizeof(asks[0]); b++) {
        char name[] = {(char)('a' + (int)b), '\0'};
        struct tensor_spec spec = lone_spec(name, 2, (const uint64_t[]){8, 40});
        spec.forms |= asks[b];
        for (unsigned r = 0; r < 2; r++) {
            struct event event = {.type = EVENT_RANK_REGISTER, .spec = &spec};
            lone_must(&lone, lone_rank_event(&lone, r, event));
        }
        lone_commit(&lone);
    }
    assert_int_equal(shown_parts(&lone),
        (1u << store_part(STORE_RESIDUALS, 2)) | (1u << store_part(STORE_RESIDUALS, 4)));
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_nobody_asks), cmocka_unit_test(test_one_asks),
        cmocka_unit_test(test_batches)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
