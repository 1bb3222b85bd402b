/*
 * Checkpoints under faults. Nodes crash and links lose packets while a job trains, and while it is
 * being saved. What the nodes save and what was applied is all that was pushed. Then every machine
 * is gone. Another run of as many ranks loads it, under faults too, and trains on: nothing is lost.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/checkpoint_content.h"
#include "proto/codec.h"
#include "tests/sim/suites.h"
#include "tests/sim/world.h"

#define NODES 3u
#define STEPS 5u
#define SAVED 3u /* steps before the checkpoint */
#define TURNS 100000u
#define EXACT "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\""

/* A tensor on one node. */
struct saved_tensor {
    uint8_t bytes[CORE_KEEP_SIZE];
    size_t size;
    uint64_t residuals;
    float *element; /* of all residuals, one after the other */
};

struct saved_node {
    uint8_t job[CORE_KEEP_SIZE];
    size_t size;
    struct saved_tensor tensor[SIM_MAX_TENSORS];
};

struct saved {
    struct saved_node node[NODES];
    unsigned tensors;
    uint64_t numel[SIM_MAX_TENSORS];
};

static struct scenario saving_scenario(uint64_t seed, const char *policy)
{
    return (struct scenario){.seed = seed,
        .nodes = NODES,
        .ranks_per_node = 2,
        .steps = STEPS,
        .policy = policy,
        .loss = 0.05,
        .duplicate = 0.05,
        .delay_us = 300,
        .crash_every_us = 8000,
        .max_crashes = 12,
        .away_us = 3000,
        .cut_every_us = 9000,
        .hostile = SIM_MAX_NODES,
        .max_us = 60000000};
}

/* Daemons are killed, and links cut: each time is followed by others. */
static void saving_faults(struct world *world)
{
    const struct scenario *scenario = &world->scenario;

    for (unsigned n = 0; n < NODES; n++) {
        world_at(world, scenario->crash_every_us * (n + 1),
            (struct sim_event){.type = SIM_CRASH, .node = n});
    }
    world_at(world, scenario->cut_every_us, (struct sim_event){.type = SIM_CUT});
}

/* Ranks stop before this step. */
static struct world *saving_world(const struct scenario *scenario, uint64_t step)
{
    struct world *world = world_create(scenario);

    for (unsigned i = 0; i < world->trainers; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = step;
        world->trainer[i].hold_pushes = 0;
    }
    return world;
}

static bool saving_held(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->state != TRAINER_RUNNING || trainer->step != trainer->hold_step) {
            return false;
        }
    }
    return true;
}

static struct trainer *first_rank(struct world *world, unsigned node)
{
    return &world->trainer[world->job[0].first + world->job[0].node_first[node]];
}

static enum adtopk_status keep(struct world *world, unsigned node, struct event_keep *piece)
{
    struct event event = {.type = EVENT_RANK_KEEP, .keep = piece};
    struct error err = {.text = ""};
    enum adtopk_status status = trainer_request(first_rank(world, node), &event, &err);

    if (status != ADTOPK_OK && status != ADTOPK_PENDING) {
        fail_msg("node %u: %s", node, err.text);
    }
    return status;
}

static uint64_t residuals_of(const struct saved_tensor *tensor)
{
    Adtopk__CheckpointTensor *message =
        (Adtopk__CheckpointTensor *)codec_unpack(&adtopk__checkpoint_tensor__descriptor,
            tensor->bytes, tensor->size, sizeof(tensor->bytes), NULL);
    uint64_t residuals;

    assert_non_null(message);
    residuals = message->residuals;
    codec_free(&message->base);
    return residuals;
}

/* Lets events happen until every rank is at its step again. */
static void saving_again(struct world *world)
{
    if (!world_turn(world) || !world_until(world, saving_held)) {
        fail_msg("%s", world->violation);
    }
}

/* Asks for a piece until the daemon, or its engine, is not busy. */
static void save_piece(struct world *world, unsigned node, struct event_keep *piece)
{
    for (unsigned turns = 0; keep(world, node, piece) != ADTOPK_OK; turns++) {
        assert_true(turns < TURNS);
        saving_again(world);
    }
}

static void save_tensor(struct world *world, unsigned node, unsigned t, struct saved *saved)
{
    struct saved_tensor *tensor = &saved->node[node].tensor[t];
    struct event_keep piece = {.section = KEEP_TENSOR, .tensor = t, .bytes = tensor->bytes};

    save_piece(world, node, &piece);
    tensor->size = piece.size;
    tensor->residuals = residuals_of(tensor);
    tensor->element = sim_alloc(tensor->residuals * CORE_KEEP_SIZE);
    for (uint32_t r = 0; r < tensor->residuals; r++) {
        piece = (struct event_keep){.section = KEEP_ELEMENTS,
            .tensor = t,
            .residual = r,
            .count = (uint32_t)saved->numel[t],
            .bytes = (uint8_t *)(tensor->element + r * saved->numel[t])};
        save_piece(world, node, &piece);
        assert_int_equal(piece.size, saved->numel[t] * sizeof(float));
    }
}

static void save_node(struct world *world, unsigned node, struct saved *saved)
{
    struct event_keep piece = {.section = KEEP_JOB, .bytes = saved->node[node].job};

    save_piece(world, node, &piece);
    saved->node[node].size = piece.size;
    for (unsigned t = 0; t < saved->tensors; t++) {
        save_tensor(world, node, t, saved);
    }
}

/* Reads every node, in the order of a random start, with time between the nodes. */
static void save(struct world *world, struct saved *saved)
{
    *saved = (struct saved){.tensors = world->job[0].tensors};
    (void)memcpy(saved->numel, world->job[0].numel, sizeof(saved->numel));
    for (unsigned n = 0; n < NODES; n++) {
        for (unsigned i = 0; i < 1 + world_random(world, 40); i++) {
            saving_again(world);
        }
        save_node(world, n, saved);
    }
}

/* What was saved and what was applied is what was pushed. */
static void check_saved(const struct world *world, const struct saved *saved, double *all)
{
    uint64_t offset = 0;

    for (unsigned t = 0; t < saved->tensors; t++) {
        for (uint64_t i = 0; i < saved->numel[t]; i++) {
            double pushed = 0, left = 0;
            for (uint64_t s = 0; s < SAVED; s++) {
                for (uint32_t r = 0; r < world->trainers; r++) {
                    pushed += (double)trainer_gradient(world, 0, s, r, t, i);
                }
            }
            for (unsigned n = 0; n < NODES; n++) {
                for (uint64_t r = 0; r < saved->node[n].tensor[t].residuals; r++) {
                    left += (double)saved->node[n].tensor[t].element[r * saved->numel[t] + i];
                }
            }
            assert_true(pushed == left + world->job[0].applied[offset + i]);
            all[offset + i] = left;
        }
        offset += saved->numel[t];
    }
}

/* ------------------------------------------------------------------ loading */

static void load_piece(struct world *world, unsigned node, struct event_keep piece)
{
    piece.writes = true;
    save_piece(world, node, &piece);
}

static void load_tensor(struct world *world, unsigned node, unsigned t, const struct saved *saved)
{
    const struct saved_tensor *tensor = &saved->node[node].tensor[t];

    for (uint32_t r = 0; r < tensor->residuals; r++) {
        load_piece(world, node,
            (struct event_keep){.section = KEEP_ELEMENTS,
                .tensor = t,
                .residual = r,
                .count = (uint32_t)saved->numel[t],
                .bytes = (uint8_t *)(tensor->element + r * saved->numel[t]),
                .size = saved->numel[t] * sizeof(float)});
    }
    load_piece(world, node,
        (struct event_keep){.section = KEEP_TENSOR,
            .tensor = t,
            .bytes = (uint8_t *)(uintptr_t)tensor->bytes,
            .size = tensor->size});
}

/* Writes one node, with time between the tensors. A piece may come again. */
static void load_node(struct world *world, unsigned node, const struct saved *saved)
{
    const struct saved_node *from = &saved->node[node];
    bool *torn = &world->node[node].memory[0].torn; /* a record comes behind its elements */

    *torn = true;
    load_piece(world, node,
        (struct event_keep){
            .section = KEEP_JOB, .bytes = (uint8_t *)(uintptr_t)from->job, .size = from->size});
    for (unsigned t = 0; t < saved->tensors; t++) {
        saving_again(world);
        load_tensor(world, node, t, saved);
    }
    *torn = false; /* from here on every event checks the ledgers that were loaded */
    load_piece(world, node, (struct event_keep){.section = KEEP_END});
}

/* Tells the checks what there is beside what the ranks push. */
static void expect_loaded(struct world *world, const struct saved *saved, double *all)
{
    struct sim_loaded *loaded = sim_alloc(sizeof(*loaded));

    loaded->residual = all;
    for (unsigned n = 0; n < NODES; n++) {
        float *before =
            sim_alloc(world->job[0].elements * world->job[0].node_ranks[n] * sizeof(float));
        world->node[n].memory[0].before = before;
        for (unsigned t = 0; t < saved->tensors; t++) {
            const struct saved_tensor *tensor = &saved->node[n].tensor[t];
            Adtopk__CheckpointTensor *message =
                (Adtopk__CheckpointTensor *)codec_unpack(&adtopk__checkpoint_tensor__descriptor,
                    tensor->bytes, tensor->size, sizeof(tensor->bytes), NULL);
            assert_non_null(message);
            (void)memcpy(loaded->input[n][t], message->input, sizeof(loaded->input[n][t]));
            loaded->turn[t] = message->turn;
            codec_free(&message->base);
            (void)memcpy(
                before, tensor->element, tensor->residuals * saved->numel[t] * sizeof(float));
            before += world->job[0].node_ranks[n] * saved->numel[t];
        }
    }
    world->job[0].loaded = loaded;
}

static bool saving_is_far(const struct world *world)
{
    return world->node[0].far || world->node[1].far || world->node[2].far;
}

/* Returns the crashes while it was loaded. With a far engine there are none: what it has yet to
 * load goes with its daemon. */
static uint64_t load_and_train(
    const struct scenario *scenario, const struct saved *saved, double *all)
{
    uint64_t crashes;
    struct world *world = saving_world(scenario, 0);

    if (!saving_is_far(world)) {
        saving_faults(world);
    }
    if (!world_until(world, saving_held)) {
        fail_msg("%s", world->violation);
    }
    expect_loaded(world, saved, all);
    for (unsigned n = 0; n < NODES; n++) {
        load_node(world, n, saved);
    }
    crashes = world->stats.crashes;
    if (saving_is_far(world)) {
        saving_faults(world);
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        world->trainer[i].hold = HOLD_NEVER;
        world_wake(world, &world->trainer[i], 1);
    }
    if (!world_run(world)) {
        fail_msg("%s", world->violation);
    }
    free(world->job[0].loaded);
    world_destroy(world);
    return crashes;
}

/* Returns the crashes before it was saved and loaded. */
static uint64_t save_and_load(uint64_t seed, const char *policy)
{
    uint64_t crashes;
    struct scenario scenario = saving_scenario(seed, policy);
    struct world *world = saving_world(&scenario, SAVED);
    struct saved *saved = sim_alloc(sizeof(*saved));
    double *all = sim_alloc(world->job[0].elements * sizeof(*all));

    saving_faults(world);
    if (!world_until(world, saving_held)) {
        fail_msg("%s", world->violation);
    }
    save(world, saved);
    check_saved(world, saved, all);
    crashes = world->stats.crashes;
    world_destroy(world); /* every machine is gone */
    scenario.seed = seed + 999;
    crashes += load_and_train(&scenario, saved, all);
    for (unsigned n = 0; n < NODES; n++) {
        for (unsigned t = 0; t < saved->tensors; t++) {
            free(saved->node[n].tensor[t].element);
        }
    }
    free(saved);
    free(all);
    return crashes;
}

static void test_saved_and_loaded(void **state)
{
    uint64_t crashes = 0;

    (void)state;
    for (uint64_t seed = 2; seed <= 30;
         seed += seed % 3 == 2 ? 1 : 2) { /* with far engines, or none */
        crashes += save_and_load(seed, EXACT "}");
    }
    assert_true(crashes >= 20);
}

static void test_saved_of_ranks(void **state)
{
    uint64_t crashes = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed += 3) {
        crashes += save_and_load(seed, EXACT ",\"scope\":\"rank\",\"sparsifier\":\"topk\"}");
    }
    assert_true(crashes >= 20);
}

const struct CMUnitTest suite_saving[] = {
    cmocka_unit_test(test_saved_and_loaded),
    cmocka_unit_test(test_saved_of_ranks),
    {.name = NULL},
};
