/*
 * Who may go on without the others: the rules one by one, what is declared as lost with a view, and
 * random runs of nodes that are cut off, restart and lose messages. A view *lives* when all of its
 * members have it in force. Of the views that live, each has only members of the one before: two
 * parts of a job never both go on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/views.h"

#define NODES 5u
#define ALL ((1u << NODES) - 1)

/* The nodes of a mask, a bit 1 << n for node n. */
static struct membership members_of(unsigned mask)
{
    struct membership members;

    assert_int_equal(membership_begin(&members, 0, NODES), ADTOPK_OK);
    for (uint16_t n = 0; n < NODES; n++) {
        if ((mask >> n & 1) != 0) {
            membership_add(&members, n, 1, 1, 1 + n, 0);
        }
    }
    return members;
}

/* The same, if the policy says that this node breaks ties. */
static struct membership members_with(unsigned mask, int64_t tie_breaker)
{
    struct membership members = members_of(mask);

    membership_break_ties(&members, tie_breaker);
    return members;
}

static bool allow(const struct views *views, unsigned mask)
{
    struct membership members = members_of(mask);
    bool allowed = views_allow(views, &members);

    membership_free(&members);
    return allowed;
}

static bool promise_with(struct views *views, unsigned mask, int64_t tie_breaker, uint32_t view)
{
    struct membership members = members_with(mask, tie_breaker);
    bool promised = views_promise(views, &members, view);

    membership_free(&members);
    return promised;
}

static bool promise(struct views *views, unsigned mask, uint32_t view)
{
    return promise_with(views, mask, -1, view);
}

static void take_with(struct views *views, unsigned mask, int64_t tie_breaker, uint32_t view)
{
    struct membership members = members_with(mask, tie_breaker);

    views_take(views, &members, view, views_declared(views));
    membership_free(&members);
}

static void take(struct views *views, unsigned mask, uint32_t view)
{
    take_with(views, mask, -1, view);
}

static void test_first_view(void **state)
{
    struct views *views = calloc(1, sizeof(*views));

    (void)state;
    assert_non_null(views);
    assert_true(allow(views, 1u << 3)); /* there is no view yet */
    take(views, ALL, 1);
    assert_int_equal(views->founders, NODES);
    assert_int_equal(views_known(views)->view, 1);
    assert_int_equal(views_known(views)->ranks[4], 5);
    assert_int_equal(views_place(views, 4), 4);
    assert_int_equal(views_place(views, 5), -1);
    take(views, 7, 2);
    assert_int_equal(views->founders, NODES);
    assert_int_equal(views_place(views, 4), -1);
    free(views);
}

static void test_half(void **state)
{
    struct views *views = calloc(1, sizeof(*views));

    (void)state;
    assert_non_null(views);
    take(views, ALL, 1);
    assert_true(allow(views, 0x07));
    assert_true(allow(views, 0x1c));
    assert_false(allow(views, 0x18));
    take(views, 0x0f, 2);
    assert_true(allow(views, 0x03)); /* half, with the lowest */
    assert_false(allow(views, 0x0c));
    assert_true(allow(views, 0x17));  /* node 4 joins */
    assert_false(allow(views, 0x18)); /* and has no vote */
    take(views, 0x06, 3);
    assert_true(allow(views, 0x02));
    assert_false(allow(views, 0x04));
    free(views);
}

/* A view says which of its halves goes on, whatever later ones say. */
static void test_tie_breaker(void **state)
{
    struct views *views = calloc(1, sizeof(*views));

    (void)state;
    assert_non_null(views);
    take_with(views, 0x0f, 3, 1);
    assert_false(allow(views, 0x03));
    assert_true(allow(views, 0x0c));
    assert_true(allow(views, 0x07));              /* more than half need no such node */
    assert_false(allow(views, 0x13));             /* node 4 would join, and has no vote */
    assert_true(promise_with(views, 0x0f, 0, 2)); /* it may be in force, or not */
    assert_false(allow(views, 0x03));
    assert_false(allow(views, 0x0c));
    assert_true(allow(views, 0x09));
    take_with(views, 0x0f, 0, 2);
    assert_true(allow(views, 0x03));
    assert_false(allow(views, 0x0c));
    free(views);
}

static void test_promised(void **state)
{
    struct views *views = calloc(1, sizeof(*views));

    (void)state;
    assert_non_null(views);
    take(views, ALL, 1);
    assert_true(promise(views, 0x07, 2));
    assert_false(allow(views, 0x1c)); /* one of the three that view 2 may have */
    assert_true(allow(views, 0x0e));  /* two of them */
    assert_true(promise(views, 0x0e, 3));
    assert_false(allow(views, 0x1c));    /* the older promise counts as well */
    assert_true(promise(views, ALL, 4)); /* needs no room */
    take(views, 0x0e, 5);
    assert_false(views_counts(views, 0));
    assert_false(views_counts(views, 1));
    free(views);
}

static void test_no_room(void **state)
{
    struct views *views = calloc(1, sizeof(*views));
    uint32_t view = 1;

    (void)state;
    assert_non_null(views);
    take(views, ALL, view);
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        assert_true(promise(views, 7 + i, ++view));
    }
    assert_true(promise(views, 7, ++view)); /* promised before */
    assert_false(promise(views, 0x1c, ++view));
    take(views, 0x1e, view);
    assert_true(promise(views, 0x1c, ++view));
    free(views);
}

static void test_learn(void **state)
{
    struct views *views = calloc(1, sizeof(*views)), *other = calloc(1, sizeof(*other));
    struct promised_view pair = {.view = 4, .nodes = 2, .node = {0, 1}};

    (void)state;
    assert_non_null(views);
    assert_non_null(other);
    take(views, ALL, 3);
    take(other, 0x0f, 2);
    assert_false(views_learn(views, views_known(other))); /* an older one */
    take(other, 0x0f, 4);
    assert_true(views_learn(views, views_known(other)));
    assert_int_equal(views_known(views)->nodes, 4);
    assert_false(views_learn(views, views_known(other)));
    assert_false(views_learn_promised(views, &pair)); /* it is over */
    pair.view = 5;
    assert_true(views_learn_promised(views, &pair));
    pair.view = 6;
    assert_false(views_learn_promised(views, &pair)); /* the same members */
    pair.tie_breaker = 1;
    assert_true(views_learn_promised(views, &pair));
    assert_false(allow(views, 0x0e));
    (void)memset(other, 0, sizeof(*other));
    views_merge(other, views);
    assert_false(allow(other, 0x0e));
    assert_int_equal(views_known(other)->view, 4);
    free(views);
    free(other);
}

/* ------------------------------------------------------------------ declared losses */

static bool totals(const struct declared *declared, unsigned nodes, double sum)
{
    const struct lost_info total = declared_total(declared);

    return total.nodes == nodes && total.sums[0] == sum && total.sums[1] == -sum &&
           total.magnitude == 2 * sum;
}

/* What a node told of its residuals, which depends on the node. */
static struct member_residual told(uint16_t node)
{
    return (struct member_residual){.told = true,
        .step = 100 + node,
        .sums = {1 << node, -(1 << node)},
        .measured = true,
        .magnitude = 2 << node};
}

static void declares(struct declared *declared, uint16_t node)
{
    const struct member_residual residual = told(node);

    declared_add(declared, node, &residual);
}

static void test_declared(void **state)
{
    struct declared declared = {.nodes = 0};
    struct member_residual back = {.told = false};

    (void)state;
    declares(&declared, 1);
    declares(&declared, 3);
    declared_add(&declared, 2, &back);
    assert_true(totals(&declared, 3, 10));
    assert_int_equal(declared_total(&declared).unknown, 1);
    assert_int_equal(declared_total(&declared).step, 103);
    assert_true(declared_withdraw(&declared, 3, &back));
    assert_true(back.told && back.sums[0] == 8 && back.magnitude == 16);
    assert_true(totals(&declared, 2, 2));
    assert_false(declared_withdraw(&declared, 3, &back));
    declared_finish(&declared, 1); /* it came back without its residuals */
    declares(&declared, 1);        /* it was lost again */
    assert_true(totals(&declared, 3, 4));
    assert_true(declared_withdraw(&declared, 1, &back));
    assert_true(totals(&declared, 2, 2));
    declares(&declared, 5);
    declares(&declared, 3);
    declared_finish(&declared, 5);
    assert_int_equal(declared_total(&declared).step, 105);
}

/* Of too many, the first ones count for good. */
static void test_many_declared(void **state)
{
    struct declared declared = {.nodes = 0};
    struct member_residual back;

    (void)state;
    for (uint16_t n = 0; n < DECLARED_MOST + 2; n++) {
        const struct member_residual residual = {.told = true, .sums = {1, -1}};
        declared_add(&declared, n, &residual);
    }
    assert_int_equal(declared.nodes, DECLARED_MOST);
    assert_int_equal(declared_total(&declared).nodes, DECLARED_MOST + 2);
    assert_int_equal(declared_total(&declared).unmeasured, DECLARED_MOST + 2);
    assert_false(declared_withdraw(&declared, 1, &back));
    assert_true(declared_withdraw(&declared, 2, &back));
    assert_true(declared_total(&declared).sums[0] == DECLARED_MOST + 1);
}

/* It is in force with a view of this node, and stays through views of others. */
static void test_declared_with_view(void **state)
{
    struct views *views = calloc(1, sizeof(*views)), *other = calloc(1, sizeof(*other));
    struct membership members = members_of(0x0f);
    struct declared declared = {.nodes = 0};

    (void)state;
    assert_non_null(views);
    assert_non_null(other);
    take(views, ALL, 1);
    declares(&declared, 4);
    views_take(views, &members, 2, &declared);
    assert_true(totals(views_declared(views), 1, 16));
    take(other, 0x07, 3);
    assert_true(views_learn(views, views_known(other)));
    assert_true(totals(views_declared(views), 1, 16));
    assert_true(views_fit(views));
    (void)memset(&views->declared[views->changes % 2].node[0].residual.told, 2, 1);
    assert_false(views_fit(views));
    (void)memset(&views->declared[views->changes % 2].node[0].residual.told, 1, 1);
    assert_true(views_fit(views));
    views->declared[views->changes % 2].nodes = DECLARED_MOST + 1;
    assert_false(views_fit(views));
    membership_free(&members);
    free(views);
    free(other);
}

/* ------------------------------------------------------------------ random runs */

struct world {
    uint64_t random;
    struct views *views[NODES];
    uint32_t promised[NODES]; /* the highest number */
    uint32_t in_force[NODES];
    unsigned members[NODES]; /* of that view */
    unsigned living;         /* members of the last view that lived */
    uint32_t lived;          /* its number */
    unsigned smaller, grown; /* views that lived with fewer members, and with other ones */
};

static unsigned draw(struct world *world, unsigned below)
{
    world->random = world->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(world->random >> 33) % below;
}

/* A view lives: no other part of the job goes on. Otherwise an older view would live again. */
static void check_living(struct world *world, unsigned n)
{
    const unsigned mask = world->members[n]; /* 0: it is in no view */

    for (unsigned m = 0; m < NODES; m++) {
        if ((mask >> m & 1) != 0 && world->in_force[m] != world->in_force[n]) {
            return;
        }
    }
    if (mask == 0) {
        return;
    }
    if (world->in_force[n] == world->lived) {
        assert_int_equal(mask, world->living);
        return;
    }
    assert_true(world->in_force[n] > world->lived);
    world->smaller += (mask & ~world->living) == 0 && mask != world->living;
    world->grown += (mask & ~world->living) != 0;
    world->living = mask;
    world->lived = world->in_force[n];
}

/* The node has lost what it had, and joins the job again. */
static void begins_anew(struct world *world, unsigned n, const struct views *of)
{
    (void)memset(world->views[n], 0, sizeof(*world->views[n]));
    world->promised[n] = world->in_force[n] = 0;
    world->members[n] = 0;
    views_adopt(world->views[n], views_known(of), NODES);
}

struct proposal {
    unsigned proposer, mask;
    int64_t tie_breaker;
    uint32_t view;
};

/* A member answers a proposal; it may not hear it. */
static bool answers(struct world *world, unsigned n, const struct proposal *proposal)
{
    const struct views *known = world->views[proposal->proposer];

    if (views_place(known, (uint16_t)n) < 0) {
        begins_anew(world, n, known);
    } else if (world->in_force[n] == 0) {
        return false; /* a member that has lost what it had */
    }
    if (proposal->view <= world->promised[n]) {
        return false;
    }
    (void)views_learn(world->views[n], views_known(known));
    if (views_known(world->views[n])->view != views_known(known)->view) {
        views_merge(world->views[proposal->proposer], world->views[n]);
        return false;
    }
    if (!allow(world->views[n], proposal->mask) ||
        !promise_with(world->views[n], proposal->mask, proposal->tie_breaker, proposal->view)) {
        views_merge(world->views[proposal->proposer], world->views[n]);
        return false;
    }
    world->promised[n] = proposal->view;
    return true;
}

static void commits(struct world *world, unsigned n, const struct proposal *proposal)
{
    if (world->promised[n] == proposal->view) {
        take_with(world->views[n], proposal->mask, proposal->tie_breaker, proposal->view);
        world->in_force[n] = proposal->view;
        world->members[n] = proposal->mask;
    }
}

/* Some nodes, or the same ones again, perhaps with another one that breaks ties. */
static struct proposal draw_proposal(struct world *world, unsigned proposer)
{
    struct proposal proposal = {.proposer = proposer, .mask = world->members[proposer]};

    proposal.view = world->promised[proposer] + 1 + draw(world, 2);
    proposal.tie_breaker = (int64_t)draw(world, NODES + 1) - 1;
    if (draw(world, 3) > 0) {
        proposal.mask = draw(world, ALL) & ALL;
    }
    proposal.mask |= 1u << proposer;
    return proposal;
}

/* A node proposes a view with some nodes. Any message of it may be lost. */
static void proposes(struct world *world, unsigned proposer)
{
    const struct proposal proposal = draw_proposal(world, proposer);
    const unsigned mask = proposal.mask;
    const unsigned lost = draw(world, 3) == 0 ? draw(world, ALL) : 0;
    bool all = true;

    if (views_place(world->views[proposer], (uint16_t)proposer) < 0 ||
        !allow(world->views[proposer], mask)) {
        return;
    }
    for (unsigned n = 0; n < NODES; n++) {
        if ((mask >> n & 1) != 0 && (n == proposer || (lost >> n & 1) == 0)) {
            all = answers(world, n, &proposal) && all;
        } else if ((mask >> n & 1) != 0) {
            all = false;
        }
    }
    for (unsigned n = 0; all && n < NODES; n++) {
        if ((mask >> n & 1) != 0 && (n == proposer || draw(world, 3) > 0)) {
            commits(world, n, &proposal);
        }
    }
    for (unsigned n = 0; n < NODES; n++) {
        check_living(world, n);
    }
}

static struct world run(uint64_t seed)
{
    struct world world = {.random = seed, .living = ALL, .lived = 1};

    for (unsigned n = 0; n < NODES; n++) {
        world.views[n] = calloc(1, sizeof(struct views));
        assert_non_null(world.views[n]);
        take(world.views[n], ALL, 1);
        world.promised[n] = world.in_force[n] = 1;
        world.members[n] = ALL;
    }
    for (unsigned i = 0; i < 60; i++) {
        proposes(&world, draw(&world, NODES));
    }
    for (unsigned n = 0; n < NODES; n++) {
        free(world.views[n]);
    }
    return world;
}

static void test_random(void **state)
{
    unsigned smaller = 0, grown = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        const struct world world = run(seed);
        smaller += world.smaller;
        grown += world.grown;
    }
    (void)printf("# %u views with fewer nodes, %u with others\n", smaller, grown);
    assert_true(smaller > 1000 && grown > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_view),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_tie_breaker),
        cmocka_unit_test(test_promised),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_learn),
        cmocka_unit_test(test_declared),
        cmocka_unit_test(test_many_declared),
        cmocka_unit_test(test_declared_with_view),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
