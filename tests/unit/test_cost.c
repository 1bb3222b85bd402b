/*
 * Compares the formulas of volume with a walk through the messages that a node receives in each
 * collective.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/planner/cost.h"

#define NODES_MAX 70
#define LIST 3.06   /* bytes per entry of a node's contribution */
#define SUM 5.06    /* bytes per entry of a sum that is sent as f32 */
#define HEADERS 184 /* bytes per message */
#define VOTES 250   /* bytes from each node */

static void assert_bytes(enum choice choice, unsigned nodes, double gamma, double expected)
{
    const struct cost_load load = {
        .elements = 1000000, .entries = choice_is_sparse(choice) ? 1000 : 0};
    double found = cost_bytes(choice, nodes, gamma, load);

    if (!(fabs(found - expected) <= 1e-9 * expected)) {
        fail_msg("%s, %u nodes: %g bytes, not %g", choice_name(choice), nodes, found, expected);
    }
}

/* A node's groups join in pairs, so it receives lists of 1, 2, 4, ... nodes. If there are more
 * nodes than a power of two, groups are larger. Pairs of nodes then exchange a list and the whole
 * sum besides. */
static double plain_hierarchical(unsigned nodes, double gamma)
{
    double bytes = 0, cores = exp2(floor(log2(nodes)));

    if (cores < nodes) {
        bytes += HEADERS + LIST * 1000;
        bytes += HEADERS + SUM * 1000 * gamma;
    }
    for (double group = 1; group < cores; group *= 2) {
        double members = group * nodes / cores;
        double entries = 1000 * pow(gamma, log(members) / log(nodes));
        bytes += HEADERS + (members > 1 ? SUM : LIST) * entries;
    }
    return bytes;
}

static void test_hierarchical(void **state)
{
    (void)state;
    for (unsigned nodes = 2; nodes <= NODES_MAX; nodes++) {
        assert_bytes(CHOICE_HIERARCHICAL, nodes, 1, plain_hierarchical(nodes, 1));
        assert_bytes(CHOICE_HIERARCHICAL, nodes, cost_gamma(nodes),
            plain_hierarchical(nodes, cost_gamma(nodes)));
    }
}

/* The other sparse collectives: a list, or a part of a list and of the sum, from each other node.
 */
static void test_lists(void **state)
{
    (void)state;
    for (unsigned nodes = 2; nodes <= NODES_MAX; nodes++) {
        double gathered = 0, balanced = 0, oktopk = 0, part = 1000.0 / nodes;
        for (unsigned other = 1; other < nodes; other++) {
            gathered += HEADERS + LIST * 1000;
            balanced += 2 * HEADERS + LIST * part + LIST * 1.5 * part;
            oktopk += 4 * HEADERS + 2 * LIST * part + VOTES;
        }
        assert_bytes(CHOICE_ALLGATHER, nodes, 1.5, gathered);
        assert_bytes(CHOICE_BALANCED, nodes, 1.5, balanced);
        assert_bytes(CHOICE_OKTOPK, nodes, 1.5, oktopk);
    }
}

/* Dense collectives: a slice of each other node's contribution, then a slice of the sum from each.
 * Halving sends the same among a power of two of nodes, in one message per hop. */
static void test_dense(void **state)
{
    (void)state;
    for (unsigned nodes = 2; nodes <= NODES_MAX; nodes++) {
        double f32 = 0, bf16 = 0, messages = nodes > 2 ? 2.0 * (nodes - 1) : 1;
        for (unsigned other = 1; other < nodes; other++) {
            f32 += 2 * 4e6 / nodes;
            bf16 += 2 * 2e6 / nodes;
        }
        bf16 += HEADERS * messages;
        if ((nodes & (nodes - 1)) == 0) {
            messages = fmin(messages, 2 * log2(nodes));
        }
        assert_bytes(CHOICE_DENSE, nodes, 1.5, f32 + HEADERS * messages);
        assert_bytes(CHOICE_DENSE_BF16, nodes, 1.5, bf16);
    }
}

/* Entries with narrow values: 2.25 bits instead of 16 or 32. The size of sums does not change. */
static void test_values(void **state)
{
    struct cost_load load = {.elements = 1000000, .entries = 1000};

    (void)state;
    load.saved = 1000 * cost_saved(PAYLOAD_VALUE_TWO);
    assert_true(fabs(cost_bytes(CHOICE_ALLGATHER, 3, 1.5, load) -
                     2 * (HEADERS + 1000 * (LIST - 2 + 0.28125))) < 1e-6);
    load.saved = 1000 * cost_saved(PAYLOAD_VALUE_F32);
    assert_true(fabs(cost_bytes(CHOICE_ALLGATHER, 3, 1.5, load) -
                     2 * (HEADERS + 1000 * (LIST + 2))) < 1e-6);
    load.saved = 1000 * cost_saved(PAYLOAD_VALUE_SIGN);
    assert_true(fabs(cost_bytes(CHOICE_HIERARCHICAL, 4, 1, load) -
                     (2 * HEADERS + 1000 * (LIST - 2 + 0.140625 + SUM))) < 1e-6);
    assert_true(fabs(cost_saved(PAYLOAD_VALUE_BF16)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hierarchical),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
