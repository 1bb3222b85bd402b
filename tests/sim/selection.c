/*
 * Selections value by value. What a step took out of a node's residuals is computed from memory:
 * residual before + gradients - residual after. Where a tensor's policy is an exact top-k whose
 * collective carries all that was selected, that must be the largest entries, as many as planned.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

static float gradient_of(
    const struct world *world, unsigned job, uint64_t step, uint32_t rank, unsigned t, uint64_t i)
{
    return trainer_pushes(world, job, step, rank, t)
               ? trainer_gradient(world, job, step, rank, t, i)
               : 0;
}

/* The ranks behind a residual: one, or all of the node. */
struct slot {
    unsigned first, ranks;
};

static struct slot slot_of(const struct sim_job *job, unsigned node, uint32_t slot, bool by_rank)
{
    return by_rank ? (struct slot){job->node_first[node] + slot, 1}
                   : (struct slot){job->node_first[node], job->node_ranks[node]};
}

/* The plan's number of entries is that of every step. */
static bool is_steady(const char *policy)
{
    return strstr(policy, "\"warmup_epochs\":0") != NULL &&
           strstr(policy, "\"adaptive\":true") == NULL;
}

static bool is_exact(const struct tensor_info *info)
{
    return strcmp(info->sparsifier, "topk") == 0 &&
           (strcmp(info->collective, "allgather") == 0 ||
               strcmp(info->collective, "hierarchical") == 0) &&
           strcmp(info->values, "int8") != 0 && strcmp(info->values, "f16") != 0;
}

/* `had` is residual + gradient, `left` what the step left of it. */
static void check_largest(struct world *world, const struct tensor_info *info, const float *had,
    const float *left, const char *where)
{
    float least_sent = INFINITY, most_kept = 0;
    uint64_t sent = 0, nonzero = 0;

    for (uint64_t i = 0; i < info->numel; i++) {
        bool was_sent = had[i] != left[i];
        nonzero += had[i] != 0 ? 1 : 0;
        sent += was_sent ? 1 : 0;
        if (was_sent) {
            least_sent = fminf(least_sent, fabsf(had[i]));
        } else {
            most_kept = fmaxf(most_kept, fabsf(had[i]));
        }
        if (was_sent && strcmp(info->values, "f32") == 0 && left[i] != 0) {
            world_violate(world, "%s: %g is left of element %llu, which was sent in f32", where,
                (double)left[i], (unsigned long long)i);
        }
    }
    if (sent != (nonzero < info->count ? nonzero : info->count) || least_sent < most_kept) {
        world_violate(world, "%s: %llu of %llu entries sent (planned: %llu), the least %g; kept %g",
            where, (unsigned long long)sent, (unsigned long long)nonzero,
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

    for (uint64_t i = 0; i < info->numel; i++) {
        had[i] = before[i];
        for (unsigned r = slot->first; r < slot->first + slot->ranks; r++) {
            had[i] += gradient_of(world, job, step, r, t, i);
        }
    }
    (void)snprintf(
        where, sizeof(where), "node %u tensor %u step %llu", node, t, (unsigned long long)step);
    check_largest(world, info, had, now, where);
    world->stats.selections++;
    free(had);
}

/* All residuals of a tensor, at `before`; returns where those of the next tensor are. */
static float *check_tensor(struct world *world, unsigned node, unsigned job, uint64_t id,
    uint64_t step, bool checked, const struct tensor_info *info, unsigned t, float *before)
{
    const struct sim_job *about = &world->job[job];
    const struct core *core = world->node[node].core;
    bool by_rank = strcmp(info->scope, "rank") == 0;
    float *now = sim_alloc(info->numel * sizeof(*now));

    for (uint32_t s = 0; core_residual_copy(core, id, t, s, now); s++) {
        struct slot slot = slot_of(about, node, s, by_rank);
        if (checked && is_exact(info)) {
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
    bool checked;
    float *before;

    if (!check_find(world, node, job, &info) || world->scenario.changed || world->rounded) {
        return;
    }
    if (memory->before == NULL) {
        memory->before =
            sim_alloc(about->elements * about->node_ranks[node] * sizeof(*memory->before));
    }
    checked = follows && status == ADTOPK_OK && info.policy_version == 0 && is_steady(info.policy);
    before = memory->before;
    for (unsigned t = 0; core_tensor_info(world->node[node].core, info.id, t, &tensor); t++) {
        before = check_tensor(world, node, job, info.id, step, checked, &tensor, t, before);
    }
}
