/*
 * Switches a job to another policy: on all nodes, before one step.
 *
 * The happy path: a node gets a request, and passes it on to the coordinator of the view.
 * The coordinator names a step that no rank can have opened yet, and proposes the policy.
 * Every node makes its plan, trains on up to that step, holds there, and says so. When all hold,
 * the coordinator forms a new view (view.c) whose commit carries the policy. Every node converts
 * its residuals and opens the step under the new plan. Ranks notice only a short wait: the core
 * remembers their pushes meanwhile.
 *
 * What can go wrong:
 * - A node cannot change (memory, a policy that does not fit its tensors). It says so, and the
 *   coordinator calls the change off. Nodes that hold go on under the old plan.
 * - A node restarts, or the coordinator. That makes a new view in any case. If all hold, its commit
 *   decides for the change. If not, the change is off, and the client that asked is told.
 * - A commit reaches some nodes, and then the coordinator is gone. Those nodes answer the next
 *   prepare with the newer version, and its commit carries it. No other node can have opened the
 *   step meanwhile, because all held.
 * - Two clients ask at the same time. The second is told that a change is under way. If that change
 *   is decided, and only not in force everywhere yet, the second one waits for it (switch_ask.c).
 * - Several nodes refuse. The first refusal calls the change off, and the others may arrive when
 *   the next change is proposed. Proposals are numbered, and an answer counts for its own only.
 */
#include "daemon/core/agree/switch.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/layout_plan.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/plan_life.h"
#include "daemon/compute/planning.h"
#include "daemon/compute/residual.h"
#include "daemon/compute/work_job.h"
#include "daemon/core/agree/batch.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/job/actions.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"
#include "daemon/job/peer.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"
#include "daemon/job/ticket.h"
#include "proto/utf8.h"

static void answer_asked(struct job *job, const struct error *error)
{
    ticket_answer(job, &job->switching.asked,
        &(struct action){.type = ACTION_POLICY,
            .operation = job->plan->change.version,
            .number = job->plan->change.step},
        error);
}

/* ------------------------------------------------------------------ messages */

void switch_fill_change(
    const struct policy_change *change, const char *text, Adtopk__PeerPolicy *policy)
{
    adtopk__peer_policy__init(policy);
    policy->version = change->version;
    policy->step = change->step;
    policy->node = change->node;
    policy->uid = change->uid;
    policy->pid = change->pid;
    policy->text = (char *)(uintptr_t)text;
}

void switch_fill(const struct plan *plan, Adtopk__PeerPolicy *policy)
{
    switch_fill_change(&plan->change, plan->text, policy);
}

struct policy_change switch_change(const Adtopk__PeerPolicy *policy)
{
    return (struct policy_change){.version = policy->version,
        .step = policy->step,
        .node = (uint16_t)policy->node,
        .uid = policy->uid,
        .pid = policy->pid};
}

/* `attempt` 0: this node has switched. */
static void send_answer(
    struct job *job, uint32_t version, uint32_t attempt, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAnswer answer = ADTOPK__PEER_POLICY_ANSWER__INIT;

    answer.version = version;
    answer.attempt = attempt;
    answer.status = error != NULL ? (uint32_t)error->code : ADTOPK_OK;
    if (error != NULL) {
        answer.text = (char *)(uintptr_t)error->text;
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER;
    message.policy_answer = &answer;
    if (!peer_send_coordinator(job, &job->in_force, &message)) {
        switch_answer(job, job->core->config.node, &answer);
    }
}

/* ------------------------------------------------------------------ calling it off */

static void switch_reserved(struct job *job, const struct error *error);

static void drop_next(struct job *job)
{
    plan_discard(job, job->switching.next);
    job->switching.next = NULL;
    results_forget_reserved(job, switch_reserved);
    layout_drop_more(job);
    layout_drop_kept(job);
    residual_drop_other(job);
}

void switch_give_way(struct job *job)
{
    if (job->switching.machine.state == SWITCH_PROPOSED ||
        job->switching.machine.state == SWITCH_HELD) {
        machine_fire(&job->switching.machine, SWITCH_ON_ABORT, SWITCH_NONE);
        drop_next(job);
    }
}

void switch_call_off(struct job *job, uint32_t version, uint16_t asker, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyEnd end = ADTOPK__PEER_POLICY_END__INIT;

    end.version = version;
    end.node = asker;
    end.status = (uint32_t)error->code;
    end.text = (char *)(uintptr_t)error->text;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_END;
    message.policy_end = &end;
    if (version != 0) {
        job->switching.attempt = 0;
        peer_send_all(job, &message);
    } else if (asker != job->core->config.node) {
        peer_send(job, asker, &message);
    }
    if (version != 0 || asker == job->core->config.node) {
        switch_end(job, job->core->config.node, &end);
    }
}

void switch_end(struct job *job, uint16_t from, const Adtopk__PeerPolicyEnd *end)
{
    bool held = job->switching.machine.state == SWITCH_HELD;
    struct error error;

    if (job->machine.state != JOB_ACTIVE || from != membership_coordinator(&job->in_force)) {
        return; /* the view that is being formed decides */
    }
    (void)error_set(&error,
        error_is_failure(end->status) ? (enum adtopk_status)end->status : ADTOPK_ERR_PROTOCOL, "%s",
        end->text);
    if (end->node == job->core->config.node) {
        answer_asked(job, &error);
    }
    if (job->switching.next != NULL && end->version == job->switching.next->change.version) {
        switch_give_way(job);
        job->advance.opened |= held;
    }
}

/* ------------------------------------------------------------------ agreeing */

/* Refuses a change, with this node's name before the reason. */
static void switch_refuse(
    struct job *job, uint32_t version, uint32_t attempt, const struct error *reason)
{
    struct error error;

    (void)error_set(
        &error, reason->code, "node %u: %.*s", job->core->config.node, UTF8_FIT(200, reason->text));
    send_answer(job, version, attempt, &error);
}

static void moved(struct work *work);

/* The memory for which the held or agreed plan waited is there, or never will be. */
static void switch_reserved(struct job *job, const struct error *error)
{
    struct plan *next = job->switching.next;

    if (next == NULL) {
        return; /* called off meanwhile */
    }
    assert(!next->busy);
    next->unreserved = error != NULL;
    if (job->switching.machine.state == SWITCH_MOVING) {
        if (error != NULL) {
            job_fail(job, error, true);
        } else {
            core_work(&job->step.settle, &work_switch, moved, work_switch_bytes(job));
        }
    } else if (job->machine.state == JOB_ACTIVE && error != NULL) {
        switch_refuse(job, next->change.version, job->switching.accepted, error);
    } else if (job->machine.state == JOB_ACTIVE && job->switching.machine.state == SWITCH_HELD) {
        send_answer(job, next->change.version, job->switching.accepted, NULL);
    }
}

/* Makes the empty plan of a policy that another node sent. NULL and an error if that fails. */
static struct plan *plan_of(const Adtopk__PeerPolicy *policy, struct error *err)
{
    struct policy parsed;
    struct plan *plan;

    policy_default(&parsed);
    if (policy_parse(&parsed, policy->text, err) != ADTOPK_OK) {
        return NULL;
    }
    plan = plan_create(&parsed);
    if (plan == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a plan");
        return NULL;
    }
    plan->change = switch_change(policy);
    plan->unreserved = true;
    return plan;
}

/* Makes memory for the next plan. An error may leave parts of the store until it is dropped. */
static enum adtopk_status open_next(struct job *job, struct error *err)
{
    struct plan *plan = job->switching.next;

    if ((plan_by_rank(plan) && layout_more(job, err) != ADTOPK_OK) ||
        layout_kept(job, plan, job->store->policies + 1, err) != ADTOPK_OK ||
        residual_open(job, plan, err) != ADTOPK_OK) {
        return err->code;
    }
    return results_reserve(job, plan, switch_reserved, err);
}

/* The next plan is made, or cannot be. If it cannot, the others are told, and the coordinator calls
 * the change off. In a view that is being formed the commit decides. */
static void switch_planned(struct job *job, struct plan *plan)
{
    struct error error = plan->fault;

    if (error.code == ADTOPK_OK && open_next(job, &error) == ADTOPK_OK) {
        return;
    }
    if (job->switching.machine.state == SWITCH_MOVING) {
        job_fail(job, &error, true);
    } else if (job->machine.state == JOB_ACTIVE) {
        switch_refuse(job, plan->change.version, job->switching.accepted, &error);
    }
}

void switch_propose(struct job *job, uint16_t from, const Adtopk__PeerPolicyPropose *proposal)
{
    const Adtopk__PeerPolicy *policy = proposal->policy;
    struct error error;

    if (job->machine.state != JOB_ACTIVE) {
        return; /* the view that is being formed decides without it */
    }
    if (policy == NULL || from != membership_coordinator(&job->in_force) || policy->version == 0 ||
        job->switching.machine.state != SWITCH_NONE) {
        job->core->bad_messages++;
        return;
    }
    if (policy->version != job->plan->change.version + 1 || policy->step <= step_number(job) ||
        policy->step > step_number(job) + 3) {
        /* STATE: frames of two steps were faster than the proposal. It may be made again. */
        (void)error_set(&error,
            policy->step <= step_number(job) ? ADTOPK_ERR_STATE : ADTOPK_ERR_PROTOCOL,
            "version %u of the policy from step %llu cannot follow version %u at step %llu",
            policy->version, (unsigned long long)policy->step, job->plan->change.version,
            (unsigned long long)step_number(job));
        switch_refuse(job, policy->version, proposal->attempt, &error);
        return;
    }
    if (plan_is_crowded(job)) {
        (void)error_set(&error, ADTOPK_ERR_STATE,
            "the plans of policies that were called off are still being made or freed");
        switch_refuse(job, policy->version, proposal->attempt, &error);
        return;
    }
    job->switching.next = plan_of(policy, &error);
    if (job->switching.next == NULL) {
        switch_refuse(job, policy->version, proposal->attempt, &error);
        return;
    }
    job->switching.accepted = proposal->attempt;
    machine_fire(&job->switching.machine, SWITCH_ON_PROPOSE, SWITCH_PROPOSED);
    plan_make(job, job->switching.next, switch_planned);
}

bool switch_hold(struct job *job)
{
    if (job->switching.machine.state != SWITCH_PROPOSED ||
        job->switching.next->change.step != step_number(job)) {
        return false;
    }
    machine_fire(&job->switching.machine, SWITCH_ON_HOLD, SWITCH_HELD);
    if (job->machine.state == JOB_ACTIVE && !job->switching.next->unreserved) {
        send_answer(job, job->switching.next->change.version, job->switching.accepted, NULL);
    }
    return true; /* in a view that is being formed, its state says so */
}

static bool switch_lacks(const struct job *job, const struct member *member)
{
    (void)job;
    return !member->holds;
}

void switch_answer(struct job *job, uint16_t from, const Adtopk__PeerPolicyAnswer *answer)
{
    struct member *member = members_find(job, from);
    struct error error;
    const bool moving = job->switching.machine.state == SWITCH_MOVING;
    uint32_t version = answer->version;
    uint32_t now = moving ? job->switching.next->change.version : job->plan->change.version;

    if (job->machine.state != JOB_ACTIVE || !membership_coordinates(&job->in_force)) {
        return;
    }
    if (member == NULL || version < job->plan->change.version || version > now + (moving ? 0 : 1)) {
        job->core->bad_messages++;
        return;
    }
    if (answer->attempt == 0) {
        member->policy = version;
        return;
    }
    if (answer->attempt != job->switching.attempt || version != now + 1) {
        return; /* that proposal was called off: another node had refused it already */
    }
    if (answer->status == ADTOPK_ERR_STATE && switch_again(job, version)) {
        return;
    }
    if (answer->status != ADTOPK_OK) {
        (void)error_set(&error,
            answer->status < ERROR_STATUSES ? (enum adtopk_status)answer->status
                                            : ADTOPK_ERR_PROTOCOL,
            "%s", answer->text);
        switch_call_off(job, version, job->switching.asker, &error);
        return;
    }
    member->holds = true;
    job->advance.all_hold = members_first(job, switch_lacks) == NULL;
}

/* ------------------------------------------------------------------ switching */

static void remember(struct job *job, const struct plan *plan)
{
    struct store_header *store = job->store;
    struct store_policy *stored = &store->policy[(store->policies + 1) % 2];
    struct policy_past *past = &job->history.past[(plan->change.version - 1) % POLICY_CHANGES];

    stored->change = plan->change;
    (void)strcpy(stored->text, plan->text);
    stored->residuals = plan->residuals;
    stored->batches = job->batches + (job->registering.moving > 0 ? 1 : 0);
    store_publish(&store->policies, store->policies + 1);
    *past = (struct policy_past){.change = plan->change, .at_us = job->core->now_us};
    policy_difference(&job->plan->policy, &plan->policy, past->what, sizeof(past->what));
    for (unsigned i = 0; i < job->members; i++) {
        free(job->member[i]->copied); /* the rounds are new ones */
        job->member[i]->copied = NULL;
    }
}

static void moved(struct work *work)
{
    struct job *job = work->job;
    struct plan *old = job->plan;

    machine_fire(&job->switching.machine, SWITCH_ON_DONE, SWITCH_NONE);
    remember(job, job->switching.next);
    job->plan = job->switching.next;
    job->switching.next = old;
    drop_next(job);
    if (job->registering.moving > 0) {
        batch_begin(job);
    }
    core_trace(job->core, "job %llx: policy %u from step %llu", (unsigned long long)job->number,
        job->plan->change.version, (unsigned long long)step_number(job));
    planning_begin(job);
    answer_asked(job, NULL);
    if (job->machine.state == JOB_ACTIVE) {
        send_answer(job, job->plan->change.version, 0, NULL);
    }
    job->advance.opened = true;
    job->advance.regroup = true; /* another node may break ties from now on */
}

/* The view brings no other policy: a change that was under way is off. */
static void switch_keep_policy(struct job *job)
{
    struct error error;

    (void)error_set(&error, ADTOPK_ERR_PEER,
        "the nodes of job '%s' formed a new view before the change was agreed; it keeps "
        "version %u of its policy",
        job->key.name, job->plan->change.version);
    switch_give_way(job);
    answer_asked(job, &error);
}

/* Whether the next plan is that of this version, and has its memory. */
static bool switch_is_planned(const struct job *job, uint32_t version)
{
    const struct plan *next = job->switching.next;

    return next != NULL && !next->unreserved && next->change.version == version;
}

/* Begins another plan in the place of the next one. False: the job fails. */
static bool switch_plan_anew(struct job *job, const Adtopk__PeerPolicy *policy)
{
    struct error error;

    drop_next(job);
    job->switching.next = plan_of(policy, &error);
    if (job->switching.next == NULL) {
        job_fail(job, &error, true);
    }
    return job->switching.next != NULL;
}

/* Answers a client of this node that asked for another change than this one. */
static void switch_answer_other(struct job *job, const Adtopk__PeerPolicy *policy)
{
    const bool tensors = policy->uid == POLICY_TENSORS;
    struct error error;

    if (job->switching.asked != NULL && (policy->node != job->core->config.node || tensors)) {
        (void)error_set(&error, ADTOPK_ERR_STATE, "%s of job '%s' came first",
            tensors ? "more tensors" : "another change of the policy", job->key.name);
        answer_asked(job, &error);
    }
}

bool switch_commit(struct job *job, const Adtopk__PeerPolicy *policy)
{
    bool planned;

    job->switching.attempt = 0;
    switch_drop_postponed(job); /* the node that asked for it drops it, too */
    if (policy == NULL || policy->version <= job->plan->change.version) {
        switch_keep_policy(job);
        return false;
    }
    if (job->step.machine.state != STEP_IDLE || policy->step != step_number(job) ||
        job->switching.machine.state == SWITCH_PROPOSED) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL,
            "node %u switches to version %u of the policy before step %llu, but this node, %u, "
            "is at step %llu",
            membership_coordinator(&job->in_force), policy->version,
            (unsigned long long)policy->step, job->core->config.node,
            (unsigned long long)step_number(job));
        return false;
    }
    planned = switch_is_planned(job, policy->version);
    if (!planned && !switch_plan_anew(job, policy)) {
        return false;
    }
    switch_answer_other(job, policy);
    machine_fire(&job->switching.machine, SWITCH_ON_COMMIT, SWITCH_MOVING);
    if (planned) {
        core_work(&job->step.settle, &work_switch, moved, work_switch_bytes(job));
    } else {
        plan_make(job, job->switching.next, switch_planned);
    }
    return true;
}
