/*
 * Tensors that no rank pushes in some steps: their updates are empty, their residuals and turns
 * stay, and nothing is lost. The test compares with a reference in double precision.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/store.h"
#include "lone_core.h"
#include "proto/local.h"
#include "tests/host/inside.h"

#define SUMS "\"reduce\":\"sum\",\"values\":\"f32\""
#define NUMEL 640u
#define RARE 2u /* the tensor that is pushed in some steps only: "conv.weight" */

static const struct local_update *update_of(const struct lone_core *lone, uint32_t t)
{
    const struct local_results *table = (const void *)lone->host.memory.results.bytes;

    return (const void *)(lone->host.memory.results.bytes + table->tensor[t].update_offset);
}

/* All ranks push the tensors of `mask`. lone_close() counts all tensors as pushed, so this corrects
 * the others. */
static void step(struct lone_core *lone, unsigned mask)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        for (uint32_t t = 0; t < lone->tensors; t++) {
            if ((mask >> t & 1) != 0) {
                lone_must(lone, lone_push(lone, r, t));
            }
        }
    }
    lone_end_all(lone);
    lone_close(lone);
    for (uint32_t t = 0; t < lone->tensors; t++) {
        const bool pushed = (mask >> t & 1) != 0;
        assert_int_equal(update_of(lone, t)->unpushed, !pushed);
        for (uint64_t i = 0; !pushed && i < lone->numel[t]; i++) {
            for (unsigned r = 0; r < lone->ranks; r++) {
                lone->pushed[t][i] -= (double)lone_gradient(lone->step - 1, r, t, i);
            }
        }
    }
}

/* The `count` largest of acc, ties to the lower index, move to `sent`. */
static void reference_top(double *acc, double *sent, uint64_t numel, uint64_t count)
{
    memset(sent, 0, numel * sizeof(*sent));
    for (uint64_t k = 0; k < count; k++) {
        uint64_t best = 0;
        for (uint64_t i = 1; i < numel; i++) {
            best = fabs(acc[i]) > fabs(acc[best]) ? i : best;
        }
        sent[best] = acc[best];
        acc[best] = 0;
    }
}

/* A parameter that is used in 20 of 60 steps, as with find_unused_parameters. A rank that ignores
 * the empty updates loses nothing. */
static void test_sixty_steps(void **state)
{
    double acc[NUMEL] = {0}, sent[NUMEL];
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"sparsifier\":\"topk\"}");
    assert_true(lone.numel[RARE] <= NUMEL);
    for (unsigned s = 0; s < 60; s++) {
        const bool pushed = s % 3 == 1;
        const struct local_update *update = update_of(&lone, RARE);
        const float *dense = (const void *)(lone.host.memory.results.bytes + update->dense_offset);
        memset(sent, 0, sizeof(sent));
        for (uint64_t i = 0; pushed && i < lone.numel[RARE]; i++) {
            acc[i] += (double)lone_gradient(s, 0, RARE, i) + (double)lone_gradient(s, 1, RARE, i);
        }
        if (pushed) {
            reference_top(acc, sent, lone.numel[RARE], lone_tensor(&lone, RARE).count);
        }
        step(&lone, pushed ? 7 : 3);
        assert_int_equal(update->turn, (s + 1) / 3);
        assert_true((update->forms & LOCAL_FORM_DENSE) != 0);
        for (uint64_t i = 0; i < lone.numel[RARE]; i++) {
            assert_true((double)dense[i] == sent[i]);
        }
        lone_check(&lone);
    }
    assert_int_equal(lone_tensor(&lone, RARE).turn, 20);
    assert_int_equal(lone_tensor(&lone, 0).turn, 60);
    lone_leave(&lone);
    lone_free(&lone);
}

/* The residual before and after a step without pushes, bit for bit. */
static void stays(struct lone_core *lone)
{
    float *before = calloc(lone->numel[RARE], sizeof(float));
    float *after = calloc(lone->numel[RARE], sizeof(float));
    const size_t bytes = lone->numel[RARE] * sizeof(float);
    double input[2], applied[2], lost[2], input_after[2], applied_after[2];

    assert_true(before != NULL && after != NULL);
    assert_true(inside_residual_copy(lone->host.core, lone->job, RARE, 0, before));
    assert_true(inside_ledger(lone->host.core, lone->job, RARE, input, applied, lost));
    step(lone, 3);
    assert_true(inside_residual_copy(lone->host.core, lone->job, RARE, 0, after));
    assert_true(inside_ledger(lone->host.core, lone->job, RARE, input_after, applied_after, lost));
    assert_memory_equal(before, after, bytes);
    assert_memory_equal(input, input_after, sizeof(input));
    assert_memory_equal(applied, applied_after, sizeof(applied));
    assert_int_equal(update_of(lone, RARE)->count, 0);
    free(before);
    free(after);
}

/* With every kind of sparsifier, and with velocities. A dense tensor keeps its rounding errors. */
static void test_stays(void **state)
{
    static const char *const policies[] = {
        "{" LONE_EXACT "}",
        "{" LONE_EXACT ",\"scope\":\"rank\"}",
        "{" SUMS ",\"sparsifier\":\"randomk\",\"density\":0.3}",
        "{" SUMS ",\"sparsifier\":\"dgc\",\"density\":0.2}",
        "{" SUMS ",\"sparsifier\":\"sidco\",\"density\":0.2}",
        "{" LONE_EXACT ",\"sparse_collective\":\"exclusive\",\"sparsifier\":\"topk\"}",
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}",
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}",
    };

    (void)state;
    for (unsigned p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        struct lone_core lone;
        lone_begin(&lone, policies[p]);
        stays(&lone);
        step(&lone, 7);
        stays(&lone);
        stays(&lone);
        step(&lone, 7);
        assert_int_equal(lone_tensor(&lone, RARE).turn, 2);
        lone_check(&lone);
        lone_free(&lone);
    }
}

/* The velocity after a step without pushes is that of the last turn. With momentum 0.5 the residual
 * takes in g, then 1.5 g, whatever lies between. */
static void test_velocity(void **state)
{
    struct lone_core lone;
    double input[2], applied[2], lost[2];

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"momentum\":0.5,\"momentum_masking\":false}");
    lone.changed = true;
    step(&lone, 7);
    for (unsigned i = 0; i < 3; i++) {
        stays(&lone);
    }
    step(&lone, 7);
    double want = 0;
    for (uint64_t i = 0; i < lone.numel[RARE]; i++) {
        double first = (double)lone_gradient(0, 0, RARE, i) + (double)lone_gradient(0, 1, RARE, i);
        double last = (double)lone_gradient(4, 0, RARE, i) + (double)lone_gradient(4, 1, RARE, i);
        want += first + 0.5 * first + last;
    }
    assert_true(inside_ledger(lone.host.core, lone.job, RARE, input, applied, lost));
    assert_true(input[0] == want);
    lone_check(&lone);
    lone_free(&lone);
}

/* A tensor becomes dense while its residual is not empty. It keeps the residual until its next
 * push. */
static void test_becomes_dense(void **state)
{
    struct lone_core lone;
    const struct store_header *store;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone_must_change(&lone, "{" LONE_EXACT ",\"sparsifier\":\"dense\"}");
    store = (const void *)lone.host.memory.store[STORE_MAIN].bytes;
    assert_int_equal(store->tensor[RARE].filled, 0);
    lone_must_change(&lone, "{" LONE_EXACT ",\"sparsifier\":\"topk\"}");
    assert_int_equal(lone_change(&lone, 7, "{" LONE_EXACT ",\"sparsifier\":\"dense\"}"), ADTOPK_OK);
    lone_train(&lone, 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(store->tensor[RARE].filled, 1);
        stays(&lone);
    }
    step(&lone, 7);
    assert_int_equal(store->tensor[RARE].filled, 0);
    lone_check(&lone);
    lone_free(&lone);
}

/* Only one of the node's ranks pushes: that is a turn, with zeros from the other. */
static void test_one_rank(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    for (uint32_t t = 0; t < lone.tensors; t++) {
        lone_must(&lone, lone_push(&lone, 1, t));
    }
    lone_end_all(&lone);
    lone_close(&lone);
    for (uint32_t t = 0; t < lone.tensors; t++) {
        for (uint64_t i = 0; i < lone.numel[t]; i++) {
            lone.pushed[t][i] -= (double)lone_gradient(0, 0, t, i);
        }
        assert_int_equal(update_of(&lone, t)->unpushed, 0);
    }
    lone_check(&lone);
    lone_free(&lone);
}

/* A withdrawn step subtracts nothing from the residual of a tensor that no rank pushed. */
static void test_withdrawn(void **state)
{
    struct lone_core lone;
    struct tensor_layout layout;
    float before[NUMEL], after[NUMEL], nan = NAN;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    step(&lone, 7);
    assert_true(inside_residual_copy(lone.host.core, lone.job, RARE, 0, before));
    assert_true(inside_layout(lone.host.core, 1, 0, &layout));
    lone.withdrawing = true;
    lone_must(&lone, lone_push(&lone, 0, 1));
    memcpy(lone.host.memory.arena[0].bytes + layout.gradient_offset, &nan, sizeof(nan));
    lone_must(&lone,
        lone_rank_event(&lone, 0,
            (struct event){.type = EVENT_RANK_PUSH, .step = {.tensor = 0, .number = lone.step}}));
    lone_end_all(&lone);
    assert_int_equal(lone.steps, lone.ranks);
    assert_true(inside_residual_copy(lone.host.core, lone.job, RARE, 0, after));
    assert_memory_equal(before, after, lone.numel[RARE] * sizeof(float));
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixty_steps),
        cmocka_unit_test(test_stays),
        cmocka_unit_test(test_velocity),
        cmocka_unit_test(test_becomes_dense),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_withdrawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
