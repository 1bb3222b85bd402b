/*
 * The places of what a plan keeps: lists of selections, rests of rounded values, velocities. They
 * are of all batches of tensors together, in two parts of the store that successive plans use in
 * turn.
 */
#include "daemon/compute/layout_plan.h"

#include <stdlib.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/moving.h"
#include "daemon/engine/shards.h"
#include "daemon/job/actions.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

#define ALIGNED_FLOATS (LAYOUT_ALIGNMENT / sizeof(float))
/* Limit of the rests of dense sums beyond a twelfth of the residuals. Together that is within 3% of
 * gradients, residuals and updates. */
#define CORE_REST_BYTES (UINT64_C(32) << 20)

static bool has_momentum(const struct plan_tensor *planned)
{
    return planned->policy.params.momentum > 0;
}

/* Points to a plan's record of one residual, at `offset` in the part. Returns its end. */
static uint64_t lay_selection(
    const struct plan_tensor *planned, uint8_t *part, uint64_t offset, struct selection *selection)
{
    uint64_t count = planned->count;
    uint64_t position = offset + sizeof(struct store_selection);
    uint64_t value = position + layout_align(count * sizeof(uint32_t));

    if (part != NULL) {
        *selection = (struct selection){.header = (struct store_selection *)(void *)(part + offset),
            .list = {.position = (uint32_t *)(void *)(part + position),
                .value = (float *)(void *)(part + value),
                .capacity = count}};
    }
    return value + layout_align(count * sizeof(float));
}

/* How many of the sums that this node rounds may come back. A share up to twice as long as an even
 * one has room. A longer one is sent unrounded. */
static uint64_t sum_rests_capacity(
    const struct job *job, uint64_t numel, const struct plan_tensor *planned)
{
    uint64_t share = 2 * planned->count * plan_residuals(job, planned) + ALIGNED_FLOATS;
    bool rounds = !planned->dense && !planned->known &&
                  planned->policy.values != PAYLOAD_VALUE_F32 &&
                  planned->policy.sparse_collective->traits.rerounds;

    return !rounds ? 0 : share < numel ? share : numel;
}

/* As above, with this node's share of an update's rests. An update has at most as many entries as
 * all contributions, and of these this node has a node's share. */
static uint64_t rests_capacity(
    const struct job *job, uint64_t numel, const struct plan_tensor *planned)
{
    uint64_t all =
        sum_rests_capacity(job, numel, planned) + plan_contribution_count(job, planned, numel) + 1;

    return planned->dense || !planned->narrow ? 0 : all < numel ? all : numel;
}

/* Points to a list of entries that come back, if it has room for any. */
static uint64_t lay_rest_list(
    uint64_t capacity, uint8_t *part, uint64_t offset, struct rest_list *rests)
{
    uint64_t size = layout_align(capacity * sizeof(float));

    if (capacity == 0) {
        return offset;
    }
    if (part != NULL) {
        uint8_t *lists = part + offset + sizeof(struct store_rest_list);
        *rests = (struct rest_list){.header = (void *)(part + offset),
            .list = {.position = (void *)lists,
                .value = (void *)(lists + size),
                .capacity = capacity},
            .before = (void *)(lists + 2 * size)};
    }
    return offset + sizeof(struct store_rest_list) + 3 * size;
}

/* How many sums of a dense tensor this node rounds at most. */
static uint64_t rests_of(const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct plan_tensor *planned = &plan->tensor[t];
    bool rounds = planned->dense && planned->policy.dense_values != PAYLOAD_VALUE_F32 &&
                  planned->policy.dense_collective->traits.rests != NULL;

    return rounds
               ? planned->policy.dense_collective->traits.rests(plan->nodes, job->tensor[t].numel)
               : 0;
}

/* Gives a bucket's tensors room for the rests of their sums, one after the other, so that the room
 * is also the bucket's. Gives them none if that takes more than `most` places together. */
static uint64_t lay_bucket_rests(const struct job *job, struct plan *plan,
    const struct round *round, uint64_t place, uint64_t most)
{
    uint64_t room = 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        room += rests_of(job, plan, round->tensor[i]);
    }
    for (unsigned i = 0; room <= most - place && i < round->tensors; i++) {
        struct plan_tensor *planned = &plan->tensor[round->tensor[i]];
        planned->rest_place = place;
        planned->rest_room = rests_of(job, plan, round->tensor[i]);
        place += planned->rest_room;
    }
    return place;
}

/* The rests come last. A store that was made for another number of nodes then has everything else
 * in its place. */
static uint64_t lay_rests(const struct job *job, struct plan *plan, uint8_t *part, uint64_t offset)
{
    uint64_t elements = 0, place = 0, most;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        elements += job->tensor[t].numel;
    }
    most = (CORE_REST_BYTES + elements / 3) / sizeof(int16_t);
    for (uint32_t b = 0; b < plan->buckets; b++) {
        place = lay_bucket_rests(job, plan, &plan->round[b], place, most);
    }
    plan->rests = place;
    plan->rest = part != NULL && place > 0 ? (int16_t *)(void *)(part + offset) : NULL;
    return offset + layout_align(place * sizeof(int16_t));
}

/* Lays out all of a plan. part NULL: computes only the size. */
static uint64_t lay_plan(const struct job *job, struct plan *plan, uint8_t *part)
{
    uint64_t offset = 0;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        struct plan_tensor *planned = &plan->tensor[t];
        for (unsigned r = 0; !planned->dense && r < plan_residuals(job, planned); r++) {
            offset = lay_selection(planned, part, offset, &planned->selection[r]);
        }
        offset = lay_rest_list(sum_rests_capacity(job, job->tensor[t].numel, planned), part, offset,
            &planned->sum_rests);
        offset = lay_rest_list(rests_capacity(job, job->tensor[t].numel, planned), part, offset,
            &planned->update_rests);
        if (!planned->dense && part != NULL) {
            const struct sparse *list = &planned->selection[0].list;
            planned->sent.position =
                planned->positions != NULL ? planned->positions : list->position;
            planned->sent.value = planned->values != NULL ? planned->values : list->value;
        }
    }
    return lay_rests(job, plan, part, offset);
}

static unsigned velocities_of(const struct job *job, const struct plan_tensor *planned)
{
    return has_momentum(planned) ? plan_residuals(job, planned) : 0;
}

static uint64_t velocities_size(const struct job *job, const struct plan *plan, uint32_t t)
{
    return velocities_of(job, &plan->tensor[t]) *
           layout_pad(job, job->tensor[t].numel * sizeof(float));
}

/* Lays out the velocities of a tensor at `offset` of the part. */
static void lay_velocities_of(
    const struct job *job, const struct plan *plan, uint32_t t, uint8_t *part, uint64_t offset)
{
    const struct plan_tensor *planned = &plan->tensor[t];

    for (unsigned r = 0; part != NULL && r < velocities_of(job, planned); r++) {
        planned->selection[r].momentum = (float *)(void *)(part + offset);
        offset += layout_pad(job, job->tensor[t].numel * sizeof(float));
    }
}

/* Lays out the velocities of a plan, which is for all batches: those of a shard lie together. part
 * NULL: tells only where the shards end. */
static void lay_velocities(struct job *job, const struct plan *plan, uint8_t *part)
{
    struct engine_memory *arenas = &job->layout.arenas;
    uint64_t offset = 0;
    unsigned shard = 0;

    do {
        for (uint32_t t = 0; t < plan->tensors; t++) {
            if (shards_of(arenas, t) == shard) {
                lay_velocities_of(job, plan, t, part, offset);
                offset += velocities_size(job, plan, t);
            }
        }
        shards_cut(arenas, plan->velocity_part, shard, offset);
    } while (++shard < arenas->shards);
}

/* The parts that a plan uses after this many switches. */
static unsigned plan_part(uint32_t switches)
{
    return STORE_PLAN + switches % 2;
}

static unsigned velocity_part(uint32_t switches)
{
    return STORE_VELOCITIES + switches % 2;
}

void layout_measure(const struct job *job, struct plan *plan)
{
    plan->store_bytes = lay_plan(job, plan, NULL);
    plan->velocity_bytes = 0;
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan->velocity_bytes += velocities_size(job, plan, t);
    }
}

/* Opens a part of what the plan keeps. *existing: it was there already. */
static uint8_t *open_kept(
    struct job *job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    uint8_t *bytes = part >= STORE_RESIDUALS ? moving_part(job, part, size, false, existing, err)
                                             : memory->store(memory->context, job->number, part,
                                                   size, false, existing, err);

    if (bytes != NULL) {
        job->layout.arenas.store[part] = bytes;
    }
    return bytes;
}

/* A plan's lists may be new unless they say which entries have left the residuals. */
static enum adtopk_status open_lists(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    bool existing = false;

    if (plan->store_bytes == 0) {
        return ADTOPK_OK;
    }
    plan->store_part = plan_part(switches);
    plan->store = open_kept(job, plan->store_part, plan->store_bytes, &existing, err);
    if (plan->store == NULL) {
        return err->code;
    }
    for (uint32_t t = 0; !existing && switches == job->store->policies && t < job->tensors; t++) {
        if (job->tensor[t].store->stage == STAGE_SETTLING) {
            return error_set(err, ADTOPK_ERR_LOST,
                "what job '%s' was taking out of its residuals is gone", job->key.name);
        }
    }
    (void)lay_plan(job, plan, plan->store);
    return ADTOPK_OK;
}

/* Velocities may be new until the job's residuals are there. */
static enum adtopk_status open_velocities(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    bool existing = false;
    uint8_t *bytes;

    if (plan->velocity_bytes == 0) {
        return ADTOPK_OK;
    }
    plan->velocity_part = velocity_part(switches);
    lay_velocities(job, plan, NULL);
    bytes = open_kept(job, plan->velocity_part, plan->velocity_bytes, &existing, err);
    if (bytes == NULL) {
        return err->code;
    }
    if (!existing && switches == job->store->policies && job->store->begun != 0 &&
        !plan_is_far(job, plan)) {
        return error_set(
            err, ADTOPK_ERR_LOST, "the velocities of job '%s' are gone", job->key.name);
    }
    lay_velocities(job, plan, bytes);
    return ADTOPK_OK;
}

enum adtopk_status layout_kept(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err)
{
    enum adtopk_status status;

    if (plan->nodes != plan_nodes(job)) { /* the nodes have changed since it was made */
        plan->nodes = plan_nodes(job);
        layout_measure(job, plan);
    }
    status = open_lists(job, plan, switches, err);
    return status == ADTOPK_OK ? open_velocities(job, plan, switches, err) : status;
}

void layout_drop_kept(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    memory->drop_store(memory->context, job->number, plan_part(job->store->policies + 1));
    memory->drop_store(memory->context, job->number, velocity_part(job->store->policies + 1));
}
