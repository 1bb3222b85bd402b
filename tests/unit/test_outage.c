/*
 * The n-th call to the allocator or the operating system fails, for every n, in a trainer that goes
 * through all calls of the library, in an operator's program, or in a daemon. Each walk ends well
 * or with a sentence. The daemon lives, serves the next walk, and holds nothing more than before.
 *
 * usage: test_outage [TEST [WALK]], such as test_restart_memory 'daemon killed'; test_devices runs
 * only if it is named
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

#define LONG_RUNS 0u
#define REST_MS 2000 /* within which a daemon has freed what a session cost */
#define WAIT_LIMIT_MS 20000

enum victim { FIRST_RANK, SECOND_RANK, THIRD_RANK, OPERATOR, FIRST_DAEMON, SECOND_DAEMON, VICTIMS };

/* A walk in which one process lacks something. Of so many calls one fails, unless all do: of a
 * prime, so that the numbers fall on all kinds of places. */
struct outing {
    enum walk_kind kind;
    enum victim victim;
    unsigned stride; /* LONG_RUNS: only long runs have it */
};

static struct outage_node node[OUTAGE_NODES];
static const char *only; /* NULL: all */

static const char *const walk_names[WALK_KINDS] = {[WALK_LOCAL] = "local",
    [WALK_LOAD] = "load",
    [WALK_REMOTE] = "remote",
    [WALK_ASK] = "ask",
    [WALK_GROW] = "grow",
    [WALK_OPERATE] = "operate",
    [WALK_SUCCESSOR] = "successor",
    [WALK_KILLED] = "killed",
    [WALK_STOPPED] = "stopped",
    [WALK_FAR_KILLED] = "far killed",
    [WALK_LOST] = "lost",
    [WALK_DEVICE] = "device",
    [WALK_DEVICE_KILLED] = "device killed"};

static const char *const victim_names[VICTIMS] = {[FIRST_RANK] = "trainer",
    [SECOND_RANK] = "second trainer",
    [THIRD_RANK] = "third trainer",
    [OPERATOR] = "operator",
    [FIRST_DAEMON] = "daemon",
    [SECOND_DAEMON] = "second daemon"};

/* The state is the kind of nodes. */
static int start(void **state)
{
    const enum nodes_kind *kind = *state;

    nodes_prepare(node, *kind);
    for (unsigned i = 0; i < nodes_count(); i++) {
        node_start(&node[i]);
    }
    walkers_start(node);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    walkers_stop();
    for (unsigned i = 0; i < nodes_count(); i++) {
        node_stop(&node[i]);
    }
    nodes_remove();
    return 0;
}

/* ---- one walk ---- */

/* The process whose calls fail: where the daemon is killed, the next one. */
static pid_t find_process(const struct outing *outing, pid_t next)
{
    const struct outage_node *victim;

    switch (outing->victim) {
    case FIRST_DAEMON:
    case SECOND_DAEMON:
        victim = &node[outing->victim - FIRST_DAEMON];
        return walk_ends(outing->kind, node) == victim && outing->kind != WALK_STOPPED
                   ? next
                   : victim->pid;
    default: return walkers_process((unsigned)outing->victim);
    }
}

/* Walks once. Returns how many calls failed, from number `from`, none if `outage` is OUTAGE_KINDS.
 */
static uint64_t walk_once(
    const struct outing *outing, enum outage outage, uint64_t from, struct walk_end end[WALKERS])
{
    struct outage_node *ends = walk_ends(outing->kind, node);
    const pid_t next = ends != NULL ? node_stand_by(ends) : 0;
    uint64_t failed;

    if (outage < OUTAGE_KINDS) {
        outage_plan(find_process(outing, next), outage, from, 1);
    }
    walk(outing->kind, end);
    failed = outage_end();
    if (ends != NULL) {
        node_relieve(ends);
    }
    for (unsigned i = 0; i < nodes_count(); i++) {
        node_must_live(&node[i]);
    }
    walk_mend(outing->kind);
    return failed;
}

static void report(const struct walk_end end[WALKERS], uint64_t number)
{
    for (unsigned i = 0; i < WALKERS; i++) {
        (void)printf("# call %llu: walker %u %s %s: %s\n", (unsigned long long)number, i,
            end[i].call, adtopk_status_name(end[i].status), end[i].text);
    }
}

/* A walk that nothing disturbs. */
static void walk_well(enum walk_kind kind)
{
    const struct outing outing = {.kind = kind};
    struct walk_end end[WALKERS];

    (void)walk_once(&outing, OUTAGE_KINDS, 0, end);
    for (unsigned i = 0; i < WALKERS; i++) {
        if (end[i].status != ADTOPK_OK) {
            report(end, 0);
            fail_msg("walker %u, undisturbed, walk %s", i, walk_names[kind]);
        }
    }
}

/* ---- how it ended ---- */

/* Whether the status says what was missing. A walker hears nothing of signals and short writes.
 * Without what its daemon needs to go on without another rank, it hears that this one is gone. */
static bool is_true(enum walk_kind kind, enum outage outage, enum adtopk_status status)
{
    if ((kind == WALK_GROW || kind == WALK_SUCCESSOR || kind == WALK_LOST) &&
        outage < OUTAGE_SIGNALS && status == ADTOPK_ERR_PEER) {
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

/* The rank that hears of it first. */
static unsigned rank_of(enum victim victim)
{
    switch (victim) {
    case SECOND_RANK:
    case SECOND_DAEMON: return WALKER_SECOND;
    case THIRD_RANK: return WALKER_THIRD;
    default: return WALKER_FIRST;
    }
}

/* Whether all ended well, or heard why not. A rank that gave up knows less than the other one. */
static bool ended_well(
    const struct outing *outing, enum outage outage, const struct walk_end end[WALKERS])
{
    const enum adtopk_status status = end[rank_of(outing->victim)].status;

    if (status == ADTOPK_PENDING ? outage >= OUTAGE_SIGNALS
                                 : !is_true(outing->kind, outage, status)) {
        return false;
    }
    for (unsigned i = 0; i < WALKERS; i++) {
        if (end[i].status != ADTOPK_OK && end[i].status != ADTOPK_PENDING &&
            end[i].text[0] == '\0') {
            return false;
        }
    }
    return true;
}

/* A daemon that was started again waits for its ranks, as long as the policy says, also where they
 * have failed. */
static bool all_settle(enum walk_kind kind)
{
    const unsigned limit_ms = walk_ends(kind, node) != NULL ? WAIT_LIMIT_MS : REST_MS;
    bool settled = true;

    for (unsigned i = 0; i < nodes_count(); i++) {
        settled = node_settle(&node[i], limit_ms) && settled;
    }
    return settled;
}

/* ---- all walks ---- */

static bool is_long(void)
{
    const char *all = getenv("ADTOPK_TEST_LONG");

    return all != NULL && strcmp(all, "1") == 0;
}

static unsigned stride_of(const struct outing *outing)
{
    return is_long() ? 1 : CASES(outing->stride, 9 * outing->stride + 2);
}

/* The walk again and again, each time with another call that fails. */
static void fail_each(const struct outing *outing, enum outage outage)
{
    uint64_t failed = 1, number = 0;
    unsigned errors = 0;

    for (; failed > 0; number += stride_of(outing)) {
        struct walk_end end[WALKERS];
        bool error = false;

        failed = walk_once(outing, outage, number, end);
        for (unsigned i = 0; i < WALKERS; i++) {
            error = error || end[i].status != ADTOPK_OK;
        }
        errors += error;
        if (!ended_well(outing, outage, end) || !all_settle(outing->kind)) {
            report(end, number);
            fail_msg("%s in the %s, walk %s", outage_name(outage), victim_names[outing->victim],
                walk_names[outing->kind]);
        }
    }
    (void)printf("# %s in the %s, walk %s: %llu calls, %u walks ended with an error\n",
        outage_name(outage), victim_names[outing->victim], walk_names[outing->kind],
        (unsigned long long)number, errors);
    (void)fflush(stdout);
}

/* Whether this run has the outing: `only` names a walk and who lacks something, such as "daemon
 * killed". */
static bool takes_place(const struct outing *outing)
{
    char name[64];

    (void)snprintf(
        name, sizeof(name), "%s %s", victim_names[outing->victim], walk_names[outing->kind]);
    return (is_long() || outing->stride != LONG_RUNS) && (only == NULL || strcmp(name, only) == 0);
}

static void fail_all(const struct outing *outings, unsigned count, enum outage from, enum outage to)
{
    for (unsigned i = 0; i < count; i++) {
        if (!takes_place(&outings[i])) {
            continue;
        }
        if (outings[i].kind != WALK_DEVICE && outings[i].kind != WALK_DEVICE_KILLED) {
            walk_well(WALK_LOCAL); /* what is made once is there, a checkpoint included */
        }
        walk_well(outings[i].kind);
        if (outings[i].kind == WALK_LOST) {
            walk_well(WALK_LOCAL); /* the daemon that came later knows the others */
        }
        for (unsigned n = 0; n < nodes_count(); n++) {
            node_rest(&node[n]);
        }
        for (unsigned outage = from; outage <= (unsigned)to; outage++) {
            fail_each(&outings[i], (enum outage)outage);
        }
        walk_well(outings[i].kind);
    }
}

#define FAIL_ALL(outings, from, to)                                                                \
    fail_all(outings, sizeof(outings) / sizeof((outings)[0]), from, to)

static const struct outing trainers[] = {
    {WALK_LOCAL, FIRST_RANK, 11},
    {WALK_LOAD, FIRST_RANK, 13},
    {WALK_REMOTE, FIRST_RANK, 17},
    {WALK_ASK, FIRST_RANK, 13},
    {WALK_GROW, FIRST_RANK, 11},
    {WALK_OPERATE, FIRST_RANK, 41},
    {WALK_OPERATE, OPERATOR, 11},
    {WALK_SUCCESSOR, FIRST_RANK, 41},
    {WALK_LOCAL, SECOND_RANK, LONG_RUNS},
    {WALK_GROW, SECOND_RANK, 23},
    {WALK_SUCCESSOR, SECOND_RANK, 23},
};

static const struct outing daemons[] = {
    {WALK_LOCAL, FIRST_DAEMON, 17},
    {WALK_LOAD, FIRST_DAEMON, 17},
    {WALK_REMOTE, FIRST_DAEMON, 23},
    {WALK_ASK, FIRST_DAEMON, 41},
    {WALK_GROW, FIRST_DAEMON, 23},
    {WALK_OPERATE, FIRST_DAEMON, 199},
    {WALK_SUCCESSOR, FIRST_DAEMON, 97},
    {WALK_LOCAL, SECOND_DAEMON, LONG_RUNS},
    {WALK_LOAD, SECOND_DAEMON, LONG_RUNS},
    {WALK_GROW, SECOND_DAEMON, 97},
    {WALK_OPERATE, SECOND_DAEMON, LONG_RUNS},
    {WALK_SUCCESSOR, SECOND_DAEMON, 97},
};

/* Daemons that are ended and started again. A walk takes a third of a second. */
static const struct outing restarts[] = {
    {WALK_KILLED, FIRST_RANK, 97},
    {WALK_KILLED, SECOND_RANK, LONG_RUNS},
    {WALK_KILLED, FIRST_DAEMON, 499},
    {WALK_KILLED, SECOND_DAEMON, LONG_RUNS},
    {WALK_STOPPED, FIRST_RANK, LONG_RUNS},
    {WALK_STOPPED, FIRST_DAEMON, LONG_RUNS},
    {WALK_STOPPED, SECOND_DAEMON, LONG_RUNS},
    {WALK_FAR_KILLED, FIRST_RANK, LONG_RUNS},
    {WALK_FAR_KILLED, FIRST_DAEMON, LONG_RUNS},
};

/* Nodes and trainers that prove who they are. */
static const struct outing keyed[] = {
    {WALK_REMOTE, FIRST_RANK, 97},
    {WALK_REMOTE, FIRST_DAEMON, 199},
    {WALK_FAR_KILLED, FIRST_RANK, LONG_RUNS},
    {WALK_FAR_KILLED, FIRST_DAEMON, 499},
    {WALK_FAR_KILLED, SECOND_DAEMON, LONG_RUNS},
};

/* Three nodes, of which the second one is the seed that introduces the others. They need more than
 * a second to know each other. */
static const struct outing seeds[] = {
    {WALK_KILLED, FIRST_RANK, LONG_RUNS},
    {WALK_KILLED, FIRST_DAEMON, LONG_RUNS},
    {WALK_KILLED, SECOND_DAEMON, LONG_RUNS},
};

/* Three nodes, of which two go on. */
static const struct outing three[] = {
    {WALK_LOST, FIRST_RANK, LONG_RUNS},
    {WALK_LOST, FIRST_DAEMON, 499},
    {WALK_LOST, SECOND_DAEMON, LONG_RUNS},
    {WALK_LOST, THIRD_RANK, LONG_RUNS},
};

/* A service manager keeps the first node's stores. */
static const struct outing kept[] = {
    {WALK_KILLED, FIRST_RANK, LONG_RUNS},
    {WALK_KILLED, FIRST_DAEMON, 499},
    {WALK_KILLED, SECOND_DAEMON, LONG_RUNS},
    {WALK_STOPPED, FIRST_DAEMON, LONG_RUNS},
};

/* A library stands in for the driver. */
static const struct outing devices[] = {
    {WALK_DEVICE, FIRST_RANK, 11},
    {WALK_DEVICE, SECOND_RANK, LONG_RUNS},
    {WALK_DEVICE, FIRST_DAEMON, 97},
    {WALK_DEVICE, SECOND_DAEMON, LONG_RUNS},
    {WALK_DEVICE_KILLED, FIRST_RANK, LONG_RUNS},
    {WALK_DEVICE_KILLED, SECOND_RANK, LONG_RUNS},
    {WALK_DEVICE_KILLED, FIRST_DAEMON, 499},
    {WALK_DEVICE_KILLED, SECOND_DAEMON, LONG_RUNS},
};

static void test_trainer_memory(void **state)
{
    (void)state;
    FAIL_ALL(trainers, OUTAGE_MEMORY, OUTAGE_MEMORY);
}

static void test_daemon_memory(void **state)
{
    (void)state;
    FAIL_ALL(daemons, OUTAGE_MEMORY, OUTAGE_MEMORY);
}

static void test_restart_memory(void **state)
{
    (void)state;
    FAIL_ALL(restarts, OUTAGE_MEMORY, OUTAGE_MEMORY);
}

static const enum outage all_outages[] = {
    OUTAGE_MEMORY, OUTAGE_DESCRIPTORS, OUTAGE_SPACE, OUTAGE_SIGNALS, OUTAGE_SHORT};
static const char *const kind_names[] = {"", " with keys", " with a seed", " with GPUs"};

/* The daemon while it starts: the one that has a seed. */
static void starts(enum nodes_kind kind)
{
    nodes_prepare(node, kind);
    for (unsigned i = 0; i < sizeof(all_outages) / sizeof(all_outages[0]); i++) {
        const enum outage outage = all_outages[i];
        uint64_t number = 0;

        while (node_try_start(&node[0], outage, number, 1, outage >= OUTAGE_SIGNALS) > 0) {
            number += 1;
        }
        (void)printf("# %s while the daemon starts%s: %llu calls\n", outage_name(outage),
            kind_names[kind], (unsigned long long)number);
    }
    nodes_remove();
}

static void test_start(void **state)
{
    (void)state;
    starts(NODES_INSECURE);
    starts(NODES_KEYS);
    starts(NODES_SEEDS);
}

/* A daemon reads another configuration on SIGHUP, and one call of it fails. It takes all of it, or
 * says why not and takes it the next time. Returns how many calls failed. */
static uint64_t read_again(enum outage outage, uint64_t number)
{
    uint64_t failed;
    bool taken;

    nodes_configure(node, 0, false);
    node_start(&node[0]);
    nodes_configure(node, 0, true);
    outage_plan(node[0].pid, outage, number, 1);
    taken = node_read_again(&node[0]);
    failed = outage_end();
    if (!taken && (outage == OUTAGE_SIGNALS || !node_read_again(&node[0]))) {
        fail_msg("%s, call %llu: the configuration is not taken", outage_name(outage),
            (unsigned long long)number);
    }
    node_stop(&node[0]);
    return failed;
}

static void test_read_again(void **state)
{
    (void)state;
    for (enum nodes_kind kind = NODES_INSECURE; kind <= NODES_SEEDS; kind++) {
        nodes_prepare(node, kind);
        for (unsigned i = 0; i < sizeof(all_outages) / sizeof(all_outages[0]); i++) {
            const unsigned stride = all_outages[i] == OUTAGE_MEMORY ? 41 : 5;
            uint64_t number = 0;

            while (read_again(all_outages[i], number) > 0) {
                number += is_long() ? 1 : CASES(stride, 9 * stride + 2);
            }
            (void)printf("# %s while the daemon reads its configuration again%s: %llu calls\n",
                outage_name(all_outages[i]), kind_names[kind], (unsigned long long)number);
        }
        nodes_remove();
    }
}

static void test_trainer_system(void **state)
{
    (void)state;
    FAIL_ALL(trainers, OUTAGE_DESCRIPTORS, OUTAGE_SHORT);
}

static void test_daemon_system(void **state)
{
    (void)state;
    FAIL_ALL(daemons, OUTAGE_DESCRIPTORS, OUTAGE_SHORT);
}

static void test_restart_system(void **state)
{
    (void)state;
    FAIL_ALL(restarts, OUTAGE_DESCRIPTORS, OUTAGE_SHORT);
}

static void test_keys(void **state)
{
    (void)state;
    FAIL_ALL(keyed, OUTAGE_MEMORY, OUTAGE_SHORT);
}

static void test_seeds(void **state)
{
    (void)state;
    FAIL_ALL(seeds, OUTAGE_MEMORY, OUTAGE_SHORT);
}

static void test_three(void **state)
{
    (void)state;
    FAIL_ALL(three, OUTAGE_MEMORY, OUTAGE_SHORT);
}

static void test_kept(void **state)
{
    (void)state;
    FAIL_ALL(kept, OUTAGE_MEMORY, OUTAGE_SHORT);
}

static void test_devices(void **state)
{
    (void)state;
    FAIL_ALL(devices, OUTAGE_MEMORY, OUTAGE_SHORT);
}

/* A test between the start and the stop of such nodes. */
#define WITH_NODES(test, kind)                                                                     \
    cmocka_unit_test_prestate_setup_teardown(test, start, stop, &(enum nodes_kind){kind})

/* argv: a test and a walk, or none. */
static int run_all(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_read_again),
        WITH_NODES(test_trainer_memory, NODES_INSECURE),
        WITH_NODES(test_daemon_memory, NODES_INSECURE),
        WITH_NODES(test_trainer_system, NODES_INSECURE),
        WITH_NODES(test_daemon_system, NODES_INSECURE),
        WITH_NODES(test_restart_memory, NODES_INSECURE),
        WITH_NODES(test_restart_system, NODES_INSECURE),
        WITH_NODES(test_keys, NODES_KEYS),
        WITH_NODES(test_seeds, NODES_LEARN),
        WITH_NODES(test_three, NODES_THREE),
        WITH_NODES(test_kept, NODES_KEPT),
    };

    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    only = argc > 2 ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Only these need the library that stands in for the driver. */
static int run_devices(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {WITH_NODES(test_devices, NODES_DEVICES)};

    only = argc > 2 ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (!outage_begin()) {
        return 1;
    }
    return argc > 1 && strcmp(argv[1], "test_devices") == 0 ? run_devices(argc, argv)
                                                            : run_all(argc, argv);
}
