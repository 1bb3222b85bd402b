/*
 * Another batch of tensors, while training runs.
 *
 * The happy path: between two steps every rank registers the same tensors, commits them, maps an
 * arena for their gradients, and waits. When all ranks of a node have done so, the node joins again
 * (join.c), with the tensors of all batches. Every node compares them with its own. When all
 * members have joined with the batch no rank can be training. The coordinator then proposes a view.
 * Its commit carries the policy as a new version, and the number of batches. Every node then closes
 * the open step, in which nothing has happened. It lays out arenas and store for the batch, and
 * makes a plan for all tensors, as for any other change of the policy (switch.c). Then it opens the
 * step again.
 *
 * What can go wrong:
 * - Ranks or nodes describe different tensors: the job ends, with a sentence that names both.
 * - A rank does not commit: the job ends after `join_timeout`, with the rank's name.
 * - A change of the policy is under way: it is called off, unless all nodes hold for it.
 * - A view is formed for another reason: its commit puts the batch in force if the batch is ready
 *   by then.
 * - A commit reaches some nodes only: they say so in the next view, whose commit repeats it.
 * - A node restarts: its ranks return with all batches that they committed. Of these its store has
 *   in force what was in force there, and at most one more comes with the next view, as above.
 */
#include "daemon/core/agree/batch.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/planning.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/round.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/ranks.h"
#include "daemon/job/register.h"

unsigned batch_mapped(const struct job *job)
{
    unsigned mapped = CORE_MAX_BATCHES;

    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->machine.state >= RANK_MAPPED && job->rank[r]->mapped < mapped) {
            mapped = job->rank[r]->mapped;
        }
    }
    return mapped;
}

static bool batch_lacks(const struct job *job, const struct member *member)
{
    return member->batches != job->batches + 1;
}

bool batch_is_ready(const struct job *job)
{
    return job->view != 0 && members_first(job, batch_lacks) == NULL;
}

bool batch_is_known(const struct job *job)
{
    for (unsigned i = 0; batch_mapped(job) > job->batches && i < job->members; i++) {
        if (member_is_proposed(job, job->member[i]) &&
            job->member[i]->answer.batches > job->batches) {
            return true;
        }
    }
    return false;
}

/* Whether the policy is in force on some node, and not here. */
static bool batch_is_behind(const struct job *job, uint32_t version)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct store_policy *newer = job->member[i]->answer.newer;
        if (newer != NULL && newer->change.version == version) {
            return true;
        }
    }
    return false;
}

/* A policy for which all nodes hold keeps its version, and the batch comes with it. */
static struct policy_change batch_change(const struct job *job, const Adtopk__PeerPolicy *policy)
{
    if (policy->version > job->plan->change.version && !batch_is_behind(job, policy->version)) {
        return switch_change(policy);
    }
    return (struct policy_change){.version = policy->version + 1,
        .step = step_number(job),
        .node = job->core->config.node,
        .uid = POLICY_TENSORS};
}

enum adtopk_status batch_policy(
    const struct job *job, Adtopk__PeerPolicy *policy, char *text, struct error *err)
{
    struct policy *parsed;
    enum adtopk_status status;

    if (batch_is_known(job)) {
        return ADTOPK_OK;
    }
    parsed = malloc(sizeof(*parsed));
    if (parsed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a policy");
    }
    policy_default(parsed);
    status = policy_parse(parsed, policy->text, err);
    if (status == ADTOPK_OK) {
        const struct policy_change change = batch_change(job, policy);
        parsed->plan[0] = '\0';
        policy_print(parsed, text);
        switch_fill_change(&change, text, policy);
    }
    free(parsed);
    return status;
}

void batch_expect(struct job *job)
{
    if (job->registering.fixed > job->batches) {
        job->registering.since_us = job->core->now_us;
    }
}

/* Closes the open step, which no rank has begun. */
static bool close_step(struct job *job)
{
    if (job->step.machine.state == STEP_IDLE) {
        return true;
    }
    for (uint32_t r = 0; r < step_rounds(job); r++) {
        if (step_round_active(job, &job->plan->round[r]) &&
            job->plan->round[r].machine.state != ROUND_COLLECT) {
            return false;
        }
    }
    if (job->step.machine.state != STEP_OPEN || job->step.since_us != 0) {
        return false;
    }
    for (uint32_t r = 0; r < step_rounds(job); r++) {
        if (step_round_active(job, &job->plan->round[r])) {
            round_close(&job->plan->round[r]);
        }
    }
    job->step.undelivered = 0;
    machine_fire(&job->step.machine, STEP_ON_HOLD, STEP_IDLE);
    return true;
}

/* Puts the batch's tensors behind those in force, until batch_begin(). No compute runs. */
static enum adtopk_status append_tensors(struct job *job)
{
    struct registering *registering = &job->registering;
    struct tensor *all = malloc((job->tensors + (size_t)registering->nexts) * sizeof(*job->tensor));

    if (all == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    (void)memcpy(all, job->tensor, job->tensors * sizeof(*all));
    (void)memcpy(all + job->tensors, registering->next, registering->nexts * sizeof(*all));
    free(job->tensor);
    job->tensor = all;
    registering->moving = registering->nexts;
    return ADTOPK_OK;
}

bool batch_take(struct job *job, const Adtopk__PeerCommit *commit)
{
    struct error error;

    if (commit->batches != job->batches + 1 || batch_mapped(job) != commit->batches ||
        register_end(job, job->batches) != register_count(job) || commit->policy == NULL ||
        !close_step(job)) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL,
            "node %u begins batch %u of the tensors before step %llu, but node %u is not ready",
            membership_coordinator(&job->in_force), commit->batches,
            (unsigned long long)step_number(job), job->core->config.node);
        return false;
    }
    switch_give_way(job);
    if (append_tensors(job) != ADTOPK_OK) {
        job_fail_with(
            job, ADTOPK_ERR_MEMORY, "no memory for more tensors of job '%s'", job->key.name);
        return false;
    }
    if (layout_batch(job, job->tensors + job->registering.moving, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return false;
    }
    return true;
}

void batch_begin(struct job *job)
{
    struct registering *registering = &job->registering;

    job->tensors += registering->moving;
    free(registering->next);
    registering->next = NULL;
    registering->nexts = registering->room = registering->moving = 0;
    registering->since_us = 0;
    job->batches++;
    planning_forget(job);
    for (unsigned r = 0; r < job->ranks; r++) {
        rank_take_pushed(job->rank[r]);
        rank_make_ready(job->rank[r]);
    }
}
