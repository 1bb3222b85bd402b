/*
 * See handover.h. Happy path: velocities are copied into the next plan's part of the store, and the
 * tensor's record says, in the half that the next policy will read, from which switch on what its
 * sparsifier remembers counts. Killed before that policy is in force: the half and the part that
 * the old one reads are as they were, and all is done again, or dropped.
 *
 * Plans that differ only in collectives, encodings or buckets select alike. The comparison is by
 * the policies alone, so that all nodes decide alike.
 */
#include "daemon/core/handover.h"

#include <string.h>

#include "daemon/core/plan.h"

static bool same_real(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Momentum and clipping are not the sparsifier's, but what it remembers is of their size. */
static bool same_correction(const struct sparsifier_params *a, const struct sparsifier_params *b)
{
    return same_real(a->momentum, b->momentum) && a->nesterov == b->nesterov &&
           a->momentum_masking == b->momentum_masking && same_real(a->clip, b->clip);
}

static bool same_params(const struct sparsifier_params *a, const struct sparsifier_params *b)
{
    return same_real(a->density, b->density) && a->warmup_epochs == b->warmup_epochs &&
           a->epoch_turns == b->epoch_turns && a->view == b->view &&
           a->interleave == b->interleave && a->fibre_turns == b->fibre_turns &&
           a->global_turns == b->global_turns && a->adaptive == b->adaptive &&
           a->total_turns == b->total_turns && a->estimate == b->estimate &&
           a->estimate_period == b->estimate_period && same_real(a->sample, b->sample) &&
           a->fit == b->fit && same_real(a->threshold, b->threshold) && same_correction(a, b);
}

static bool select_alike(const struct planned *a, const struct planned *b)
{
    return !a->dense && !b->dense && a->by_rank == b->by_rank && a->known == b->known &&
           a->policy.sparsifier == b->policy.sparsifier &&
           same_params(&a->policy.params, &b->policy.params);
}

static bool has_velocity(const struct planned *planned)
{
    return planned->policy.params.momentum > 0;
}

/* Velocities follow their residuals: those of ranks are joined in the node's, and the first rank
 * takes over the node's. */
static void hand_velocities(
    const struct job *job, uint64_t numel, const struct planned *now, const struct planned *next)
{
    unsigned owners = has_velocity(now) ? plan_residuals(job, now) : 0;

    for (unsigned r = 0; has_velocity(next) && r < plan_residuals(job, next); r++) {
        float *to = next->kept[r].momentum;
        if (r < owners) {
            (void)memcpy(to, now->kept[r].momentum, numel * sizeof(*to));
        } else {
            (void)memset(to, 0, numel * sizeof(*to)); /* a change that was called off left some */
        }
    }
    for (unsigned r = 1; has_velocity(next) && !next->by_rank && r < owners; r++) {
        for (uint64_t i = 0; i < numel; i++) {
            next->kept[0].momentum[i] += now->kept[r].momentum[i];
        }
    }
}

void handover_tensor(const struct job *job, uint32_t t)
{
    const struct planned *now = &job->plan->tensor[t], *next = &job->next_plan->tensor[t];
    struct store_tensor *store = job->tensor[t].store;
    uint32_t policies = job->store->policies;

    hand_velocities(job, job->tensor[t].numel, now, next);
    store->since[(policies + 1) % 2] =
        select_alike(now, next) ? store->since[policies % 2] : policies + 1;
}

uint64_t handover_bytes(const struct job *job)
{
    bool converts = job->next_plan->residuals != job->plan->residuals;
    uint64_t bytes = converts ? job->counters.elements * sizeof(float) : 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        const struct planned *next = &job->next_plan->tensor[t];
        bytes += has_velocity(next)
                     ? job->tensor[t].numel * plan_residuals(job, next) * sizeof(float)
                     : 0;
    }
    return bytes;
}
