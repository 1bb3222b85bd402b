/*
 * Ranks return to a run. If the job went on without lost nodes, only the members of its last view
 * come back. Usually one of them has the view in force, and says so in its join. If all daemons
 * restarted, nobody does: then each node learns it from its own store.
 *
 * A job that has lost no node, and goes on with all nodes only, needs none of this: it waits until
 * every rank is there.
 */
#include "daemon/compute/recall.h"

#include "daemon/compute/comeback.h"
#include "daemon/compute/layout.h"
#include "daemon/job/store.h"
#include "daemon/job/views.h"
#include "daemon/policy/policy.h"

static uint64_t recall_ranks(const struct known_view *known)
{
    uint64_t ranks = 0;

    for (uint32_t i = 0; i < known->nodes; i++) {
        ranks += known->ranks[i];
    }
    return ranks;
}

/* Whether the policy in force is to go on without lost nodes. If the job never switched, it is the
 * one that the ranks brought. */
static bool recall_shrinks(const struct job *job, const struct store_header *store)
{
    struct policy stored = job->plan->policy;
    struct error ignored;

    if (store->policies > 0) {
        policy_default(&stored);
        (void)policy_parse(&stored, store->policy[store->policies % 2].text, &ignored);
    }
    return stored.on_peer_loss == PEER_LOSS_SHRINK;
}

/* The node's store of the run that its ranks return to; NULL: there is none, or it is damaged,
 * which opening it will tell. */
static const struct store_header *recall_store(const struct job *job)
{
    const struct store_header *store = job->layout.found;
    struct error ignored;

    return !job->layout.fresh && store_check(store, job->run.id, &ignored) == ADTOPK_OK ? store
                                                                                        : NULL;
}

/* Whether the job has ended before it was back in its run, and nobody says that the run is over. Or
 * the store is of another run than the one to which the ranks wanted to return. */
static bool recall_may_return(const struct job *job)
{
    return job->core->config.memory.leave_job != NULL && job->view == 0 &&
           job->layout.found != NULL && !job->layout.fresh &&
           (!job->ending.over || recall_store(job) == NULL);
}

void recall_release(const struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    if (recall_may_return(job) || comeback_leave(job)) {
        memory->leave_job(memory->context, job->number);
    } else {
        memory->release_job(memory->context, job->number);
    }
}

bool recall_has_no_part(const struct job *job, uint16_t node)
{
    const struct store_header *store =
        job->view == 0 && job->layout.found != NULL ? recall_store(job) : NULL;

    return store != NULL && views_leave_out(&store->views, node);
}

void recall_views(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;
    const struct store_header *store;
    struct error later;

    /* A store that cannot be used ends the job when all ranks of this node can hear why. */
    if (job->layout.found != NULL || memory->has_store == NULL ||
        !memory->has_store(memory->context, &job->key) || layout_find(job, &later) != ADTOPK_OK) {
        return;
    }
    store = recall_store(job);
    if (store != NULL) {
        const bool shrinks = recall_shrinks(job, store);
        job->agreement.awaits_all = !shrinks;
        if (shrinks || recall_ranks(views_known(&store->views)) < job->run.world_size) {
            views_merge(job->agreement.views, &store->views);
        }
    }
}
