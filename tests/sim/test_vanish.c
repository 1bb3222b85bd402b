/*
 * A node vanishes at every message of every collective. Of its bulk packets, one per message, only
 * the first m leave, for m from 0 to all; then the node is gone. A node that comes back finds every
 * round retried exactly. If it does not come back, the others are told. Either way nothing hangs
 * and no mass is lost: the invariants hold after every event, and at the end element by element.
 * In one test many nodes vanish, and the others go on without them.
 */
#include <stdio.h>
#include <string.h>

#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define STRIDE CASES_OF(1u, 5u, 97u) /* other messages for every collective: see first_of() */

#define SPARSE(name)                                                                               \
    POLICY_WITH(",\"sparsifier\":\"topk\",\"bucket_bytes\":2000,\"sparse_collective\":\"" name "\"")
/* Enough entries for several segments. */
#define SEGMENTED                                                                                  \
    "{\"reduce\":\"sum\",\"density\":0.4,\"values\":\"f32\",\"sparsifier\":\"topk\","              \
    "\"bucket_bytes\":4000,\"sparse_collective\":\"allgather\",\"join_timeout\":3,"                \
    "\"push_timeout\":3,\"wait_limit\":2}"
#define DENSE(name)                                                                                \
    POLICY_WITH(",\"sparsifier\":\"dense\",\"bucket_bytes\":2000,\"dense_collective\":\"" name "\"")

static const char *const policies[] = {
    SPARSE("allgather"),
    SEGMENTED,
    SPARSE("balanced"),
    SPARSE("oktopk"),
    SPARSE("hierarchical"),
    SPARSE("exclusive"),
    SPARSE("nccl-allgather"),
    SPARSE("nccl-balanced"),
    SPARSE("nccl-exclusive"),
    DENSE("allreduce"),
    DENSE("one-shot"),
    DENSE("pairwise"),
    DENSE("pairwise\",\"dense_values\":\"bf16"),
    DENSE("ring"),
    DENSE("ring\",\"dense_values\":\"bf16"),
    DENSE("halving-doubling"),
    DENSE("nccl-allreduce"),
};
#define POLICIES (sizeof(policies) / sizeof(policies[0]))

static struct world *new_world(const char *policy, unsigned nodes)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = 199; /* long segments of dense vectors: see node_start() */
    scenario.nodes = nodes;
    scenario.ranks_per_node = 1;
    scenario.jobs = 1;
    scenario.steps = 2;
    scenario.operations = 1;
    scenario.whole = true;
    return world_create(&scenario);
}

static uint64_t packets_of_a_run(const char *policy, unsigned nodes, unsigned victim)
{
    struct world *world = new_world(policy, nodes);
    uint64_t packets;

    assert_true(world_run(world));
    packets = world->node[victim].bulk_packets;
    assert_true(packets > 0);
    world_destroy(world);
    return packets;
}

/* Only the first `last` packets of the victim leave, and it crashes with the next. False: it never
 * sent that many. */
static bool vanish(struct world *world, unsigned victim, uint64_t last)
{
    bool mute;

    world->node[victim].bulk_last = last;
    mute = world_until(world, mute_or_over) && some_node_is_mute(world);

    world->node[victim].bulk_last = UINT64_MAX;
    if (mute) {
        node_crash(world, victim);
    }
    return mute;
}

static void comes_back(const char *policy, unsigned nodes, unsigned victim, uint64_t last)
{
    struct world *world = new_world(policy, nodes);

    if (vanish(world, victim, last)) {
        node_start(world, victim);
        /* Its rank does not come back when it has all it wants: what is still under way is lost. */
        world->job[0].may_fail = world->trainer[victim].state >= TRAINER_LEAVING;
    }
    if (!world_run(world)) {
        (void)printf("# %u nodes, node %u after %llu packets: %s (%s)\n", nodes, victim,
            (unsigned long long)last, world->violation, policy);
    }
    assert_false(world->violated);
    world_destroy(world);
}

static void stays_away(const char *policy, unsigned nodes, unsigned victim, uint64_t last)
{
    struct world *world = new_world(policy, nodes);
    char name[16];

    (void)snprintf(name, sizeof(name), "node %u", victim);
    world->job[0].may_fail = true;
    if (vanish(world, victim, last)) {
        world->trainer[victim].lost = true;
        world->trainer[victim].state = TRAINER_FAILED;
    }
    assert_true(world_run(world));
    for (unsigned i = 0; i < nodes; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (!trainer->lost && trainer->state == TRAINER_FAILED) {
            assert_non_null(strstr(trainer->error.text, name));
        }
    }
    world_destroy(world);
}

/* Where a stride begins, so that those of several collectives fall on other messages. */
static uint64_t first_of(size_t policy, unsigned nodes)
{
    return (policy * 5 + nodes) % STRIDE;
}

static void at_every_message(unsigned nodes,
    void (*try_it)(const char *policy, unsigned nodes, unsigned victim, uint64_t last))
{
    for (size_t p = 0; p < POLICIES; p++) {
        unsigned victim = (unsigned)p % nodes;
        uint64_t packets = packets_of_a_run(policies[p], nodes, victim);
        for (uint64_t last = first_of(p, nodes); last < packets; last += STRIDE) {
            try_it(policies[p], nodes, victim, last);
        }
    }
}

static void test_comes_back(void **state)
{
    (void)state;
    at_every_message(2, comes_back);
    at_every_message(3, comes_back);
    at_every_message(5, comes_back);
}

static void test_stays_away(void **state)
{
    (void)state;
    at_every_message(2, stays_away);
    at_every_message(3, stays_away);
}

#define SHRINKING                                                                                  \
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"allreduce\","             \
    "\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"wait_limit\":60}"

/* More of 24 nodes vanish within a moment than a node has room for promised views. They are noticed
 * one after the other, and left out together. */
static void try_many(uint64_t apart_us)
{
    struct world *world = new_world(SHRINKING, 24);

    assert_true(world_until(world, all_run_step_one));
    for (unsigned i = 0; i < 11; i++) {
        lose_node(world, 23 - i);
        until_us = world->now_us + apart_us;
        assert_true(world_until(world, waited));
    }
    assert_true(world_run(world));
    for (unsigned i = 0; i < world->trainers; i++) {
        assert_true(world->trainer[i].lost || world->trainer[i].state == TRAINER_DONE);
    }
    world_destroy(world);
}

static void test_many_vanish(void **state)
{
    (void)state;
    try_many(20000);
    if (!SANITIZED) {
        try_many(0);
        try_many(500000);
    }
}

const struct CMUnitTest suite_vanish[] = {
    cmocka_unit_test(test_comes_back),
    cmocka_unit_test(test_stays_away),
    cmocka_unit_test(test_many_vanish),
    {0},
};
