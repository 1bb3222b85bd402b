/*
 * The n-th call to the allocator or the operating system fails, for every n, in a trainer that goes
 * through all calls of the library, or in its daemon. Each walk ends well or with a sentence. The
 * daemon lives, serves the next walk, and holds nothing more than before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "outage_rank.h"
#include "tests/host/sanitized.h"

/* Of so many calls one fails: of all in a long run, else of a prime. */
#define STRIDE CASES(11, 101)

static struct outage_node node[OUTAGE_NODES];

static const char *const walk_names[WALK_KINDS] = {[WALK_LOCAL] = "local",
    [WALK_LOAD] = "load",
    [WALK_REMOTE] = "remote",
    [WALK_ASK] = "ask",
    [WALK_GROW] = "grow"};

static int start(void **state)
{
    (void)state;
    nodes_prepare(node);
    for (unsigned i = 0; i < OUTAGE_NODES; i++) {
        node_start(&node[i]);
    }
    walkers_start(node);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    walkers_stop();
    for (unsigned i = 0; i < OUTAGE_NODES; i++) {
        node_stop(&node[i]);
    }
    nodes_remove();
    return 0;
}

/* A walk that nothing disturbs. */
static void walk_well(enum walk_kind kind)
{
    struct walk_end end[2];

    walk(kind, end);
    for (unsigned i = 0; i < 2; i++) {
        if (end[i].status != ADTOPK_OK) {
            fail_msg("rank %u, undisturbed, %s %s: %s %s", i, walk_names[kind], end[i].call,
                adtopk_status_name(end[i].status), end[i].text);
        }
    }
}

/* Whether the first rank's status says what was missing. It hears nothing of signals and short
 * writes. Without what its daemon needs to go on without the second rank, it hears that this one is
 * gone. */
static bool is_true(enum walk_kind kind, enum outage outage, enum adtopk_status status)
{
    if (kind == WALK_GROW && outage < OUTAGE_SIGNALS && status == ADTOPK_ERR_PEER) {
        return true;
    }
    switch (outage) {
    case OUTAGE_SIGNALS:
    case OUTAGE_SHORT: return status == ADTOPK_OK;
    case OUTAGE_DESCRIPTORS: return status == ADTOPK_OK || status == ADTOPK_ERR_SYSTEM;
    default:
        return status == ADTOPK_OK || status == ADTOPK_ERR_MEMORY || status == ADTOPK_ERR_SYSTEM ||
               status == ADTOPK_ERR_STATE; /* of an operator's request: the job has ended */
    }
}

/* Whether both ranks ended well, or heard why not. */
static bool ended_well(enum walk_kind kind, enum outage outage, const struct walk_end end[2])
{
    if (!is_true(kind, outage, end[0].status)) {
        return false;
    }
    for (unsigned i = 0; i < 2; i++) {
        if (end[i].status != ADTOPK_OK && end[i].status != ADTOPK_PENDING &&
            end[i].text[0] == '\0') {
            return false;
        }
    }
    return true;
}

static void report(const struct walk_end end[2], uint64_t number)
{
    for (unsigned i = 0; i < 2; i++) {
        (void)printf("# call %llu: rank %u %s %s: %s\n", (unsigned long long)number, i, end[i].call,
            adtopk_status_name(end[i].status), end[i].text);
    }
}

/* The walk again and again, each time with another call that fails in this process, or in the first
 * node's daemon. */
static void fail_each(enum walk_kind kind, bool daemon, enum outage outage)
{
    const char *all = getenv("ADTOPK_TEST_LONG");
    const uint64_t stride = all != NULL && strcmp(all, "1") == 0 ? 1 : STRIDE;
    const pid_t process = daemon ? node[0].pid : getpid();
    uint64_t failed = 1, number = 0;
    unsigned errors = 0;

    walk_well(WALK_LOCAL); /* what is made once is there, a checkpoint included */
    walk_well(kind);
    node_rest(&node[0]);
    for (; failed > 0; number += stride) {
        struct walk_end end[2];

        outage_plan(process, outage, number, 1);
        walk(kind, end);
        failed = outage_end();
        node_must_live(&node[0]);
        errors += end[0].status != ADTOPK_OK;
        if (!ended_well(kind, outage, end) || !node_settle(&node[0])) {
            report(end, number);
            fail_msg("%s in the %s, walk %s", outage_name(outage), daemon ? "daemon" : "trainer",
                walk_names[kind]);
        }
    }
    walk_well(kind);
    (void)printf("# %s in the %s, walk %s: %llu calls, %u walks ended with an error\n",
        outage_name(outage), daemon ? "daemon" : "trainer", walk_names[kind],
        (unsigned long long)number, errors);
}

static void test_trainer_memory(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < WALK_KINDS; kind++) {
        fail_each((enum walk_kind)kind, false, OUTAGE_MEMORY);
    }
}

static void test_daemon_memory(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < WALK_KINDS; kind++) {
        fail_each((enum walk_kind)kind, true, OUTAGE_MEMORY);
    }
}

/* The daemon while it starts. */
static void test_start(void **state)
{
    static const enum outage kinds[] = {
        OUTAGE_MEMORY, OUTAGE_DESCRIPTORS, OUTAGE_SPACE, OUTAGE_SIGNALS, OUTAGE_SHORT};

    (void)state;
    nodes_prepare(node);
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        uint64_t number = 0;

        while (node_try_start(&node[0], kinds[i], number, 1, kinds[i] >= OUTAGE_SIGNALS) > 0) {
            number += 1;
        }
        (void)printf("# %s while the daemon starts: %llu calls\n", outage_name(kinds[i]),
            (unsigned long long)number);
    }
    nodes_remove();
}

static void test_trainer_system(void **state)
{
    (void)state;
    for (unsigned outage = OUTAGE_DESCRIPTORS; outage < OUTAGE_KINDS; outage++) {
        for (unsigned kind = 0; kind < WALK_KINDS; kind++) {
            fail_each((enum walk_kind)kind, false, (enum outage)outage);
        }
    }
}

static void test_daemon_system(void **state)
{
    (void)state;
    for (unsigned outage = OUTAGE_DESCRIPTORS; outage < OUTAGE_KINDS; outage++) {
        for (unsigned kind = 0; kind < WALK_KINDS; kind++) {
            fail_each((enum walk_kind)kind, true, (enum outage)outage);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test_setup_teardown(test_trainer_memory, start, stop),
        cmocka_unit_test_setup_teardown(test_daemon_memory, start, stop),
        cmocka_unit_test_setup_teardown(test_trainer_system, start, stop),
        cmocka_unit_test_setup_teardown(test_daemon_system, start, stop),
    };

    if (!outage_begin()) {
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
