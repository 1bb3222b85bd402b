/*
 * What a coordinator decides from answers in which many members hold the same rounds: each round
 * has one holder, so a commit does not grow with the members.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/job/decision.h"
#include "daemon/job/membership.h"

#define NODES 5u
#define ROUNDS 1000u
#define STEPS 7u

static struct plan plan = {.rounds = ROUNDS};
static struct store_header store;
static struct core core;
static struct member member[NODES], *list[NODES];
static uint32_t delivered[NODES][ROUNDS];
static struct job job = {.core = &core, .plan = &plan, .store = &store, .member = list};

/* Node n has delivered the rounds that n + 1 divides; node 0 is a step behind and has none. */
static int setup(void **state)
{
    (void)state;
    job.members = NODES;
    (void)membership_begin(&job.agreement.members, 0, NODES);
    for (unsigned n = 0; n < NODES; n++) {
        struct answer *answer = &member[n].answer;

        membership_add(&job.agreement.members, (uint16_t)n, 1, 1, 1, 0);
        member[n].node = (uint16_t)n;
        answer->steps_done = n == 0 ? STEPS - 1 : STEPS;
        answer->ops_done = n == NODES - 1 ? 4 : 3;
        answer->delivered = delivered[n];
        for (uint32_t r = 0; n > 0 && r < ROUNDS; r += n + 1) {
            delivered[n][answer->delivered_count++] = r;
        }
        list[n] = &member[n];
    }
    return 0;
}

static void test_one_holder(void **state)
{
    struct decision decision;
    unsigned holders[ROUNDS] = {0}, steps = 0, operations = 0;

    (void)state;
    assert_int_equal(decision_make(&job, STEPS, 4, &decision), ADTOPK_OK);
    for (size_t i = 0; i < decision.count; i++) {
        const Adtopk__PeerRound *round = decision.list[i];

        if (round->operation) {
            operations++;
            assert_int_equal(round->number, 3);
            assert_int_equal(round->holder, NODES - 1);
        } else if (round->bucket == ALL_ROUNDS) {
            steps++;
            assert_int_equal(round->number, STEPS - 1);
            assert_int_equal(round->holder, 1);
        } else {
            assert_int_equal(round->number, STEPS);
            assert_int_equal(round->bucket % (round->holder + 1), 0);
            holders[round->bucket]++;
        }
    }
    assert_int_equal(steps, 1);
    assert_int_equal(operations, 1);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        assert_int_equal(holders[r], r % 2 == 0 || r % 3 == 0 || r % 5 == 0 ? 1 : 0);
    }
    decision_free(&decision);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_holder),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
