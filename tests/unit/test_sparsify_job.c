/*
 * Every sparsifier in a job of the core. Nothing is lost, and the number of sent entries is as
 * documented. A daemon that was killed in between goes on with the same bits as one that was not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/sparsify/sparsifier.h"
#include "tests/unit/lone_core.h"

#define STEPS 44

static const uint64_t sizes[] = {40, 60, 3, 3};

static void start(struct lone_core *lone, const char *policy)
{
    const struct tensor_spec spec[] = {lone_spec("fc.weight", 2, sizes),
        lone_spec("fc.bias", 1, sizes), lone_spec("conv.weight", 4, sizes)};

    lone_start(lone, 2, policy, spec, 3);
}

/* Trains with and without a kill in between: both must apply the same values. */
static void check_policy(const char *policy)
{
    struct lone_core one, other;

    start(&one, policy);
    start(&other, policy);
    lone_train(&one, STEPS);
    for (unsigned i = 0; i < STEPS / 11; i++) {
        lone_train(&other, 11);
        lone_restart(&other);
    }
    lone_check(&one);
    lone_check(&other);
    for (uint32_t t = 0; t < one.tensors; t++) {
        assert_memory_equal(
            one.applied[t], other.applied[t], one.numel[t] * sizeof(*one.applied[t]));
    }
    lone_free(&one);
    lone_free(&other);
}

/* Each sparsifier with each scope, and with changed parameters. */
static void test_every_sparsifier(void **state)
{
    static const char *const more[] = {"\"density\":0.05",
        ("\"density\":0.02,\"warmup_epochs\":3,\"epoch_turns\":5,\"estimate\":true,"
         "\"fit\":\"gamma\",\"threshold\":2"),
        "\"density\":0.1,\"adaptive\":true,\"total_turns\":40,\"fit\":\"pareto\",\"sample\":1",
        "\"density\":0.03,\"fibre_turns\":2,\"global_turns\":3,\"estimate\":true"};
    static const char *const scopes[] = {"node", "rank"};

    (void)state;
    for (unsigned s = 0; sparsifier_table[s] != NULL; s++) {
        const char *name = sparsifier_table[s]->name;
        for (unsigned k = 0; k < 8; k++) {
            char policy[400];
            if (strcmp(name, "dense") == 0 && k % 2 == 1) {
                continue; /* a rank has nothing to select */
            }
            (void)snprintf(policy, sizeof(policy),
                "{\"reduce\":\"sum\",\"values\":\"f32\",\"sparsifier\":\"%s\",\"scope\":\"%s\",%s}",
                name, scopes[k % 2], more[k / 2]);
            check_policy(policy);
        }
    }
}

/* Changes from each sparsifier to each other during training. */
static void test_from_each_to_each(void **state)
{
    struct lone_core lone;
    unsigned count = 0;

    (void)state;
    while (sparsifier_table[count] != NULL) {
        count++;
    }
    start(&lone, "{" LONE_EXACT "}");
    for (unsigned i = 0; i < count * count; i++) {
        char change[200];
        (void)snprintf(change, sizeof(change), "{\"sparsifier\":\"%s\",\"estimate\":%s}",
            sparsifier_table[i % 2 == 0 ? i / count : i % count]->name,
            i % 3 == 0 ? "true" : "false");
        assert_int_equal(lone_change(&lone, i + 1, change), ADTOPK_OK);
        lone_train(&lone, 3);
        lone_check(&lone);
    }
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sparsifier),
        cmocka_unit_test(test_from_each_to_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
