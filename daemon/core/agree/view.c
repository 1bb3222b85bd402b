/*
 * Views: the nodes that take part, agreed by all of them.
 *
 * The happy path: every node whose ranks have committed sends a join to all peers. When the joins
 * that a node has seen name every rank, one of them is the coordinator: the lowest of those that
 * have been in the job longest. It proposes a view with a number higher than any before (prepare).
 * The others stop starting rounds, finish their computes, and answer with the rounds that they have
 * delivered (state). From all answers the coordinator makes the commit. Rounds that any node
 * delivered are completed everywhere from its copy, and all others are retried. A first view and
 * one after a restart go the same way.
 *
 * What can go wrong:
 * - A daemon restarts: its join carries a new incarnation, so a new view is proposed. The link has
 *   dropped all messages to the old one.
 * - The coordinator restarts: it learns the highest view number from the joins and answers, and
 *   begins anew with a higher one. Nodes ignore a commit with a lower number.
 * - Nodes disagree (world size, policy, tensors, a rank twice), or residuals are gone: the job
 *   fails everywhere with a sentence that names the tensor, rank or node.
 * - A rank or node never comes: the job's time limits end the wait.
 * - A node is lost for good: shrink.c tells how the others go on, and job/views.h who may.
 */
#include "daemon/core/agree/view.h"

#include <stdlib.h>

#include "daemon/compute/comeback.h"
#include "daemon/compute/grow.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/plan_life.h"
#include "daemon/compute/planning.h"
#include "daemon/compute/results.h"
#include "daemon/compute/round_memory.h"
#include "daemon/compute/shrink.h"
#include "daemon/core/agree/batch.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/agree/fetch.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/frame.h"
#include "daemon/core/round.h"
#include "daemon/core/split.h"
#include "daemon/core/step.h"
#include "daemon/job/absent.h"
#include "daemon/job/actions.h"
#include "daemon/job/declare.h"
#include "daemon/job/due.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/loss.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/notes.h"
#include "daemon/job/peer.h"
#include "daemon/job/ranks.h"
#include "daemon/job/store.h"
#include "daemon/job/views_peer.h"

static void freeze(struct job *job)
{
    for (uint32_t r = 0; job->plan->round != NULL && r < step_rounds(job); r++) {
        round_freeze(&job->plan->round[r]);
    }
    if (job->plan->round != NULL) {
        round_freeze(&job->op.round);
    }
}

/* Answers that this number, or a higher one, is promised already. */
static void view_refuse(struct job *job, uint16_t from)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;

    state.view = job->agreement.promised;
    state.refused = true;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    peer_send(job, from, &message);
}

/* Answers that the proposal has too few members of some view. A node that is in no view yet forgets
 * the members of the proposal. */
static void view_outvote(struct job *job, uint16_t from, uint32_t view)
{
    if (job->machine.state == JOB_FORMING) {
        membership_free(&job->agreement.members);
    }
    if (from == job->core->config.node) {
        job->agreement.proposed = 0;
    } else {
        views_refuse(job, from, view);
    }
}

/* Notes the members of the proposal. Refuses it if the views that this node knows or promised do
 * not allow it. False if it was refused. Also false without memory, and then the job has failed. */
static bool view_note_members(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    struct views *views = job->agreement.views;
    struct membership members;

    if (!views_hear_proposer(job, prepare)) {
        job->advance.regroup |=
            from == job->core->config.node; /* its store knows more than it did */
        view_outvote(job, from, prepare->view);
        return false;
    }
    if (job->view != 0 && views_leave_out(views, job->core->config.node)) {
        views_left_out(job);
        return false;
    }
    if (membership_begin(&members, job->core->config.node, prepare->n_members) != ADTOPK_OK) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for view %u", prepare->view);
        return false;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        const uint16_t node = (uint16_t)prepare->members[i];
        membership_add(&members, node, prepare->incarnations[i], prepare->jobs[i],
            prepare->ranks[i], views_since(views, node));
    }
    membership_break_ties(&members, (int64_t)prepare->tie_breaker - 1);
    if (!views_allow(views, &members) || !views_promise(views, &members, prepare->view)) {
        membership_free(&members);
        view_outvote(job, from, prepare->view);
        return false;
    }
    membership_replace(&job->agreement.members, &members);
    return true;
}

/* Opens the store, which may know more of earlier views. False: it cannot, and the job fails. */
static bool view_open_store(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    struct error error;

    if (!view_note_members(job, from, prepare) || !grow_drop_late(job)) {
        return false;
    }
    comeback_hear(job, prepare);
    if (layout_store(job, &error) != ADTOPK_OK || plan_begin(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return false;
    }
    job->agreement.promised =
        job->store->view > job->agreement.promised ? job->store->view : job->agreement.promised;
    return loss_expect(job);
}

bool view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    const bool own = from == job->core->config.node;
    struct error error;

    if (!views_prepare_is_valid(job, from, prepare)) {
        job->core->bad_messages++;
        return false;
    }
    if (job->store == NULL && !view_open_store(job, from, prepare)) {
        return false;
    }
    if (prepare->view <= job->agreement.promised) {
        if (own) {
            coordinate_above(
                job, job->agreement.promised); /* a restarted coordinator finds more in its store */
        } else {
            view_refuse(job, from);
        }
        return false;
    }
    if (!view_note_members(job, from, prepare)) {
        return false;
    }
    job->agreement.proposed = own ? job->agreement.proposed : 0; /* another proposal replaces it */
    job->agreement.promised = prepare->view;
    job->store->view = prepare->view;
    job->agreement.owes_state = true;
    fetch_drop(job);
    job->agreement.run = prepare->run;
    job_note_run(job);
    if (job->machine.state == JOB_ACTIVE) {
        job->waits.forming_since_us = job->core->now_us;
    }
    machine_fire(&job->machine, JOB_ON_PREPARE, JOB_PREPARED);
    freeze(job);
    if (job->view == 0 && job->layout.batch[0].results != NULL &&
        results_begin(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
    }
    return !job_ended(job);
}

/* The open step's rounds that are delivered here. Returns their number. */
static uint32_t delivered_rounds(const struct job *job, uint32_t *list)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < step_rounds(job); r++) {
        if (step_round_active(job, &job->plan->round[r]) && round_delivered(&job->plan->round[r])) {
            list[count++] = r;
        }
    }
    return count;
}

/* Sends this node's state to the coordinator, which may be itself. */
static void answer(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    Adtopk__PeerPolicy policy;
    uint32_t *list = malloc((job->plan->rounds + job->plan->buckets) * sizeof(*list));
    uint64_t *step = malloc(job->plan->buckets * sizeof(*step));

    job->agreement.owes_state = false;
    if (list == NULL || step == NULL) {
        free(list);
        free(step);
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the state of job '%s'", job->key.name);
        return;
    }
    state.view = job->agreement.promised;
    state.steps_done = job->store->steps_done;
    state.ops_done = job->store->ops_done;
    state.fresh = job->layout.fresh || job->run.id == 0; /* its store may be of a time before */
    state.batches = job->batches;
    due_tell(job, &state);
    state.delivered = list;
    state.n_delivered = delivered_rounds(job, list);
    if (job->plan->change.version > 0) {
        switch_fill(job->plan, &policy);
        state.policy = &policy;
    }
    state.held = job->switching.machine.state == SWITCH_HELD && !job->switching.next->unreserved
                     ? job->switching.next->change.version
                     : 0;
    state.split = list + job->plan->rounds;
    state.split_step = step;
    state.n_split = state.n_split_step = split_list(job, state.split, step);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    if (!grow_tell(job, &state)) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the state of job '%s'", job->key.name);
    } else if (!peer_send_coordinator(job, &job->agreement.members, &message)) {
        coordinate_state(job, job->core->config.node, &state);
    }
    free(state.newcomer.data);
    free(list);
    free(step);
}

/* Whether this node can answer a prepare. Nothing may compute, so that the state stays. This node
 * must have each member's join, of the same daemon and with the same ranks as the coordinator has.
 * So no frame goes to an old daemon or comes from a stranger, and all know of the same GPUs. */
static bool can_answer(struct job *job)
{
    if (job->advance.computing > 0 || comeback_settle(job)) {
        return false;
    }
    for (unsigned i = 0; i < job->agreement.members.nodes; i++) {
        const struct member *member = members_find(job, job->agreement.members.node[i]);
        if (member == NULL || member->incarnation != job->agreement.members.incarnation[i] ||
            member->job != job->agreement.members.job[i] ||
            member->ranks != job->agreement.members.ranks[i]) {
            return false;
        }
    }
    return true;
}

bool view_try_answer(struct job *job)
{
    if (!job->agreement.owes_state || !can_answer(job)) {
        return false;
    }
    answer(job);
    return true;
}

/* Takes over the members that were prepared. False: the job has failed. */
static bool take_members(struct job *job, const Adtopk__PeerCommit *commit)
{
    const struct membership *members = &job->agreement.members;
    struct declared declared = *views_declared(job->agreement.views);

    if (!declare_returns(job, commit, &declared) || !grow_take(job, commit)) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL,
            "view %u does not say what nodes that join must know", commit->view);
        return false;
    }
    absent_note(job, commit);
    declare_lost(job, &declared);
    views_take(job->agreement.views, members, commit->view, &declared);
    if (membership_same_nodes(&job->in_force, members)) {
        membership_replace(&job->in_force, &job->agreement.members);
    } else {
        shrink_take(job);
    }
    grow_count(job);
    loss_begin_anew(job);
    return !job_ended(job);
}

bool view_catch_up(struct job *job)
{
    if (!job->advance.opened || job->step.machine.state == STEP_IDLE) {
        return false;
    }
    job->advance.opened = false;
    split_take_early(job);
    if (!job_ended(job) && job->machine.state == JOB_ACTIVE) {
        frame_release_early(job);
    }
    for (unsigned r = 0; r < job->ranks && !job_ended(job); r++) {
        split_catch_up(job->rank[r]);
    }
    if (!job_ended(job)) {
        split_repeat(job);
        round_try(&job->op.round);
    }
    if (!job_ended(job)) {
        step_start(job);
    }
    return true;
}

/* The view is in force: opens the step, unless that has to wait for a switch of the policy. */
static void begin(struct job *job, const Adtopk__PeerCommit *commit)
{
    bool moving = switch_commit(job, commit->policy);

    if (job_ended(job)) {
        return;
    }
    if (!moving && job->step.machine.state == STEP_IDLE) {
        step_open(job);
    }
    fetch_answer(job);
    fetch_delivered(job, commit);
    if (moving) {
        round_try(&job->op.round);
    }
    job->advance.opened = true;
}

static void view_ready_rank(struct rank *rank)
{
    const struct job *job = rank->job;

    for (rank->index = 0; job->rank[rank->index] != rank; rank->index++) {
    }
    if (rank->machine.state == RANK_MAPPED && !newcomers_watch(job)) {
        rank_make_ready(rank);
    }
}

bool view_ready_newcomer(struct job *job)
{
    if (job->view == 0 || job->step.machine.state != STEP_OPEN || newcomers_watch(job) ||
        job->rank[0]->machine.state != RANK_MAPPED ||
        job->rank[0]->submitted > job->store->ops_done ||
        job->op.round.machine.state != ROUND_COLLECT) {
        return false;
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        view_ready_rank(job->rank[r]);
    }
    return true;
}

/* Whether this is the commit that the job waits for. A proposal may have been replaced by a higher
 * one. */
static bool view_awaits(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit)
{
    if (commit->view < job->agreement.promised && from != job->core->config.node) {
        view_refuse(job, from); /* it must propose again, since this node promised another one */
        return false;
    }
    return job->machine.state == JOB_PREPARED && job->agreement.members.nodes > 0 &&
           from == membership_coordinator(&job->agreement.members) &&
           commit->view == job->agreement.promised && !job->agreement.owes_state;
}

/* The view and the run are in force from now on, and what belongs to earlier views goes. */
static void view_put_in_force(struct job *job, uint32_t view)
{
    job->view = view;
    job->run.id = job->agreement.run;
    job_note_run(job);
    store_publish64(&job->store->run, job->run.id);
    job->layout.fresh = false;
    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->anew = false;
    }
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        round_drop_parked(&job->plan->round[r], job->view, 0);
    }
    round_drop_parked(&job->op.round, job->view, 0);
}

/* A job begins. A launcher may have told the ranks of no other nodes: nothing else would say that
 * each node then trains alone. */
static void view_note_alone(const struct job *job)
{
    if (job->ranks == job->run.world_size && job->core->peers > 0 && job->store->steps_done == 0) {
        core_note(job->core,
            "job '%s' trains on this node alone: its world size is %u, and all of its ranks are "
            "here",
            job->key.name, job->run.world_size);
    }
}

static void view_begin_first(struct job *job)
{
    view_note_alone(job);
    batch_expect(job);
    for (unsigned r = 0; r < job->ranks; r++) {
        view_ready_rank(job->rank[r]);
    }
    round_open(&job->op.round);
    planning_begin(job);
    job->advance.regroup = true; /* the policy in the store may name another tie-breaker */
    newcomers_invite_all(job);   /* they joined when a daemon was there that has restarted */
}

void view_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit)
{
    const bool first = job->view == 0;
    struct error error;

    if (!view_awaits(job, from, commit) || !take_members(job, commit)) {
        return;
    }
    if (first && plan_check(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return;
    }
    view_put_in_force(job, commit->view);
    if (commit->split_policy == job->plan->change.version) {
        split_learn(job, commit->split, commit->n_split, commit->split_step, commit->n_split_step);
    } else if (newcomers_watch(job) && !split_learn_later(job, commit)) {
        return;
    }
    machine_fire(&job->machine, JOB_ON_COMMIT, JOB_ACTIVE);
    due_take(job, commit->checkpoint);
    if (first) {
        view_begin_first(job);
    }
    if (commit->batches > job->batches && !batch_take(job, commit)) {
        return;
    }
    begin(job, commit);
}
