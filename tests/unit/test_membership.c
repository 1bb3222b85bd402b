/*
 * Memberships: their members, whether two are the same, and the coordinator.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/job/membership.h"

/* Nodes 3, 5 and 9, with this node's number `own`. Their daemons started at `start` and later. */
static struct membership made(uint16_t own, uint64_t start)
{
    struct membership membership;

    assert_int_equal(membership_begin(&membership, own, 3), ADTOPK_OK);
    membership_add(&membership, 3, start, 1, 2, 0);
    membership_add(&membership, 5, start + 1, 2, 1, 7);
    membership_add(&membership, 9, start + 2, 3, 4, 0);
    return membership;
}

static void test_places(void **state)
{
    struct membership membership = made(5, 100);

    (void)state;
    assert_int_equal(membership.nodes, 3);
    assert_int_equal(membership.self, 1);
    assert_int_equal(membership_ranks(&membership, 6), 6); /* those of node 5 only watch */
    assert_int_equal(membership_ranks(&membership, 7), 7);
    assert_int_equal(membership_index(&membership, 3), 0);
    assert_int_equal(membership_index(&membership, 9), 2);
    assert_int_equal(membership_index(&membership, 2), -1);
    assert_int_equal(membership_index(&membership, 4), -1);
    assert_int_equal(membership_index(&membership, 10), -1);
    membership_free(&membership);
    assert_int_equal(membership_index(&membership, 3), -1);
}

static void test_the_lowest_coordinates(void **state)
{
    struct membership low = made(3, 100), high = made(9, 100);

    (void)state;
    assert_int_equal(membership_coordinator(&high), 3);
    assert_true(membership_coordinates(&low));
    assert_false(membership_coordinates(&high));
    membership_free(&low);
    membership_free(&high);
}

/* The given node breaks ties if it is a member, else the lowest one. */
static void test_ties(void **state)
{
    struct membership membership = made(5, 100), kept = made(5, 100);

    (void)state;
    for (int64_t node = -1; node < 12; node++) {
        const bool member = node == 3 || node == 5 || node == 9;
        membership_break_ties(&membership, node);
        assert_int_equal(membership.tie_breaker, member ? node : 3);
    }
    membership_break_ties(&membership, 9);
    membership_replace(&kept, &membership);
    assert_int_equal(kept.tie_breaker, 9);
    membership_free(&kept);
}

/* A daemon that starts anew makes another membership of the same nodes. */
static void test_equal(void **state)
{
    struct membership one = made(3, 100), same = made(5, 100), later = made(3, 200), fewer;

    (void)state;
    assert_true(membership_equal(&one, &same));
    assert_false(membership_equal(&one, &later));
    assert_true(membership_same_nodes(&one, &later));
    assert_int_equal(membership_begin(&fewer, 3, 3), ADTOPK_OK);
    membership_add(&fewer, 3, 100, 1, 2, 0);
    assert_false(membership_same_nodes(&one, &fewer));
    membership_free(&one);
    membership_free(&same);
    membership_free(&later);
    membership_free(&fewer);
}

static void test_replace(void **state)
{
    struct membership in_force = {.nodes = 0}, first = made(5, 100), second = made(5, 200);
    const uint16_t *node = first.node;

    (void)state;
    membership_replace(&in_force, &first);
    assert_int_equal(first.nodes, 0);
    assert_int_equal(in_force.incarnation[2], 102);
    membership_replace(&in_force, &second);
    assert_int_equal(second.nodes, 0);
    assert_int_equal(in_force.incarnation[2], 202);
    assert_int_equal(in_force.self, 1);
    assert_ptr_equal(in_force.node, node); /* rounds under way borrow it */
    membership_free(&in_force);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_the_lowest_coordinates),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_replace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
