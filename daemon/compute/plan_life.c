/*
 * The life of a plan: it is made, put in force with the memory that it needs, and freed.
 *
 * Where a job has many tensors, a worker makes and frees its plans: the loop's other jobs would
 * wait for so long. A plan that nobody needs any more waits in job->history.discarded meanwhile.
 */
#include "daemon/compute/plan_life.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/comeback.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/layout_plan.h"
#include "daemon/compute/leaving.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/residual.h"
#include "daemon/compute/results.h"
#include "daemon/compute/round_exchange.h"
#include "daemon/compute/round_memory.h"
#include "daemon/job/actions.h"
#include "daemon/job/hash.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

#define DISCARDED_MAX 4u /* plans of a job that are made or freed although nobody needs them */

struct plan *plan_of_rank(struct core *core, const struct event *event, struct error *err)
{
    struct plan *plan = NULL;
    struct policy *policy = malloc(sizeof(*policy));
    bool parsed = policy != NULL;

    if (parsed) {
        *policy = core->policy;
        parsed = event->open.policy == NULL ||
                 policy_parse(policy, event->open.policy, err) == ADTOPK_OK;
        plan = parsed ? plan_create(policy) : NULL;
    }
    free(policy);
    if (plan == NULL && (policy == NULL || parsed)) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", event->open.key.name);
    }
    return plan;
}

/* Leaves out a key that is younger than the format of stores, if it has its default. So stores of
 * earlier daemons are found. */
uint64_t plan_brought(const struct plan *plan)
{
    static const char later[] = "\"engine\":\"node\",";
    const char *at = strstr(plan->text, later);
    const size_t before = at != NULL ? (size_t)(at - plan->text) : 0;

    return hash_text(hash_bytes(HASH_EMPTY, plan->text, before),
        at != NULL ? at + sizeof(later) - 1 : plan->text);
}

/* Whether the work would keep the loop's other jobs waiting for too long. */
static bool is_large(const struct job *job)
{
    return plan_tensors(job) > job->core->config.inline_tensors;
}

static struct plan *plan_of_work(struct work *work)
{
    return (struct plan *)(void *)((char *)work - offsetof(struct plan, work));
}

static void on_worker(
    struct job *job, struct plan *plan, void (*run)(struct compute *), void (*done)(struct work *))
{
    plan->busy = true;
    plan->work.job = job;
    core_compute(&plan->work, run, done,
        (uint64_t)plan_tensors(job) * (sizeof(struct plan_tensor) + 2 * sizeof(struct round)));
}

static void work_free(struct compute *compute)
{
    plan_empty(plan_of_work((struct work *)compute));
}

static void freed(struct work *work)
{
    struct plan *plan = plan_of_work(work), **link = &work->job->history.discarded;

    while (*link != plan) {
        link = &(*link)->discarded;
    }
    *link = plan->discarded;
    plan_free(plan);
}

/* Drops frames. They also belong to the links, and so to this thread. */
static void plan_drop_frames(struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rounds; r++) {
        round_drop_exchange(&plan->round[r]);
        round_drop_parked(&plan->round[r], UINT32_MAX, 0);
    }
}

void plan_discard(struct job *job, struct plan *plan)
{
    if (plan == NULL || (!plan->busy && !is_large(job))) {
        plan_free(plan);
        return;
    }
    plan->unwanted = true;
    plan->discarded = job->history.discarded;
    job->history.discarded = plan;
    if (!plan->busy) {
        plan_drop_frames(plan);
        on_worker(job, plan, work_free, freed);
    }
}

bool plan_is_crowded(const struct job *job)
{
    unsigned count = 0;

    for (const struct plan *plan = job->history.discarded; plan != NULL; plan = plan->discarded) {
        count++;
    }
    return count >= DISCARDED_MAX;
}

static void discard_later(struct job *job, struct plan *plan)
{
    plan->discarded = job->history.discarded;
    job->history.discarded = plan;
}

/* Moves the content of the plan in force to another one. The plan itself stays, because reports
 * read it. Without memory the content stays, too. */
static void retire_in_force(struct job *job)
{
    struct plan *plan = job->plan->tensors > 0 ? malloc(sizeof(*plan)) : NULL;

    if (plan != NULL) {
        *plan = *job->plan;
        job->plan->tensor = NULL;
        job->plan->round = NULL;
        job->plan->tensors = job->plan->rounds = 0;
        discard_later(job, plan);
    }
}

/* No worker has any of these plans, but some were made after the job had ended. */
bool plan_retire(struct job *job)
{
    bool any = false;

    if (!is_large(job)) {
        return false;
    }
    retire_in_force(job);
    if (job->switching.next != NULL) {
        discard_later(job, job->switching.next);
        job->switching.next = NULL;
    }
    for (struct plan *plan = job->history.discarded; plan != NULL; plan = plan->discarded) {
        if (plan->tensors > 0) {
            plan_drop_frames(plan);
            on_worker(job, plan, work_free, freed);
            any = true;
        }
    }
    return any;
}

static void work_make(struct compute *compute)
{
    struct work *work = (struct work *)compute;
    struct plan *plan = plan_of_work(work);

    (void)plan_fill(work->job, plan, &plan->fault);
}

static void made(struct work *work)
{
    struct plan *plan = plan_of_work(work);

    plan->busy = false;
    if (plan->unwanted) {
        on_worker(work->job, plan, work_free, freed);
    } else {
        plan->then(work->job, plan);
    }
}

void plan_make(struct job *job, struct plan *plan, void (*then)(struct job *job, struct plan *plan))
{
    plan->fault.code = ADTOPK_OK;
    plan->then = then;
    plan->nodes = plan_nodes(job);
    if (is_large(job)) {
        on_worker(job, plan, work_make, made);
    } else {
        (void)plan_fill(job, plan, &plan->fault);
        then(job, plan);
    }
}

/* Takes the splits in the store, for the step that opens next. */
static void plan_take_splits(struct job *job)
{
    for (uint32_t b = 0; b < job->plan->buckets; b++) {
        struct round *round = &job->plan->round[b];
        const struct store_tensor *store = job->tensor[round->tensor[0]].store;
        bool split = store->split > 0 && store->split_policy == job->store->policies;
        round->split_step = split ? store->split - 1 : UINT64_MAX;
        job->plan->split = job->plan->split || split;
    }
}

/* Makes memory for the plan in force, and takes its state from the store. */
static enum adtopk_status plan_open(struct job *job, struct error *err)
{
    enum adtopk_status status = layout_kept(job, job->plan, job->store->policies, err);

    status = status == ADTOPK_OK ? residual_open(job, job->plan, err) : status;
    if (status == ADTOPK_OK && plan_by_rank(job->plan)) {
        status = layout_more(job, err);
    }
    if (status == ADTOPK_OK) {
        status = layout_recover(job, err);
    }
    if (status == ADTOPK_OK) {
        status = leaving_load(job, err);
    }
    if (status == ADTOPK_OK) {
        /* Parts of a change that an earlier daemon began, and did not finish. */
        layout_drop_more(job);
        layout_drop_kept(job);
        residual_drop_other(job);
        plan_take_splits(job);
        status = results_begin(job, err);
    }
    return status;
}

/* The policy in the store if the job switched to one. */
static enum adtopk_status take_stored_policy(struct job *job, struct error *err)
{
    const struct store_header *store = job->store;
    const struct store_policy *stored = &store->policy[store->policies % 2];
    struct error fault;

    if (store->policies > 0) {
        policy_default(&job->plan->policy);
        if (policy_parse(&job->plan->policy, stored->text, &fault) != ADTOPK_OK) {
            return error_set(err, fault.code == ADTOPK_ERR_POLICY ? ADTOPK_ERR_LOST : fault.code,
                "the store of this job is damaged: its policy cannot be read: %s", fault.text);
        }
        job->plan->change = stored->change;
        job->history.past[(stored->change.version - 1) % POLICY_CHANGES] =
            (struct policy_past){.change = stored->change};
        policy_print(&job->plan->policy, job->plan->text);
    }
    return ADTOPK_OK;
}

/* While a worker makes the plan, the loop uses the one that the policy made. */
static void plan_made(struct job *job, struct plan *plan)
{
    struct error error = plan->fault;

    plan_free(job->plan);
    job->plan = plan;
    job->switching.next = NULL;
    if (error.code != ADTOPK_OK || plan_open(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
    }
}

static enum adtopk_status plan_make_later(struct job *job, struct error *err)
{
    job->switching.next = plan_create(&job->plan->policy);
    if (job->switching.next == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for the plan of job '%s'", job->key.name);
    }
    job->switching.next->change = job->plan->change;
    plan_make(job, job->switching.next, plan_made);
    return ADTOPK_OK;
}

enum adtopk_status plan_begin(struct job *job, struct error *err)
{
    if (round_init(&job->op.round, job, 0, NULL, 0) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
    }
    if (take_stored_policy(job, err) != ADTOPK_OK) {
        return err->code;
    }
    /* If the store is not new, others may ask for updates that were delivered under the plan. */
    if (job->layout.fresh && is_large(job)) {
        return plan_make_later(job, err);
    }
    job->plan->nodes = plan_nodes(job);
    if (plan_fill(job, job->plan, err) != ADTOPK_OK) {
        return err->code;
    }
    comeback_mark(job);
    return plan_open(job, err);
}
