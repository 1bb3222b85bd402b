/*
 * NaN and Inf under the policies, on a core of one node. Either the error names the rank that
 * pushed one, or only the update of its tensor is NaN. The finite part of the gradients is kept and
 * sent later.
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
#include "tests/host/inside.h"

#define BAD 7u /* an element of tensor 0 */

/* All ranks push every tensor. Rank 1's bad element has this value. */
static void push_bad(struct lone_core *lone, float bad)
{
    struct tensor_layout layout;

    lone->host.hold = true;
    lone_push_all(lone);
    assert_true(inside_layout(lone->host.core, 2, 0, &layout));
    memcpy(lone->host.memory.arena[1].bytes + layout.gradient_offset + BAD * sizeof(bad), &bad,
        sizeof(bad));
    lone->host.hold = false;
    host_compute(&lone->host);
}

static void test_rejected(void **state)
{
    static const char *const policies[] = {"{" LONE_EXACT ",\"non_finite\":\"reject\"}",
        "{\"scope\":\"rank\",\"non_finite\":\"reject\"}",
        "{\"sparsifier\":\"dense\",\"non_finite\":\"reject\"}",
        "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"non_finite\":\"reject\"}"};
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p121f};

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        char value[64];
        struct lone_core lone;
        lone_begin(&lone, policies[i / 4]);
        lone_train(&lone, 2);
        push_bad(&lone, bad[i % 4]);
        (void)snprintf(value, sizeof(value), "pushed %g at element 7 of", (double)bad[i % 4]);
        assert_int_equal(lone.failed, 2);
        assert_int_equal(lone.failure.code, ADTOPK_ERR_ARGUMENT);
        assert_non_null(strstr(lone.failure.text, "rank 1 "));
        assert_non_null(strstr(lone.failure.text, value));
        assert_non_null(strstr(lone.failure.text, "'fc.weight' in step 2"));
        lone_free(&lone);
    }
}

/* The sum is too large, though no single gradient is. */
static void test_rejected_sum(void **state)
{
    struct tensor_layout layout;
    const float large = 0x1.8p119f;
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"non_finite\":\"reject\"}");
    lone.host.hold = true;
    lone_push_all(&lone);
    for (unsigned r = 0; r < 2; r++) {
        assert_true(inside_layout(lone.host.core, r + 1, 0, &layout));
        memcpy(lone.host.memory.arena[r].bytes + layout.gradient_offset, &large, sizeof(large));
    }
    lone.host.hold = false;
    host_compute(&lone.host);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(lone.failure.text, "node 3: the sum of its ranks' gradients"));
    lone_free(&lone);
}

static const struct local_update *update_of(
    const struct lone_core *lone, uint32_t t, const float **dense)
{
    const uint8_t *results = lone->host.memory.results.bytes;
    const struct local_results *table = (const void *)results;
    const struct local_update *update = (const void *)(results + table->tensor[t].update_offset);

    *dense = (const void *)(results + update->dense_offset);
    return update;
}

/* The update of tensor 0 is NaN where it has entries, and other updates are not. */
static void check_spoiled(const struct lone_core *lone)
{
    for (uint32_t t = 0; t < lone->tensors; t++) {
        const float *dense;
        const struct local_update *update = update_of(lone, t, &dense);
        uint64_t nan = 0, finite = 0;
        assert_int_equal(update->step, lone->step);
        assert_true((update->forms & LOCAL_FORM_DENSE) != 0);
        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            nan += isnan(dense[i]) ? 1 : 0;
            finite += !isnan(dense[i]) && dense[i] != 0 ? 1 : 0;
        }
        assert_int_equal(update->nonfinite, t == 0);
        assert_true(t == 0 ? nan > 0 && finite == 0 : nan == 0);
        assert_true(t != 1 || finite > 0); /* it is sent dense */
    }
}

/* The step counts, and so do all pushed gradients except the bad element. None of tensor 0 was
 * applied, so all of it is in the residual. */
static void close_spoiled(struct lone_core *lone, bool by_rank)
{
    assert_int_equal(lone->steps, lone->ranks);
    for (uint32_t t = 0; t < lone->tensors; t++) {
        const float *dense;
        (void)update_of(lone, t, &dense);
        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            bool left_out = t == 0 && i == BAD;
            lone->applied[t][i] += t == 0 ? 0 : (double)dense[i];
            for (unsigned r = 0; r < lone->ranks; r++) {
                double pushed = (double)lone_gradient(lone->step, r, t, i);
                lone->pushed[t][i] += left_out && (r == 1 || !by_rank) ? 0 : pushed;
            }
        }
    }
    lone->steps = lone->delivered = 0;
    lone->step++;
}

static void check_propagated(const char *more, bool by_rank)
{
    char policy[256];
    struct lone_core lone;

    (void)snprintf(policy, sizeof(policy),
        "{\"reduce\":\"sum\",\"values\":\"f32\",\"non_finite\":\"propagate\",%s}", more);
    lone_begin(&lone, policy);
    lone_train(&lone, 2);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t turn = lone_tensor(&lone, 0).turn, other = lone_tensor(&lone, 1).turn;
        push_bad(&lone, i == 0 ? NAN : INFINITY);
        lone_end_all(&lone);
        check_spoiled(&lone);
        close_spoiled(&lone, by_rank);
        lone_check(&lone);
        assert_int_equal(lone_tensor(&lone, 0).turn, turn);
        assert_int_equal(lone_tensor(&lone, 1).turn, other + 1);
        if (i > 0) { /* the second one follows at once */
            lone_train(&lone, 2);
            lone_check(&lone);
        }
    }
    assert_int_equal(lone_job(&lone).steps_withdrawn, 0);
    lone_leave(&lone);
    lone_free(&lone);
}

static void test_propagated(void **state)
{
    (void)state;
    check_propagated("\"density\":0.05", false);
    check_propagated("\"density\":0.2,\"scope\":\"rank\"", true);
    check_propagated("\"density\":0.1,\"sparsifier\":\"topk\",\"bucket_bytes\":1", false);
    check_propagated("\"density\":0.1,\"sparsifier\":\"randomk\"", false);
    check_propagated("\"sparsifier\":\"threshold\",\"threshold\":1e30", false); /* an empty list */
    check_propagated("\"sparsifier\":\"dense\"", false);
    check_propagated("\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_rejected_sum),
        cmocka_unit_test(test_propagated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
