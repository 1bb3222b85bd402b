/*
 * Changes the plan while training runs, when the planner (planner.h) wants another.
 *
 * The happy path: every few steps each node packs its measurements (job/measure.c) and sends them
 * to the coordinator. When it has those of all nodes, for the same policy and steps, it merges them
 * and asks the planner, on a worker (planning.c). If the planner wants another plan, the
 * coordinator proposes the policy with that plan in it, as if an operator had asked (switch.c). All
 * nodes change at one step.
 *
 * What can go wrong:
 * - A node restarts, or the coordinator: its measurements are gone, and measuring begins anew. The
 *   plan in force is part of the policy, and stays.
 * - Estimates are lost, late, of another policy, or senseless: they are dropped, and the next ones
 *   come after a few steps.
 * - A node refuses the plan: the one in force stays. The planner sees this, and does not propose
 *   that plan again.
 * - An operator changes the policy meanwhile: the change that was proposed first is made, and the
 *   other one is refused. The planner forgets what it knew of the old policy.
 * - The view or the policy changes while the planner works: the plan that it wants is not proposed.
 * - Memory is short: there is no other plan for now.
 */
#include "daemon/core/replan.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/planning.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"
#include "daemon/job/peer.h"

#define PLAN_SHOWN 60   /* characters of a plan in a note */
#define SETTLED_STEPS 8 /* steps after which the effect of a plan is known */

/* ------------------------------------------------------------------ to the coordinator */

static bool is_due(const struct job *job)
{
    uint64_t every = job->core->config.plan_every;

    return job->plan->policy.replan && job->machine.state == JOB_ACTIVE &&
           step_number(job) % (every > 0 ? every : CORE_PLAN_EVERY) == 0;
}

static void replan_send(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerEstimates estimates = ADTOPK__PEER_ESTIMATES__INIT;

    estimates.policy = job->plan->change.version;
    estimates.step = step_number(job);
    estimates.packed.len = estimate_packed_size(job->tensors);
    estimates.packed.data = malloc(estimates.packed.len);
    if (estimates.packed.data == NULL) {
        return;
    }
    estimate_pack(&job->figures.measure->own, estimates.packed.data);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_ESTIMATES;
    message.estimates = &estimates;
    if (membership_coordinates(&job->in_force)) {
        replan_estimates(job, job->core->config.node, &estimates);
    } else {
        peer_offer(job, membership_coordinator(&job->in_force), &message);
    }
    free(estimates.packed.data);
}

bool replan_step(struct job *job)
{
    if (job->figures.measure == NULL || job->figures.measure->closed_step == step_number(job)) {
        return false;
    }
    job->figures.measure->closed_step = step_number(job);
    if (is_due(job)) {
        replan_send(job);
    }
    return true;
}

/* ------------------------------------------------------------------ the coordinator */

/* Makes room for a member's measurements; false without memory. */
static bool member_has_room(const struct job *job, struct member *member)
{
    if (member->estimates == NULL) {
        member->estimates = calloc(1, sizeof(*member->estimates));
        if (member->estimates != NULL &&
            !estimate_init(member->estimates, job->tensors, job->in_force.nodes)) {
            free(member->estimates);
            member->estimates = NULL;
        }
    }
    return member->estimates != NULL;
}

/* Whether all nodes have sent their measurements up to this step. */
static bool all_told(const struct job *job, uint64_t step)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_at(job, i);
        if (member->estimates == NULL || member->estimated_step != step ||
            member->estimates->plan != job->plan->change.version) {
            return false;
        }
    }
    return true;
}

/* Merges the estimates of all nodes. */
static void merge(const struct job *job, struct estimates *merged)
{
    const struct member *first = members_find(job, membership_coordinator(&job->in_force));

    estimate_copy(merged, first->estimates);
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_at(job, i);
        if (member != first) { /* not always the lowest node: one that joins later is not */
            estimate_merge(merged, member->estimates);
        }
    }
}

/* Logs the result of the last change of the plan, once it is known. */
static void note_outcome(struct job *job)
{
    struct measure *measure = job->figures.measure;
    const struct estimate_steps *steps = &job->figures.planning->estimates.steps;

    if (measure->predicted_us > 0 && measure->predicted_for == job->plan->change.version &&
        steps->count >= SETTLED_STEPS && !measure->told) {
        measure->told = true;
        core_note(job->core, "job %s/%s: plan %.*s takes %.4g ms a step, predicted were %.4g ms",
            job->key.name, job->key.run_id, PLAN_SHOWN, job->plan->policy.plan,
            1e-3 * steps->median_us, 1e-3 * measure->predicted_us);
    }
}

static void replan_propose(struct job *job, const struct planning *planning)
{
    struct measure *measure = job->figures.measure;
    struct policy *policy = malloc(sizeof(*policy));
    struct error error = {.code = ADTOPK_OK};

    if (policy == NULL) {
        return;
    }
    *policy = job->plan->policy;
    if (choices_print(&planning->wanted, policy->plan)) { /* else: too long */
        measure->proposals++;
        measure->predicted_us = planning->predicted_us;
        measure->predicted_for = job->plan->change.version + 1;
        measure->told = false;
        core_note(job->core, "job %s/%s: plan %.*s -> %.*s: %s", job->key.name, job->key.run_id,
            PLAN_SHOWN, job->plan->policy.plan[0] != '\0' ? job->plan->policy.plan : "(none)",
            PLAN_SHOWN, policy->plan, planning->decision.why);
        (void)switch_replan(job, policy, &error);
    }
    free(policy);
}

static void decided(struct work *work)
{
    struct job *job = work->job;
    struct planning *planning = job->figures.planning;

    planning->running = false;
    if (planning->dropped) {
        planning_drop(job);
        return;
    }
    job->figures.measure->decisions++;
    (void)strcpy(job->figures.measure->why, planning->decision.why);
    if (!planning->decision.change) {
        return;
    }
    if (switch_is_quiet(job) && planning->version == job->plan->change.version) {
        replan_propose(job, planning);
    } else {
        planner_withdraw(planning->planner);
    }
}

static void replan_decide(struct job *job, uint64_t step)
{
    if (job->figures.planning == NULL) {
        job->figures.planning = planning_create(job);
    }
    if (job->figures.planning == NULL || job->figures.planning->running) {
        return;
    }
    job->figures.measure->decided_step = step; /* repetitions do not count */
    merge(job, &job->figures.planning->estimates);
    note_outcome(job);
    planning_decide(job->figures.planning, decided);
}

void replan_estimates(struct job *job, uint16_t from, const Adtopk__PeerEstimates *message)
{
    struct member *member = members_find(job, from);
    struct error unused;

    if (job->machine.state != JOB_ACTIVE || job->figures.measure == NULL ||
        message->policy != job->plan->change.version) {
        return; /* for another step or policy */
    }
    if (membership_index(&job->in_force, from) < 0 || !member_has_room(job, member)) {
        return;
    }
    if (estimate_unpack(member->estimates, message->packed.data, message->packed.len, &unused) !=
        ADTOPK_OK) {
        job->core->bad_messages++;
        return;
    }
    member->estimated_step = message->step;
    if (job->plan->policy.replan && switch_is_quiet(job) &&
        message->step > job->figures.measure->decided_step && all_told(job, message->step)) {
        replan_decide(job, message->step);
    }
}
