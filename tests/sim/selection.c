/*
 * Checks selections value by value. The values that left a node's residuals in a step are computed
 * from memory: residual before + gradients - residual after. Where a tensor's policy is an exact
 * top-k whose collective sends all selected entries, these must be the largest entries, as many as
 * planned. A tensor that no rank of a node pushed keeps its residual, bit for bit, unless the node
 * rounded sums of the others.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/local.h"
#include "tests/host/inside.h"
#include "tests/sim/world.h"

/* The ranks behind a residual: one, or all of the node. */
struct slot {
    unsigned first, ranks;
};

/* Adds what its ranks pushed. */
static void add_gradients_of(const struct world *world, unsigned job, uint64_t step,
    const struct slot *slot, unsigned t, float *sum)
{
    for (unsigned r = slot->first; r < slot->first + slot->ranks; r++) {
        if (trainer_pushes(world, job, step, r, t)) {
            trainer_add_gradient(world, job, step, r, t, sum);
        }
    }
}

/* A node may have been taken in with some of its ranks. */
static struct slot slot_of(const struct world *world, unsigned job, uint64_t step, unsigned node,
    uint32_t slot, bool by_rank)
{
    const struct sim_job *about = &world->job[job];
    unsigned rank = about->node_first[node];

    if (!by_rank) {
        return (struct slot){rank, about->node_ranks[node]};
    }
    for (uint32_t s = 0; !trainer_takes_part(world, job, step, rank) || s++ < slot;) {
        rank++;
    }
    return (struct slot){rank, 1};
}

/* The plan's number of entries is that of every step. */
static bool is_steady(const char *policy)
{
    return strstr(policy, "\"warmup_epochs\":0") != NULL &&
           strstr(policy, "\"adaptive\":true") == NULL;
}

/* The collective sends every selected entry, and rounds no sum. */
static bool sends_all(const struct tensor_info *info)
{
    return strcmp(info->collective, "allgather") == 0 ||
           strcmp(info->collective, "hierarchical") == 0;
}

static bool is_exact(const struct tensor_info *info)
{
    return strcmp(info->sparsifier, "topk") == 0 && sends_all(info) &&
           (strcmp(info->values, "f32") == 0 || strcmp(info->values, "bf16") == 0);
}

/* The magnitude that bf16 rounds to 0. Whether such an element was sent cannot be seen: it stays in
 * the residual, unless those of several ranks cancel out. */
#define BF16_VANISHES 0x1p-134f

/* `had` is residual + gradient, `left` the residual after the step. */
static void check_largest(struct world *world, const struct tensor_info *info, const float *had,
    const float *left, const char *where)
{
    const float vanishes = strcmp(info->values, "f32") == 0 ? 0 : BF16_VANISHES;
    float least_sent = INFINITY, most_kept = 0;
    uint64_t sent = 0, visible = 0;

    for (uint64_t i = 0; i < info->numel; i++) {
        bool was_sent = had[i] != left[i], is_visible = fabsf(had[i]) > vanishes;
        visible += is_visible ? 1 : 0;
        sent += is_visible && was_sent ? 1 : 0;
        if (was_sent) {
            least_sent = fminf(least_sent, fabsf(had[i]));
        } else if (is_visible) {
            most_kept = fmaxf(most_kept, fabsf(had[i]));
        }
        if (was_sent && strcmp(info->values, "f32") == 0 && left[i] != 0) {
            world_violate(world, "%s: %g is left of element %llu, which was sent in f32", where,
                (double)left[i], (unsigned long long)i);
        }
    }
    if (sent != (visible < info->count ? visible : info->count) || least_sent < most_kept) {
        world_violate(world, "%s: %llu of %llu entries sent (planned: %llu), the least %g; kept %g",
            where, (unsigned long long)sent, (unsigned long long)visible,
            (unsigned long long)info->count, (double)least_sent, (double)most_kept);
    }
}

/* One residual after a step; `before` becomes what it is now. */
static void check_slot(struct world *world, unsigned node, unsigned job, uint64_t step,
    const struct tensor_info *info, unsigned t, const struct slot *slot, const float *now,
    float *before)
{
    float *had = sim_alloc(info->numel * sizeof(*had));
    char where[SIM_TEXT];

    (void)memcpy(had, before, info->numel * sizeof(*had));
    add_gradients_of(world, job, step, slot, t, had);
    (void)snprintf(
        where, sizeof(where), "node %u tensor %u step %llu", node, t, (unsigned long long)step);
    check_largest(world, info, had, now, where);
    world->stats.selections++;
    free(had);
}

/* Rests of its updates change elements that a node did not send. */
static bool is_half(const struct tensor_info *info)
{
    return (info->spec.forms & LOCAL_FORM_DENSE16) != 0;
}

static void check_unmoved(struct world *world, unsigned node, uint64_t step,
    const struct tensor_info *info, const float *now, const float *before)
{
    world->stats.unmoved++;
    for (uint64_t i = 0; i < info->numel; i++) {
        if (now[i] != before[i]) {
            world_violate(world, "node %u tensor %s step %llu: nobody pushed, but %g became %g",
                node, info->spec.name, (unsigned long long)step, (double)before[i], (double)now[i]);
            return;
        }
    }
}

/* Nothing left: what is finite of the gradients came to the residual. */
static void check_kept(struct world *world, unsigned node, unsigned job, uint64_t step,
    const struct tensor_info *info, unsigned t, const struct slot *slot, const float *now,
    const float *before)
{
    float *sum = sim_alloc(info->numel * sizeof(*sum));
    uint64_t i = 0;

    add_gradients_of(world, job, step, slot, t, sum);
    while (i < info->numel && now[i] == before[i] + (isfinite(sum[i]) ? sum[i] : 0)) {
        i++;
    }
    if (i < info->numel) {
        world_violate(world, "node %u tensor %s step %llu: %g and %g became %g, and all was NaN",
            node, info->spec.name, (unsigned long long)step, (double)before[i], (double)sum[i],
            (double)now[i]);
    }
    free(sum);
}

/* Whether the tensor's residuals must be what they were. */
static bool must_stay(const struct world *world, unsigned node, unsigned job, uint64_t step,
    const struct tensor_info *info, unsigned t)
{
    const bool rounds = (strcmp(info->values, "f32") != 0 && !sends_all(info)) || is_half(info);

    return rounds ? !trainer_any_pushes(world, job, step, t)
                  : !trainer_node_pushes(world, job, step, node, t);
}

/* What of a step can be checked on a node. */
struct checked {
    bool selection, rest, kept;
};

/* All residuals of a tensor, at `before`; returns where those of the next tensor are. */
static float *check_tensor(struct world *world, unsigned node, unsigned job, uint64_t id,
    uint64_t step, struct checked checked, const struct tensor_info *info, unsigned t,
    float *before)
{
    const struct sim_job *about = &world->job[job];
    const struct core *core = world->node[node].core;
    bool by_rank = strcmp(info->scope, "rank") == 0;
    float *now = sim_alloc(info->numel * sizeof(*now));

    for (uint32_t s = 0; inside_residual_copy(core, id, t, s, now); s++) {
        struct slot slot = slot_of(world, job, step, node, s, by_rank);
        if (checked.rest && must_stay(world, node, job, step, info, t)) {
            check_unmoved(world, node, step, info, now, before + s * info->numel);
        } else if (checked.kept && trainer_spoils(world, job, step, t)) {
            check_kept(world, node, job, step, info, t, &slot, now, before + s * info->numel);
        } else if (checked.selection && is_exact(info) && !is_half(info)) {
            check_slot(world, node, job, step, info, t, &slot, now, before + s * info->numel);
        }
        (void)memcpy(before + s * info->numel, now, info->numel * sizeof(*now));
    }
    free(now);
    return before + about->node_ranks[node] * info->numel;
}

void selection_check(struct world *world, unsigned node, unsigned job, uint64_t step,
    enum adtopk_status status, bool follows)
{
    const struct sim_job *about = &world->job[job];
    struct node_job *memory = &world->node[node].memory[job];
    struct tensor_info tensor;
    struct job_info info;
    struct checked checked;
    float *before;

    if (!check_find(world, node, job, &info)) {
        return;
    }
    if (memory->before == NULL) {
        memory->before =
            sim_alloc(about->elements * about->node_ranks[node] * sizeof(*memory->before));
    }
    checked.rest = follows && (info.policy.version == 0 || info.policy.step < step);
    checked.kept = follows && info.policy.version == 0 && status == ADTOPK_OK &&
                   !world->scenario.changed && !world->rounded;
    checked.selection = checked.kept && is_steady(info.policy.text);
    before = memory->before;
    for (unsigned t = 0; core_tensor_info(world->node[node].core, info.id, t, &tensor); t++) {
        before = check_tensor(world, node, job, info.id, step, checked, &tensor, t, before);
    }
}
