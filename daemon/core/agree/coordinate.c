/*
 * The coordinator of a view: of the nodes that have been in the job longest, the lowest
 * (membership_coordinator).
 *
 * The happy path: it proposes a number above all that were promised, collects every member's state,
 * and decides. Rounds that some node delivered are completed everywhere from that node's copy. All
 * others are retried. A bucket that some node split is split for all. If a member restarts
 * meanwhile, or has promised a higher number, the coordinator begins again.
 */
#include "daemon/core/agree/coordinate.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/grow.h"
#include "daemon/core/agree/batch.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/core/agree/view.h"
#include "daemon/core/split.h"
#include "daemon/job/absent.h"
#include "daemon/job/decision.h"
#include "daemon/job/due.h"
#include "daemon/job/hash.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/loss.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/job/store.h"
#include "daemon/job/views_peer.h"

/* The number of the run that a first view begins. No other daemon, and no other start of this one,
 * makes the same number, and nobody can foresee it. If some member returns to a run, that run keeps
 * its number. */
static uint64_t coordinate_run(const struct job *job)
{
    uint64_t run = job->run.id;

    for (unsigned i = 0; run == 0 && i < job->members; i++) {
        run = member_has_joined(job->member[i]) ? job->member[i]->run : 0;
    }
    if (run == 0) {
        const struct core_config *config = &job->core->config;
        run = hash_mix(hash_mix(config->secret ^ config->incarnation) ^ hash_mix(job->number));
    }
    return run != 0 ? run : 1;
}

/* Fills a membership into a prepare; false without memory. */
static bool coordinate_fill(const struct membership *members, Adtopk__PeerPrepare *prepare)
{
    prepare->members = malloc(members->nodes * sizeof(*prepare->members));
    for (unsigned i = 0; prepare->members != NULL && i < members->nodes; i++) {
        prepare->members[i] = members->node[i];
    }
    prepare->incarnations = members->incarnation;
    prepare->jobs = members->job;
    prepare->ranks = members->ranks;
    prepare->n_members = prepare->n_incarnations = prepare->n_jobs = members->nodes;
    prepare->n_ranks = members->nodes;
    prepare->tie_breaker = members->tie_breaker + 1u;
    return prepare->members != NULL;
}

static void coordinate_propose(struct job *job, uint32_t view)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;
    struct membership joined;

    prepare.view = view;
    prepare.run = coordinate_run(job);
    prepare.known = views_known(job->agreement.views)->nodes > 0 ? &known : NULL;
    if (members_joined(job, &joined) != ADTOPK_OK || !coordinate_fill(&joined, &prepare) ||
        !views_fill_known(job->agreement.views, &known) || !absent_fill(job, &joined, &prepare)) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory to propose view %u", view);
    } else {
        for (unsigned i = 0; i < job->members; i++) {
            job->member[i]->answer.answered = false;
        }
        job->agreement.proposed = view;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
        message.prepare = &prepare;
        if (view_prepare(job, job->core->config.node, &prepare)) {
            peer_send_all(job, &message);
        }
    }
    free(prepare.members);
    absent_drop_message(&prepare);
    views_drop_message(&known);
    membership_free(&joined);
}

/* Whether other nodes are there than in the view in force, or in the one that is proposed, or
 * another one is to break ties. */
static bool coordinate_differs(const struct job *job, const struct membership *joined)
{
    return !membership_same_nodes(joined, &job->in_force) ||
           joined->tie_breaker != job->in_force.tie_breaker ||
           (job->machine.state == JOB_PREPARED &&
               !membership_same_nodes(joined, &job->agreement.members));
}

/* Proposes a view if this node must coordinate it and there is reason for a new one. There is none
 * if a proposal to the same members waits for answers: another proposal would discard the answers
 * on their way. A coordinator that only watches the open step waits: all of its members do, and the
 * lost nodes alone have parameters. */
void coordinate(struct job *job)
{
    uint32_t highest = job->agreement.promised > job->agreement.proposed ? job->agreement.promised
                                                                         : job->agreement.proposed;
    bool reason = job->view == 0;
    struct membership joined;
    bool proposed;

    if (job_ended(job) || newcomers_have_self(job) || newcomers_watch(job) ||
        !members_complete(job)) {
        return; /* a job has ended if there was no memory to send its join */
    }
    if (members_joined(job, &joined) != ADTOPK_OK) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the nodes of job '%s'", job->key.name);
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_has_joined(member)) {
            highest = member->view > highest ? member->view : highest;
            reason = reason || member->anew;
        }
    }
    reason = (reason || batch_is_ready(job) || coordinate_differs(job, &joined)) &&
             membership_coordinates(&joined) && views_allow(job->agreement.views, &joined);
    proposed = job->agreement.proposed != 0 && membership_equal(&joined, &job->agreement.members);
    membership_free(&joined);
    if (reason && (highest > job->agreement.proposed || !proposed)) {
        coordinate_propose(job, highest + 1);
    }
}

bool coordinate_regroup(struct job *job)
{
    if (!job->advance.regroup) {
        return false;
    }
    job->advance.regroup = false;
    coordinate(job);
    return true;
}

bool coordinate_anew(struct job *job)
{
    const bool held = job->advance.all_hold;
    const bool asked = job->agreement.due.asked && switch_is_quiet(job) && !newcomers_watch(job);

    job->advance.all_hold = false;
    if ((!held && !asked) || !members_complete(job)) {
        return held; /* a member has restarted: another view follows */
    }
    job->agreement.due.asked = false;
    coordinate_propose(job, job->agreement.promised + 1);
    return true;
}

void coordinate_above(struct job *job, uint32_t view)
{
    coordinate_propose(job, view + 1);
}

/* Whether every member holds for the next policy. */
static bool all_hold(const struct job *job)
{
    if (job->switching.next == NULL) {
        return false;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_was_there(job, member) &&
            member->answer.holds != job->switching.next->change.version) {
            return false;
        }
    }
    return true;
}

/* Fills in the policy from now on: the next one if all hold for it. Otherwise it is the newest one
 * in force on any node, because some nodes may have got a commit that others did not. */
static void fill_policy(const struct job *job, Adtopk__PeerPolicy *policy)
{
    uint32_t newest = job->plan->change.version;

    switch_fill(all_hold(job) ? job->switching.next : job->plan, policy);
    for (unsigned i = 0; i < job->members; i++) {
        const struct store_policy *newer = job->member[i]->answer.newer;
        if (newer != NULL && newer->change.version > newest) {
            newest = newer->change.version;
            switch_fill_change(&newer->change, newer->text, policy);
        }
    }
}

static void send_commit(struct job *job, uint64_t steps, const struct decision *decision)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    Adtopk__PeerPolicy policy;
    const bool batch = batch_is_ready(job);
    char *text = batch ? malloc(POLICY_TEXT_SIZE) : NULL;
    struct error error;
    uint32_t *bucket = malloc((job->plan->buckets + job->members) * sizeof(*bucket));
    uint64_t *step = malloc(job->plan->buckets * sizeof(*step));

    fill_policy(job, &policy);
    if (bucket == NULL || step == NULL || (batch && text == NULL)) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->agreement.promised);
    } else if (batch && batch_policy(job, &policy, text, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
    } else {
        commit.batches = job->batches + (batch || batch_is_known(job) ? 1 : 0);
        commit.policy = policy.version > 0 ? &policy : NULL;
        commit.split_policy = job->plan->change.version;
        commit.view = job->agreement.proposed;
        commit.checkpoint = due_decide(job, steps);
        commit.delivered = decision->list;
        commit.n_delivered = decision->count;
        commit.split = bucket;
        commit.split_step = step;
        commit.n_split = commit.n_split_step = split_list(job, bucket, step);
        grow_decide(job, steps, bucket + job->plan->buckets, &commit);
        job->agreement.proposed = 0;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
        message.commit = &commit;
        peer_send_all(job, &message);
        view_commit(job, job->core->config.node, &commit);
    }
    free(text);
    free(bucket);
    free(step);
}

/* Makes the commit, when all answers are in. */
static void conclude(struct job *job)
{
    struct decision decision;
    uint64_t steps, ops;

    if (!decision_is_possible(job, &steps, &ops)) {
        return;
    }
    if (decision_make(job, steps, ops, &decision) != ADTOPK_OK) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->agreement.proposed);
    } else {
        send_commit(job, steps, &decision);
    }
    decision_free(&decision);
}

/* Keeps the policy of an answer if it is newer than this node's. */
static enum adtopk_status note_policy(
    const struct job *job, struct member *member, const Adtopk__PeerPolicy *policy)
{
    free(member->answer.newer);
    member->answer.newer = NULL;
    if (policy == NULL || policy->version <= job->plan->change.version) {
        return ADTOPK_OK;
    }
    member->answer.newer = calloc(1, sizeof(*member->answer.newer));
    if (member->answer.newer == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    member->answer.newer->change = switch_change(policy);
    (void)strcpy(member->answer.newer->text, policy->text);
    return ADTOPK_OK;
}

static enum adtopk_status note_state(struct member *member, const Adtopk__PeerState *state)
{
    uint32_t *delivered = malloc(state->n_delivered * sizeof(*delivered) + 1);

    if (delivered == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (state->n_delivered > 0) {
        (void)memcpy(delivered, state->delivered, state->n_delivered * sizeof(*delivered));
    }
    free(member->answer.delivered);
    member->answer.delivered = delivered;
    member->answer.delivered_count = (uint32_t)state->n_delivered;
    member->answer.answered = true;
    member->answer.fresh = state->fresh;
    member->answer.holds = state->held;
    member->answer.batches = state->batches;
    member->policy = state->policy != NULL ? state->policy->version : 0;
    member->answer.steps_done = state->steps_done;
    member->answer.ops_done = state->ops_done;
    return ADTOPK_OK;
}

static bool state_is_valid(const struct job *job, const Adtopk__PeerState *state)
{
    bool valid = state->n_delivered <= job->plan->rounds &&
                 (state->policy == NULL || (strlen(state->policy->text) < POLICY_TEXT_SIZE &&
                                               state->policy->version < UINT32_MAX));

    for (size_t i = 0; valid && i < state->n_delivered; i++) {
        valid = state->delivered[i] < job->plan->rounds;
    }
    return valid;
}

/* A member has promised this view, so another one must have a higher number. */
static void coordinate_again(struct job *job, struct member *member, uint32_t view)
{
    member->view = view;
    member->anew = true;
    job->agreement.proposed = 0;
    coordinate(job);
}

/* A member knows a later view, or promised one, which does not allow the proposal. */
static void coordinate_outvoted(struct job *job, const Adtopk__PeerState *state)
{
    job->agreement.proposed = 0;
    if (!views_hear_refusal(job->agreement.views, state)) {
        return;
    }
    if (views_place(job->agreement.views, job->core->config.node) < 0) {
        views_left_out(job);
        return;
    }
    if (loss_expect(job)) {
        coordinate(job);
    }
}

/* A member's state, for the view that is proposed, or its refusal of that. */
static void coordinate_answered(
    struct job *job, struct member *member, const Adtopk__PeerState *state)
{
    if (!state_is_valid(job, state) || !due_hear(member, state)) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL,
            "node %u answered with rounds, a policy or a checkpoint that cannot be", member->node);
        return;
    }
    if (state->refused || state->view > job->agreement.proposed) {
        coordinate_again(job, member, state->view);
        return;
    }
    if (note_state(member, state) != ADTOPK_OK || !grow_hear(member, state) ||
        note_policy(job, member, state->policy) != ADTOPK_OK) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the state of node %u", member->node);
        return;
    }
    if ((state->policy != NULL ? state->policy->version : 0) == job->plan->change.version) {
        split_learn(job, state->split, state->n_split, state->split_step, state->n_split_step);
    }
    for (unsigned i = 0; i < job->members; i++) {
        if (member_is_proposed(job, job->member[i]) && !job->member[i]->answer.answered) {
            return;
        }
    }
    conclude(job);
}

void coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state)
{
    struct member *member = members_find(job, from);

    if (state->view > (uint64_t)job->agreement.promised + VIEW_JUMP) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL, "node %u names view %u, and this is view %u", from,
            state->view, job->view);
    } else if (member != NULL && job->agreement.proposed == 0) {
        if (state->refused && state->view > job->view) {
            coordinate_again(job, member, state->view); /* it could not take the commit */
        }
    } else if (member != NULL && member_has_joined(member) &&
               state->view >= job->agreement.proposed) { /* else that proposal is over */
        if (state->outvoted) {
            coordinate_outvoted(job, state);
        } else {
            coordinate_answered(job, member, state);
        }
    }
}
