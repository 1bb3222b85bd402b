/*
 * Changing the policy on one node, driven by hand: refusals, the time from which a change holds,
 * requests of ranks meanwhile, and the memory of changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/store.h"
#include "lone_core.h"

/* ------------------------------------------------------------------ refusals */

static void test_before_the_job_runs(void **state)
{
    const struct tensor_spec spec = lone_spec("a", 2, (const uint64_t[]){8, 8});
    struct lone_core lone;

    (void)state;
    lone_open(&lone, 2, "{" LONE_EXACT "}", &spec, 1);
    assert_int_equal(lone_change(&lone, 1, "{\"density\":0.5}"), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "not running", "");
    assert_int_equal(lone_verify(&lone, 2), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "not running", "verify");
    lone_commit(&lone);
    assert_int_equal(lone.policy.count + lone.verified.count, 0);
    lone_train(&lone, 1);
    lone_free(&lone);
}

static void test_unknown_job(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone.job++;
    assert_int_equal(lone_change(&lone, 1, "{\"density\":0.5}"), ADTOPK_ERR_STATE);
    assert_int_equal(lone_verify(&lone, 1), ADTOPK_ERR_STATE);
    lone.job--;
    assert_int_equal(lone.policy.count + lone.verified.count, 0);
    lone_train(&lone, 1);
    lone_free(&lone);
}

static void test_other_version(void **state)
{
    struct event event = {.type = EVENT_POLICY, .policy = {.ticket = 9, .merge = true}};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    event.policy.job = lone.job;
    event.policy.text = "{\"density\":0.5}";
    event.policy.if_version = 1;
    assert_int_equal(host_event(&lone.host, event), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "version 0", "not 1");
    event.policy.if_version = 0;
    assert_int_equal(host_event(&lone.host, event), ADTOPK_OK);
    lone_expect_change(&lone, 9, 1);
    assert_int_equal(host_event(&lone.host, event), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "version 1", "not 0");
    event.policy.if_version = 1;
    assert_int_equal(host_event(&lone.host, event), ADTOPK_OK);
    lone_expect_change(&lone, 9, 2);
    lone_free(&lone);
}

static void test_bad_documents(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_int_equal(lone_change(&lone, 1, "{\"density\":2}"), ADTOPK_ERR_POLICY);
    lone_assert_refused(&lone, ADTOPK_ERR_POLICY, "density", "");
    assert_int_equal(lone_change(&lone, 1, "{\"density\":"), ADTOPK_ERR_POLICY);
    lone_assert_refused(&lone, ADTOPK_ERR_POLICY, "is missing", "");
    assert_int_equal(lone_change(&lone, 1, ""), ADTOPK_ERR_POLICY);
    assert_int_equal(lone_change(&lone, 1, NULL), ADTOPK_ERR_POLICY);
    assert_int_equal(
        lone_change(&lone, 1, "{\"rules\":[{\"match\":\"a\",\"colour\":1}]}"), ADTOPK_ERR_POLICY);
    lone_assert_refused(&lone, ADTOPK_ERR_POLICY, "rules[0]", "colour");
    assert_int_equal(lone.policy.count, 0);
    lone_must_change(&lone, "{\"density\":0.5}"); /* refused changes do not prevent a good one */
    lone_free(&lone);
}

static void test_second_while_one_is_under_way(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_string_equal(lone_job(&lone).waiting_for, "");
    assert_int_equal(lone_change(&lone, 1, "{\"density\":0.5}"), ADTOPK_OK);
    assert_string_equal(lone_job(&lone).waiting_for,
        "ranks to begin step 0; version 1 of the policy holds from step 2");
    assert_int_equal(lone_change(&lone, 2, "{\"density\":0.25}"), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "under way", "lone");
    lone_train(&lone, 1);
    assert_int_equal(lone_change(&lone, 3, "{\"density\":0.25}"), ADTOPK_ERR_STATE);
    assert_int_equal(lone.policy.count, 0);
    lone_train(&lone, 1);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.ticket, 1);
    assert_int_equal(lone_change(&lone, 4, "{\"density\":0.25}"), ADTOPK_OK);
    lone_expect_change(&lone, 4, 2);
    lone_free(&lone);
}

/* ------------------------------------------------------------------ effects of a change */

/* With merge, a document changes the policy in force. Otherwise it changes the daemon's default. */
static void test_merge_and_replace(void **state)
{
    struct event event = {
        .type = EVENT_POLICY, .policy = {.ticket = 5, .if_version = UINT32_MAX, .uid = 7}};
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"push_timeout\":9}");
    lone_must_change(
        &lone, "{\"bucket_bytes\":777,\"rules\":[{\"match\":\"fc*\",\"density\":0.5}]}");
    lone_must_change(&lone, "{\"density\":0.25}");
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"density\":0.25,"));
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"bucket_bytes\":777,"));
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"match\":\"fc*\",\"density\":0.5"));
    assert_true(lone_tensor(&lone, 0).density > 0.4 && lone_tensor(&lone, 2).density < 0.3);
    event.policy.job = lone.job;
    event.policy.text = "{\"bucket_bytes\":888}";
    assert_int_equal(host_event(&lone.host, event), ADTOPK_OK);
    lone_expect_change(&lone, 5, 3);
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"bucket_bytes\":888,"));
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"push_timeout\":9.000000"));
    assert_non_null(strstr(lone_job(&lone).policy.text, "\"rules\":[]"));
    assert_null(strstr(lone_job(&lone).policy.text, "\"density\":0.25,"));
    lone_free(&lone);
}

/* Rules that fit no tensor are accepted and named. */
static void test_rules_that_match_nothing(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"rules\":[{\"match\":\"fc\",\"density\":0.5}]}");
    assert_string_equal(core_unmatched_rule(lone.host.core, lone.job, 0), "fc");
    assert_null(core_unmatched_rule(lone.host.core, lone.job, 1));
    assert_null(core_unmatched_rule(lone.host.core, lone.job + 1, 0));
    lone_must_change(&lone,
        "{\"rules\":[{\"match\":\"fc*\",\"density\":0.5},{\"match\":\"x\",\"density\":0.5},"
        "{\"match\":\"*.weight\",\"density\":0.4},{\"match\":\"FC*\",\"density\":0.5}]}");
    assert_string_equal(core_unmatched_rule(lone.host.core, lone.job, 0), "x");
    assert_string_equal(core_unmatched_rule(lone.host.core, lone.job, 1), "FC*");
    assert_null(core_unmatched_rule(lone.host.core, lone.job, 2));
    lone_restart(&lone);
    assert_string_equal(core_unmatched_rule(lone.host.core, lone.job, 1), "FC*");
    lone_must_change(&lone, "{\"rules\":[]}");
    assert_null(core_unmatched_rule(lone.host.core, lone.job, 0));
    lone_free(&lone);
}

/* A change is announced at once. It begins two steps later, and not earlier. */
static void test_its_step(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 3);
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_OK); /* in the middle of step 3 */
    assert_int_equal(lone_change(&lone, 1, "{\"sparsifier\":\"dense\"}"), ADTOPK_OK);
    assert_int_equal(lone_job(&lone).policy.version, 0);
    assert_int_equal(lone_job(&lone).policy.next_version, 1);
    assert_int_equal(lone_job(&lone).policy.next_step, 5);
    for (uint32_t t = 0; t < 3; t++) {
        assert_int_equal(lone_push(&lone, 1, t), ADTOPK_OK);
        assert_int_equal(t > 0 ? lone_push(&lone, 0, t) : ADTOPK_OK, ADTOPK_OK);
    }
    lone_end_all(&lone);
    lone_close(&lone);
    assert_string_equal(lone_tensor(&lone, 0).sparsifier, "topk");
    lone_train(&lone, 1);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.step, 5);
    assert_string_equal(lone_tensor(&lone, 0).sparsifier, "dense");
    lone_check(&lone);
    lone_free(&lone);
}

/* The step is held while the residuals are converted. The core remembers the ranks' requests. */
static void test_ranks_while_it_is_held(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\",\"bucket_bytes\":1000000}");
    lone_train(&lone, 4);
    assert_int_equal(lone_change(&lone, 1, "{\"scope\":\"node\"}"), ADTOPK_OK);
    lone_train(&lone, 1);
    lone_push_all(&lone);
    assert_int_equal(lone_end(&lone, 0), ADTOPK_OK);
    lone.host.hold = true;
    assert_int_equal(lone_end(&lone, 1), ADTOPK_OK); /* the settling waits */
    assert_int_equal(lone.host.helds, 1);
    lone_compute_one(&lone);
    lone_close(&lone);
    assert_int_equal(lone.host.helds, 1); /* and now the switch does */
    assert_int_equal(lone.policy.count, 0);
    assert_non_null(strstr(lone_job(&lone).waiting_for, "version 1"));
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_OK);
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "twice", "fc.weight");
    assert_int_equal(lone_wait(&lone, 0, 2), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "did not push", "conv.weight");
    /* Its bucket is not wholly pushed, so it splits. */
    assert_int_equal(lone_wait(&lone, 0, 0), ADTOPK_OK);
    assert_int_equal(lone_push(&lone, 1, 0), ADTOPK_OK);
    assert_int_equal(lone.delivered, 0);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.status, ADTOPK_OK);
    assert_int_equal(lone.delivered, 2); /* tensor 0, to both ranks, before the others */
    for (uint32_t t = 1; t < 3; t++) {
        assert_int_equal(lone_push(&lone, 0, t), ADTOPK_OK);
        assert_int_equal(lone_push(&lone, 1, t), ADTOPK_OK);
    }
    lone_end_all(&lone);
    lone_close(&lone);
    lone_check(&lone);
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_free(&lone);
}

/* All of a step, also its end, while it is held. */
static void test_a_whole_step_while_it_is_held(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\"}");
    lone_train(&lone, 2);
    assert_int_equal(
        lone_change(&lone, 1, "{\"sparsifier\":\"dense\",\"scope\":\"node\"}"), ADTOPK_OK);
    lone_train(&lone, 1);
    lone_push_all(&lone);
    assert_int_equal(lone_end(&lone, 0), ADTOPK_OK);
    lone.host.hold = true;
    assert_int_equal(lone_end(&lone, 1), ADTOPK_OK);
    while (lone.steps == 0) { /* one at a time, up to the switch */
        lone_compute_one(&lone);
    }
    lone_close(&lone);
    assert_int_equal(lone.policy.count, 0);
    lone_push_all(&lone);
    lone_end_all(&lone);
    assert_int_equal(lone.steps, 0);
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.policy.count, 1);
    lone_close(&lone);
    lone_check(&lone);
    lone_free(&lone);
}

static void test_history(void **state)
{
    struct policy_past found;
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_false(core_policy_change(lone.host.core, lone.job, 0, &found));
    for (uint32_t version = 1; version <= 2 * POLICY_CHANGES + 3; version++) {
        lone_must_change(&lone, version % 2 == 0 ? "{\"density\":0.1}" : "{\"density\":0.2}");
        for (uint32_t i = 0; i < version && i < POLICY_CHANGES; i++) {
            assert_true(core_policy_change(lone.host.core, lone.job, i, &found));
            assert_int_equal(found.change.version, version - i);
            assert_int_equal(found.change.step, 3 * (uint64_t)(version - i - 1) + 2);
            assert_int_equal(found.change.node, LONE_NODE);
            assert_int_equal(found.change.uid, 1000);
            assert_int_equal(found.change.pid, 100 + version - i - 1);
            assert_string_equal(found.what, found.change.version == 1       ? "density=0.2"
                                            : found.change.version % 2 == 0 ? "density=0.1"
                                                                            : "density=0.2");
            assert_in_range(found.at_us, 1, lone.host.now_us);
        }
        assert_false(core_policy_change(
            lone.host.core, lone.job, version < POLICY_CHANGES ? version : POLICY_CHANGES, &found));
        assert_false(core_policy_change(lone.host.core, lone.job, UINT32_MAX, &found));
    }
    assert_false(core_policy_change(lone.host.core, lone.job + 1, 0, &found));
    lone_free(&lone);
}

/* A restarted daemon goes on under the policy of the last switch. */
static void test_restart(void **state)
{
    struct policy_past found;
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_must_change(&lone, "{\"density\":0.2}");
    lone_must_change(
        &lone, "{\"scope\":\"rank\",\"rules\":[{\"match\":\"\\\"\\u005cu0000\",\"density\":1}]}");
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_OK);
    lone.ready = 0;
    lone_restart(&lone);
    assert_int_equal(lone.ready, 2);
    assert_int_equal(lone.failed, 0);
    assert_int_equal(lone_job(&lone).policy.version, 2);
    assert_int_equal(lone_job(&lone).policy.step, 5);
    assert_string_equal(lone_tensor(&lone, 0).scope, "rank");
    assert_true(core_policy_change(lone.host.core, lone.job, 0, &found));
    assert_int_equal(found.change.pid, 101);
    assert_false(core_policy_change(lone.host.core, lone.job, 1, &found)); /* it is forgotten */
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_must_change(&lone, "{\"scope\":\"node\"}");
    lone_restart(&lone);
    assert_int_equal(lone_job(&lone).policy.version, 3);
    lone_train(&lone, 2);
    lone_check(&lone);
    lone_free(&lone);
}

/* A daemon that is killed after a change was announced forgets it, and keeps no memory for it. */
static void test_restart_before_it_holds(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    assert_int_equal(lone_change(&lone, 1, "{\"scope\":\"rank\"}"), ADTOPK_OK);
    assert_non_null(lone.host.memory.store[1].bytes);
    lone_restart(&lone);
    assert_int_equal(lone_job(&lone).policy.version, 0);
    lone_train(&lone, 3);
    lone_check(&lone);
    assert_int_equal(lone.policy.count, 0);
    assert_null(lone.host.memory.store[1].bytes);
    lone_must_change(&lone, "{\"scope\":\"rank\"}");
    lone_must_change(&lone, "{\"scope\":\"node\"}");
    assert_null(lone.host.memory.store[1].bytes);
    lone_free(&lone);
}

/* ------------------------------------------------------------------ impossible changes */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void test_no_memory_for_ranks(void **state)
{
    struct lone_core lone;
    uint64_t bytes = 0;
    char size[32];

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone.host.memory.no_rank_store = true;
    assert_int_equal(lone_change(&lone, 8, "{\"scope\":\"rank\"}"), ADTOPK_OK);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.ticket, 8);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_MEMORY);
    for (unsigned t = 0; t < 3; t++) {
        uint64_t numel = lone_tensor(&lone, t).numel;
        bytes += lines(numel * sizeof(float)) + lines(progress_size(numel)) +
                 lines(sizeof(struct store_states));
    }
    (void)snprintf(size, sizeof(size), "%llu bytes", (unsigned long long)bytes);
    assert_non_null(strstr(lone.policy.error.text, "node 3"));
    if (strstr(lone.policy.error.text, size) == NULL) {
        fail_msg("\"%s\" does not say %s", lone.policy.error.text, size);
    }
    assert_int_equal(lone_job(&lone).policy.next_version, 0);
    lone_train(&lone, 4);
    assert_int_equal(lone_job(&lone).policy.version, 0);
    lone_check(&lone);
    lone.host.memory.no_rank_store = false;
    lone_must_change(&lone, "{\"scope\":\"rank\"}");
    lone_free(&lone);
}

static void test_no_memory_for_updates(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone.host.memory.no_results = true;
    assert_int_equal(lone_change(&lone, 8, "{\"scope\":\"rank\",\"density\":0.4}"), ADTOPK_OK);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(lone.policy.error.text, "no room for"));
    assert_null(lone.host.memory.store[1].bytes);
    lone_train(&lone, 4);
    lone_check(&lone);
    lone.host.memory.no_results = false;
    lone_must_change(&lone, "{\"scope\":\"rank\",\"density\":0.4}");
    lone_free(&lone);
}

/* The ranks leave, or are lost, before the step of the change. */
static void test_job_ends_before_it(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_int_equal(lone_change(&lone, 3, "{\"scope\":\"rank\"}"), ADTOPK_OK);
    lone_leave(&lone);
    assert_int_equal(lone.closed, 2);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_STATE);
    assert_non_null(strstr(lone.policy.error.text, "ended"));
    assert_int_equal(core_job_count(lone.host.core), 0);
    lone_free(&lone);

    lone_begin(&lone, "{" LONE_EXACT "}");
    assert_int_equal(lone_change(&lone, 4, "{\"scope\":\"rank\"}"), ADTOPK_OK);
    lone_train(&lone, 1);
    assert_int_equal(
        host_event(&lone.host,
            (struct event){.type = EVENT_RANK_LOST, .session = 2, .reason = "it was killed"}),
        ADTOPK_OK);
    assert_int_equal(lone.policy.count, 1);
    assert_int_equal(lone.policy.ticket, 4);
    assert_int_equal(lone.policy.status, ADTOPK_ERR_PEER);
    assert_non_null(strstr(lone.policy.error.text, "rank 1"));
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_the_job_runs),
        cmocka_unit_test(test_unknown_job),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_bad_documents),
        cmocka_unit_test(test_second_while_one_is_under_way),
        cmocka_unit_test(test_merge_and_replace),
        cmocka_unit_test(test_rules_that_match_nothing),
        cmocka_unit_test(test_its_step),
        cmocka_unit_test(test_ranks_while_it_is_held),
        cmocka_unit_test(test_a_whole_step_while_it_is_held),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_restart_before_it_holds),
        cmocka_unit_test(test_no_memory_for_ranks),
        cmocka_unit_test(test_no_memory_for_updates),
        cmocka_unit_test(test_job_ends_before_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
