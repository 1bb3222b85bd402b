/*
 * Computations for a whole job between two steps: the change to another policy, and the sums that a
 * verification compares.
 *
 * Happy path of a change: if residuals change from ranks to node, they are joined. If their type
 * changes, they are converted into the store's other part. Velocities are copied into the next
 * plan's part. If the next plan is of another engine, all of it moves there (moving.h). The
 * tensor's record has two halves. The one for the next policy says from which switch on its
 * sparsifier's state is valid.
 *
 * If the daemon is killed before that policy is in force, the half and the parts for the old policy
 * are unchanged. Everything is done again, or dropped. Only the joining cannot be undone. The store
 * says that it has begun, and then it is completed first.
 *
 * Plans that differ only in collectives, encodings or buckets select in the same way. The
 * comparison uses only the policies, so that all nodes decide alike.
 */
#include "daemon/compute/work_job.h"

#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/moving.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/results.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

/* Bytes of the store and of both plans, per tensor. */
#define SWITCH_TENSOR_BYTES UINT64_C(64)

static bool same_real(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Error feedback, momentum and clipping are not part of the sparsifier, but its state depends on
 * their size. */
static bool same_correction(const struct sparsifier_params *a, const struct sparsifier_params *b)
{
    return same_real(a->beta, b->beta) && same_real(a->gamma, b->gamma) &&
           same_real(a->momentum, b->momentum) && a->nesterov == b->nesterov &&
           a->momentum_masking == b->momentum_masking && same_real(a->clip, b->clip);
}

static bool same_params(const struct sparsifier_params *a, const struct sparsifier_params *b)
{
    return same_real(a->density, b->density) && a->warmup_epochs == b->warmup_epochs &&
           a->epoch_turns == b->epoch_turns && a->fibres == b->fibres &&
           a->interleave == b->interleave && a->fibre_turns == b->fibre_turns &&
           a->global_turns == b->global_turns && a->adaptive == b->adaptive &&
           a->total_turns == b->total_turns && a->estimate == b->estimate &&
           a->estimate_period == b->estimate_period && same_real(a->sample, b->sample) &&
           a->fit == b->fit && same_real(a->threshold, b->threshold) && same_correction(a, b);
}

static bool select_alike(const struct plan_tensor *a, const struct plan_tensor *b)
{
    return !a->dense && !b->dense && a->by_rank == b->by_rank && a->known == b->known &&
           a->policy.sparsifier == b->policy.sparsifier &&
           same_params(&a->policy.params, &b->policy.params);
}

/* Sparsifiers' states stay valid if both plans select in the same way. */
static void keep_memory(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;
    uint32_t policies = job->store->policies;
    bool alike = select_alike(&job->plan->tensor[t], &job->switching.next->tensor[t]);

    store->since[(policies + 1) % 2] = alike ? store->since[policies % 2] : policies + 1;
}

/* Whether some ranks' residuals become the node's: if that is cut off all are joined. */
static bool switch_joins(const struct job *job)
{
    bool joins = false;

    for (uint32_t t = 0; job->ranks > 1 && t < job->tensors; t++) {
        joins |= job->plan->tensor[t].by_rank && !job->switching.next->tensor[t].by_rank;
    }
    return joins;
}

/* Tensors that come with the switch are in none of its passes, because their residuals are new. */
static void joining_begins(struct work *work)
{
    if (work->job->registering.moving > 0) {
        (void)results_table(work->job); /* new ones have no lists */
    }
    if (switch_joins(work->job)) {
        store_publish(&work->job->store->joining, 1);
    }
}

static void joining_ends(struct work *work)
{
    store_publish(&work->job->store->joining, 0);
}

/* From node to ranks there is nothing to join: the first rank takes over the node's residual. */
static enum adtopk_status switch_order(struct work *work, uint32_t t)
{
    const struct job *job = work->job;

    orders_switch(job, &work->batch[work->filling], t);
    keep_memory(job, t);
    results_pending(job, job->switching.next, job->store->policies + 1, t);
    return ADTOPK_OK;
}

/* Residuals of ranks but the first are in a part that the store has in host memory, too. */
static void move_residual(struct work *work, uint32_t t, unsigned rank)
{
    const struct job *job = work->job;
    const struct plan *next = job->switching.next;
    struct orders_image image = {
        .plan = next, .loads = plan_is_far(job, next), .count = job->tensor[t].numel};
    struct rounded rounded;

    image.element = rank > 0      ? layout_residual(job, t, rank)
                    : image.loads ? next->tensor[t].residual
                                  : moving_place_residual(job, next, t);
    if (rank == 0 && next->tensor[t].rounded) {
        rounded = rounded_at(image.element, image.count);
        image.element = rounded.element;
        image.carry = rounded.carry;
    }
    orders_image(job, &work->batch[work->filling], t, rank, &image);
}

/* Where some tensor has a residual per rank all do, zeros if they are not in use. So what is in the
 * other memory from earlier does not matter. */
static enum adtopk_status move_residuals(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    const unsigned residuals = job->store->more != 0 ? job->ranks : 1;

    for (unsigned r = 0; job->switching.next->moving.open && r < residuals; r++) {
        move_residual(work, t, r);
    }
    return ADTOPK_OK;
}

static enum adtopk_status move_velocities(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    const struct plan *next = job->switching.next;
    const struct plan_tensor *planned = &next->tensor[t];
    const bool loads = plan_is_far(job, next);
    const bool any = next->moving.open && planned->policy.params.momentum > 0;

    for (unsigned r = 0; any && r < plan_residuals(job, planned); r++) {
        orders_image(job, &work->batch[work->filling], t, r,
            &(struct orders_image){.plan = next,
                .loads = loads,
                .velocity = true,
                .count = job->tensor[t].numel,
                .element = loads ? (void *)planned->selection[r].momentum
                                 : moving_place_velocity(job, next, t, r)});
    }
    return ADTOPK_OK;
}

const struct work_kind work_switch = {.verb = "make its residuals fit another policy",
    .residuals = true,
    .begin = joining_begins,
    .stage = {switch_order, move_residuals, move_velocities},
    .moves = 1,
    .finish = joining_ends};

static enum adtopk_status rejoin_order(struct work *work, uint32_t t)
{
    if (work->job->plan->tensor[t].by_rank) {
        orders_join(work->job, &work->batch[work->filling], t);
    }
    return ADTOPK_OK;
}

const struct work_kind work_rejoin = {.verb = "join the residuals of its ranks",
    .residuals = true,
    .stage = {rejoin_order},
    .finish = joining_ends};

uint64_t work_switch_bytes(const struct job *job)
{
    bool converts =
        job->switching.next->residuals != job->plan->residuals || job->switching.next->moving.open;
    uint64_t bytes = (converts ? job->figures.counters.elements * sizeof(float) : 0) +
                     job->tensors * SWITCH_TENSOR_BYTES +
                     (job->registering.moving > 0 ? results_table_bytes(job) : 0);

    for (uint32_t t = 0; t < job->tensors; t++) {
        const struct plan_tensor *next = &job->switching.next->tensor[t];
        bytes += next->policy.params.momentum > 0
                     ? job->tensor[t].numel * plan_residuals(job, next) * sizeof(float)
                     : 0;
    }
    return bytes;
}

/* ------------------------------------------------------------------ verification */

static enum adtopk_status verify_order(struct work *work, uint32_t t)
{
    orders_sums(work->job, &work->batch[work->filling], t);
    return ADTOPK_OK;
}

static enum adtopk_status verify_take(struct work *work, uint32_t t)
{
    struct tensor *tensor = &work->job->tensor[t];
    struct verified *found = &tensor->found;
    unsigned count;
    const struct engine_result *result = work_results(work, &count);

    *found = (struct verified){.magnitude = 0};
    for (unsigned r = 0; r < count; r++) {
        found->residual[0] += result[r].sums[0];
        found->residual[1] += result[r].sums[1];
        found->magnitude += result[r].magnitude;
    }
    (void)memcpy(found->input, tensor->store->input, sizeof(found->input));
    (void)memcpy(found->lost, tensor->store->lost, sizeof(found->lost));
    (void)memcpy(found->applied, store_applied(tensor->store), sizeof(found->applied));
    /* The step's end will declare it. */
    for (unsigned i = 0; store_is_emptied(tensor->store) && i < 2; i++) {
        found->lost[i] = found->input[i] - found->applied[i] - found->residual[i];
    }
    return ADTOPK_OK;
}

const struct work_kind work_verify = {
    .verb = "verify", .residuals = true, .stage = {verify_order, verify_take}};
