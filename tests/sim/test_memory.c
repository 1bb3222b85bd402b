/*
 * No memory: the same small run again and again, each time with other allocations failing. Every
 * run must end, by itself or with an error that says so, and nothing may be lost or differ on the
 * way. The linker puts these functions before the allocator's (--wrap).
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/host/sanitized.h"
#include "tests/sim/growing.h"

#define OUTAGE 30u /* allocations that fail in a row in an outage; below sim_alloc()'s patience */

#define CARRIED_SEED 9u /* all nodes have the same carrier, and none has a far engine */

/* Of so many allocations, one fails. */
#define STRIDE CASES_OF(1u, 5u, 13u)
#define GROWING_STRIDE CASES_OF(1u, 24u, 96u) /* these runs take longer */
#define LOST 2u                               /* the node that is lost and joins again */
#define RESTARTED 1u

static uint64_t allocations;
static uint64_t fail_from, fail_to; /* numbers of the allocations that fail */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

static bool fails(void)
{
    uint64_t number = allocations++;

    return number >= fail_from && number < fail_to;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    return fails() ? NULL : __real_realloc(pointer, size);
}

static struct scenario scenario = {
    .seed = 11,
    .nodes = 2,
    .ranks_per_node = 2,
    .steps = 2,
    .operations = 2,
    .delay_us = 100,
    .loss = 0.02,
    .max_us = 600000000,
};

static const char *const of_nodes =
    "{\"reduce\":\"sum\",\"density\":0.05,\"bucket_bytes\":1500,\"sparsifier\":\"auto\"}";
/* A tensor has an order for each rank's residual, and sums come back. Ranks end and come back. */
static const char *const of_ranks =
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"balanced\",\"scope\":\"rank\","
    "\"fibres\":\"longest\",\"on_rank_loss\":\"wait\",\"wait_limit\":2}";

/* Lists and vectors that a carrier moves. */
static const char *const carried =
    "{\"reduce\":\"sum\",\"density\":0.1,\"values\":\"f32\",\"sparsifier\":\"topk\","
    "\"sparse_collective\":\"nccl-allgather\",\"dense_collective\":\"nccl-allreduce\",\"rules\":["
    "{\"match\":\"conv*\",\"sparsifier\":\"dense\"}]}";

static unsigned newcomer = UINT_MAX; /* the rank that joins while others train */

/* All ranks ended well, or some rank was told of the lack of memory. (A rank that is refused only
 * a request hears of it alone; the others then miss it.) A newcomer whose join no member could read
 * has waited, and says so. */
static bool ended_well(const struct world *world)
{
    bool all_done = true, told = false;

    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        all_done = all_done && (trainer->state == TRAINER_DONE || trainer->lost ||
                                   (i == newcomer && trainer->error.text[0] != '\0'));
        told = told || strstr(trainer->error.text, "memory") != NULL;
    }
    for (unsigned i = 0; !all_done && !told && i < world->trainers; i++) {
        (void)printf("# rank %u: %s\n", i, world->trainer[i].error.text);
    }
    return all_done || told;
}

/* Runs to the end. begin: what happens first. */
static bool run_world(
    struct world *world, void (*begin)(struct world *world), uint64_t from, uint64_t to)
{
    bool ok;

    allocations = 0;
    fail_from = from;
    fail_to = to;
    if (begin != NULL) {
        begin(world);
    }
    ok = world_run(world);
    fail_from = fail_to = UINT64_MAX;
    ok = ok && ended_well(world);
    if (!ok) {
        (void)printf("# allocations %llu to %llu fail: %s\n", (unsigned long long)from,
            (unsigned long long)to, world->violation);
    }
    world_destroy(world);
    return ok;
}

static bool run(uint64_t from, uint64_t to)
{
    struct world *world = world_create(&scenario);

    world->job[0].may_fail = from != UINT64_MAX;
    return run_world(world, NULL, from, to);
}

static void run_all(const char *policy, uint64_t outage)
{
    uint64_t total;
    unsigned failed = 0;

    scenario.policy = policy;
    assert_true(run(UINT64_MAX, UINT64_MAX));
    total = allocations;
    for (uint64_t from = 0; from < total; from += STRIDE) {
        failed += run(from, from + outage) ? 0 : 1;
    }
    (void)printf("# %llu allocations in a run, failed in turn by %llu\n", (unsigned long long)total,
        (unsigned long long)outage);
    assert_int_equal(failed, 0);
}

static void test_one_fails(void **state)
{
    (void)state;
    run_all(of_nodes, 1);
}

static void test_outage(void **state)
{
    (void)state;
    run_all(of_nodes, OUTAGE);
}

static void test_one_fails_of_ranks(void **state)
{
    (void)state;
    scenario.seed = 10; /* no far engine: ledgers are checked also where the job has failed */
    scenario.steps = 3;
    scenario.ends = 0.1;
    run_all(of_ranks, 1);
    scenario.ends = 0;
}

static void test_one_fails_of_carried(void **state)
{
    struct world *world;

    (void)state;
    scenario.seed = CARRIED_SEED;
    scenario.steps = 2;
    run_all(carried, 1);
    world = world_create(&scenario);
    assert_true(world_run(world));
    assert_true(world->stats.carried > 0);
    world_destroy(world);
}

/* ------------------------------------------------------------------ a node is lost, and joins
 * again */

static bool some_rank_failed(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state == TRAINER_FAILED && !world->trainer[i].lost) {
            return true;
        }
    }
    return false;
}

static bool smaller_or_failed(const struct world *world)
{
    return grow_is_smaller(world) || some_rank_failed(world);
}

static bool joined_or_failed(const struct world *world)
{
    return grow_has_joined(world) || some_rank_failed(world);
}

/* Starts a daemon. One without memory at its start ends, which test_outage.c shows. */
static void start(
    void (*how)(struct world *world, unsigned node), struct world *world, unsigned node)
{
    const uint64_t from = fail_from;

    fail_from = UINT64_MAX;
    how(world, node);
    fail_from = from;
}

static void lose_and_join(struct world *world)
{
    grow_hold_others(world, LOST, STEPS - 2);
    lose_node(world, LOST);
    if (world_until(world, smaller_or_failed) && !some_rank_failed(world)) {
        start(grow_come_back, world, LOST);
        (void)world_until(world, joined_or_failed);
    }
    grow_release(world);
}

static struct world *three_nodes(void)
{
    struct world *world = growing_world(
        "{\"reduce\":\"sum\",\"density\":0.05,\"bucket_bytes\":1500" GROW, LOST + 1, 1, 4);

    assert_true(world_until(world, all_run_step_one));
    return world;
}

static bool run_from(struct world *world, void (*begin)(struct world *world), uint64_t from)
{
    return run_world(world, begin, from, from == UINT64_MAX ? from : from + 1);
}

/* One run for every n-th of so many allocations. */
static void fail_each(bool (*run_one)(uint64_t from), uint64_t total, uint64_t n, const char *when)
{
    unsigned failed = 0;

    for (uint64_t from = 0; from < total; from += n) {
        failed += run_one(from) ? 0 : 1;
    }
    (void)printf("# %llu allocations %s\n", (unsigned long long)total, when);
    assert_int_equal(failed, 0);
}

static bool run_growing(uint64_t from)
{
    return run_from(three_nodes(), lose_and_join, from);
}

static void test_one_fails_in_growth(void **state)
{
    (void)state;
    assert_true(run_growing(UINT64_MAX));
    newcomer = LOST;
    fail_each(run_growing, allocations, GROWING_STRIDE, "while a node is lost and joins again");
    newcomer = UINT_MAX;
}

/* ------------------------------------------------------------------ a node is lost, and another
 * one's daemon restarts */

/* The view in its store is without the lost node. */
static void lose_and_restart(struct world *world)
{
    lose_node(world, LOST);
    if (world_until(world, smaller_or_failed) && !some_rank_failed(world)) {
        node_crash(world, RESTARTED);
        start(node_start, world, RESTARTED);
    }
}

static bool run_restarting(uint64_t from)
{
    return run_from(three_nodes(), lose_and_restart, from);
}

static void test_one_fails_in_restart(void **state)
{
    (void)state;
    assert_true(run_restarting(UINT64_MAX));
    fail_each(
        run_restarting, allocations, GROWING_STRIDE, "while a node is lost and another restarts");
}

static uint64_t answered; /* allocations until the join was answered */

static bool is_back(const struct world *world)
{
    return world->trainer[RESTARTED].state == TRAINER_FORMING &&
           world->trainer[RESTARTED].joined == JOINED_MAPPED;
}

static bool is_answered(const struct world *world)
{
    struct job_info info;

    return !check_find(world, 0, 0, &info) || strcmp(info.state, "active") != 0;
}

static void await_answer(struct world *world)
{
    (void)world_until(world, is_answered);
    answered = allocations;
}

static bool run_joining(uint64_t from)
{
    struct world *world = three_nodes();

    lose_and_restart(world);
    assert_true(world_until(world, is_back));
    return run_from(world, await_answer, from);
}

/* The other node has no memory for what it sends the one that is back. Its part of the job ends
 * while it handles the join, and must not go on to propose a view. */
static void test_one_fails_of_a_join(void **state)
{
    (void)state;
    assert_true(run_joining(UINT64_MAX));
    fail_each(run_joining, answered, 1, "from a join to its answer");
}

/* A peer for which there is no memory is not there, and can be added later. */
static void test_one_fails_of_a_peer(void **state)
{
    struct world *world = world_create(&scenario);
    struct core *core = world->node[0].core;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;
    unsigned failed = 0;

    (void)state;
    for (; status != ADTOPK_OK; failed++) {
        const uint32_t peers = core_peer_count(core);
        fail_from = allocations + failed;
        fail_to = fail_from + 1;
        status = core_add_peer(core, SIM_MAX_NODES, world->now_us);
        fail_to = 0;
        assert_true(status == ADTOPK_OK || status == ADTOPK_ERR_MEMORY);
        assert_int_equal(core_peer_count(core), peers + (status == ADTOPK_OK ? 1 : 0));
    }
    assert_true(failed > 2);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_outage),
        cmocka_unit_test(test_one_fails_of_ranks),
        cmocka_unit_test(test_one_fails_of_carried),
        cmocka_unit_test(test_one_fails_in_growth),
        cmocka_unit_test(test_one_fails_in_restart),
        cmocka_unit_test(test_one_fails_of_a_join),
        cmocka_unit_test(test_one_fails_of_a_peer),
    };

    fail_from = fail_to = UINT64_MAX;
    cmocka_set_test_filter(getenv("ADTOPK_SIM_TEST"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
