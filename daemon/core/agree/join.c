/*
 * Joins: the nodes that have ranks of a job, and whether they agree on the job.
 *
 * The happy path: a local rank has mapped its arena. This node makes its own entry anew and sends
 * it to every peer, and each peer answers with its entry. When the entries name every rank once,
 * and all describe the same tensors and policy, the coordinator among them proposes a view
 * (coordinate.c).
 *
 * A peer that restarts invalidates its entry until it joins again. If nodes disagree, or a rank
 * runs twice, the job fails everywhere.
 */
#include "daemon/core/agree/join.h"

#include <string.h>

#include "daemon/compute/launch.h"
#include "daemon/compute/recall.h"
#include "daemon/core/agree/batch.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/job.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/loss.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/job/register.h"
#include "daemon/job/views_peer.h"

/* Compares a member's join with the own one. False: the job fails, or goes on without it. */
static bool agrees(struct job *job, struct member *other)
{
    struct error error;

    if (members_compare(job, other, &error) == ADTOPK_OK) {
        return true;
    }
    if (newcomers_have(job, other->node)) {
        newcomers_refuse(job, other->node, &error);
    } else if (!newcomers_forget(job, other->node)) {
        newcomers_blame(job, other->node, &error, true);
    }
    return false;
}

/* Compares all joins that have come. False: the job has failed. */
static bool agrees_with_all(struct job *job)
{
    /* Backwards, since one that differs may be dropped. */
    for (unsigned i = job->members; i-- > 0 && !job_ended(job);) {
        struct member *member = job->member[i];
        if (member->node != job->core->config.node && member->incarnation != 0) {
            (void)agrees(job, member);
        }
    }
    return !job_ended(job);
}

/* Notes this node's own ranks and tensors as if they had come in a join. */
static enum adtopk_status note_self(struct job *job)
{
    struct member *self = members_add(job, job->core->config.node);
    const unsigned batches = batch_mapped(job);
    const uint32_t tensors = register_end(job, batches - 1);

    if (self == NULL || member_renew(self, job->ranks, tensors) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    self->ranks = 0;
    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->machine.state >= RANK_MAPPED) {
            self->rank[self->ranks++] = job->rank[r]->number;
        }
    }
    self->batches = batches;
    for (uint32_t t = 0; t < tensors; t++) {
        self->tensor[t] = register_at(job, t)->hash;
    }
    self->incarnation = job->core->config.incarnation;
    self->job = job->number;
    self->run = job->run.id;
    self->world_size = job->run.world_size;
    self->policy_hash = job->history.brought;
    self->exchanges = EXCHANGE_VERSION;
    self->carrier.version = job->core->config.carrier_version;
    self->carrier.devices = launch_devices(job);
    self->anew = self->anew || job->view == 0;
    return ADTOPK_OK;
}

/* Waits for the members of the known view. False: the job has failed, or this node is none. */
static bool join_expect(struct job *job)
{
    if (views_leave_out(job->agreement.views, job->core->config.node)) {
        views_left_out(job);
        return false;
    }
    return loss_expect(job);
}

/* Ranks return to a run: the store knows who was in its last view. False as above. */
static bool join_recall(struct job *job)
{
    if (job->view != 0 || job->run.id == 0) {
        return true;
    }
    recall_views(job);
    return join_expect(job);
}

void join_announce(struct job *job)
{
    if (!join_recall(job)) {
        return;
    }
    if (note_self(job) != ADTOPK_OK) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
        return;
    }
    if (!agrees_with_all(job)) {
        return;
    }
    for (unsigned i = 0; i < job->core->peers; i++) {
        peer_send_join(job, job->core->peer[i].node, true);
    }
    coordinate(job);
}

void join_peer_up(struct core *core, uint16_t node)
{
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        struct member *member = members_find(job, node);
        if (job_ended(job)) {
            continue;
        }
        if (member != NULL && member->incarnation != 0) {
            member->incarnation = 0; /* it has restarted: the join is of the daemon before */
            job_peer_lost(job, node, PEER_RESTARTED);
        }
        member = members_find(job, node); /* the job may go on without it by now */
        if (!job_ended(job) && members_self(job) != NULL &&
            (member == NULL || !member->loss.gone)) {
            peer_send_join(job, node, true);
        }
    }
}

/* Whether the node, whose daemon lives on, has opened the job's key again. Or its daemon has
 * restarted, and its ranks do not return to the run. */
static bool join_begins_again(
    const struct job *job, const struct member *member, const Adtopk__PeerAbout *about)
{
    return member->incarnation != 0 ? job->in_force.nodes > 0 && member->job != about->sender_job
                                    : job->run.id != 0 && about->run == 0;
}

/* Whether this node would have to return to the join's run, and no store outlives its daemon. */
static bool join_claims_run(const struct job *job, const Adtopk__PeerAbout *about)
{
    return about->run != 0 && job->run.id == 0 && job->agreement.run != about->run &&
           job->core->config.memory.has_store == NULL;
}

/* A node that was lost can join when the job goes on without it: newcomers_invite_all(). */
static void join_refuse(struct job *job, uint16_t from, const Adtopk__PeerAbout *about)
{
    struct error error;

    if (job->plan->policy.grow) {
        return;
    }
    (void)error_set(&error, ADTOPK_ERR_STATE,
        "job '%s', run '%s', runs without ranks on node %u; use another run id", job->key.name,
        job->key.run_id, from);
    peer_refuse(job->core, from, about, &error,
        job->run.ranks < job->run.world_size ? REFUSE_RECEIVER : REFUSE_JOB);
}

/* Whether the job can take the join. Otherwise refuses the sender, or fails the job. */
static bool join_fits(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join)
{
    const struct member *member = members_find(job, from);
    struct error error;

    if ((job->view != 0 && views_leave_out(job->agreement.views, from)) ||
        (member != NULL && member->loss.gone)) {
        join_refuse(job, from, about);
        return false;
    }
    if (!join->grows && join_claims_run(job, about)) {
        if (newcomers_have_self(job) && !newcomers_wait_with(job, from)) {
            return false; /* its daemon has restarted: it will invite this node again */
        }
        (void)error_set(&error, ADTOPK_ERR_STATE,
            "job '%s', run '%s', begins on node %u, which cannot return to an earlier run of it; "
            "use another run id",
            job->key.name, job->key.run_id, job->core->config.node);
        peer_refuse(job->core, from, about, &error, REFUSE_JOB);
        return false;
    }
    if (member != NULL && join_begins_again(job, member, about)) {
        const bool lives = member->incarnation != 0;
        const bool dropped = !member->left && loss_for_ever(job, from);
        if (dropped) {
            join_refuse(job, from, about);
        } else if (lives && !member->left) {
            job_fail_with(
                job, ADTOPK_ERR_PEER, "node %u began another run of job '%s'", from, job->key.name);
        }
        if (dropped || lives) {
            return false; /* otherwise the coordinator finds out what is missing there */
        }
    }
    if (about->run != 0 && job->run.id != 0 && about->run != job->run.id) {
        job_fail_with(job, ADTOPK_ERR_MISMATCH,
            "node %u returns to another run of job '%s' than node %u", from, job->key.name,
            job->core->config.node);
        return false;
    }
    return true;
}

/* A restarted node hears who is in the view. False: the job has failed, or it is not in it. */
static bool join_learn_view(struct job *job, const Adtopk__PeerJoin *join)
{
    return job->view != 0 || job->run.id == 0 ||
           !views_hear_known(job->agreement.views, join->known) || join_expect(job);
}

/* Notes the join of a member, or of a newcomer. False: it cannot be one, or the job has failed. */
static bool join_note(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join)
{
    struct member *member = members_add(job, from);

    if (member == NULL ||
        member_fill(member, about, join, links_incarnation(job->core->links, from)) != ADTOPK_OK) {
        job_fail_with(
            job, ADTOPK_ERR_MEMORY, "no memory for node %u of job '%s'", from, job->key.name);
        return false;
    }
    loss_joined(job, member);
    return true;
}

/* A node wants to join while the job trains. */
static void join_newcomer(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join)
{
    struct error error;

    if (newcomers_check(job, from, about, join, &error) != ADTOPK_OK) {
        if (about->run == 0) {
            peer_send_join(job, from, false); /* it believes only nodes that it knows to train */
        }
        peer_refuse(job->core, from, about, &error, REFUSE_RECEIVER);
    } else if (join_note(job, from, about, join) && agrees(job, members_find(job, from))) {
        if (join->reply) {
            peer_send_join(job, from, false);
        }
        newcomers_note(job, members_find(job, from));
    }
}

void join_message(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join)
{
    uint64_t incarnation = links_incarnation(job->core->links, from);
    struct member *member;

    if (join->n_ranks == 0 || join->n_ranks > CORE_MAX_WORLD || join->world_size == 0 ||
        join->n_tensors > CORE_MAX_TENSORS || about->sender_job == 0) {
        job->core->bad_messages++;
        return;
    }
    if (newcomers_are_welcome(job) && newcomers_have(job, from)) {
        join_newcomer(job, from, about, join);
        return;
    }
    if (!join_fits(job, from, about, join)) {
        return;
    }
    member = members_find(job, from);
    if (member != NULL && join->batches < job->batches &&
        (member->incarnation != incarnation || member->job != about->sender_job)) {
        job_fail_with(job, ADTOPK_ERR_LOST,
            "node %u came back without the tensors that were registered later", from);
        return;
    }
    if (!join_note(job, from, about, join) || !join_learn_view(job, join)) {
        return;
    }
    member = members_find(job, from);
    if (job->view != 0 && member->batches > job->batches) {
        job_note_since(job, &job->registering.since_us);
    }
    if (members_self(job) == NULL || !agrees(job, member)) {
        return; /* compared when this node's own ranks have committed */
    }
    if (join->reply) {
        peer_send_join(job, from, false);
    }
    coordinate(job);
}
