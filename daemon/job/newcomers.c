#include "daemon/job/newcomers.h"

#include "daemon/job/absent.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/peer.h"

#define NEWCOMERS_HEAR_US 1000000u /* in which a node hears that others train, if they do */

static bool newcomers_may_come(const struct job *job)
{
    return !job_ended(job) && job->plan->policy.grow &&
           job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK;
}

bool newcomers_are_welcome(const struct job *job)
{
    return job->view != 0 && newcomers_may_come(job);
}

bool newcomers_have(const struct job *job, uint16_t node)
{
    return views_leave_out(job->agreement.views, node) &&
           membership_index(&job->in_force, node) < 0;
}

bool newcomers_are_known(const struct job *job, uint16_t node)
{
    return newcomers_are_welcome(job) && newcomers_have(job, node) &&
           members_find(job, node) != NULL;
}

/* Members of a run that is to take this node in, also while their daemons restart; left: those
 * whose ranks have left, too. */
static unsigned newcomers_hosts(const struct job *job, bool left)
{
    unsigned hosts = 0;

    for (unsigned i = 0; job->view == 0 && job->run.id == 0 && i < job->members; i++) {
        const struct member *member = job->member[i];
        hosts += member->loss.trains && (left || !member->left);
    }
    return hosts;
}

bool newcomers_have_self(const struct job *job)
{
    return newcomers_hosts(job, true) > 0;
}

struct policy_limit newcomers_patience(const struct job *job)
{
    const struct policy *policy = &job->plan->policy;
    struct policy_limit least = {"join_timeout", policy->join_timeout_us}, longer = least;

    if (newcomers_have_self(job)) {
        longer = (struct policy_limit){"push_timeout", policy->push_timeout_us};
    } else if (job->run.id != 0) {
        longer = (struct policy_limit){"wait_limit", policy->wait_limit_us};
    }
    return longer.us > least.us ? longer : least;
}

void newcomers_peer_left(struct job *job)
{
    if (newcomers_have_self(job) && newcomers_hosts(job, false) == 0) {
        job_fail_with(job, ADTOPK_ERR_PEER, "job '%s' ended before it took node %u in",
            job->key.name, job->core->config.node);
    }
}

/* Whether the ranks of a node are taken: it is a member, or a newcomer that is there. */
static bool newcomers_count(const struct job *job, const struct member *member)
{
    return member_has_joined(member) || !newcomers_have(job, member->node);
}

/* Whether the other newcomer is there. The coordinator alone asks: others may have heard first of
 * another one, and would refuse the one that it takes. */
static bool newcomers_were_before(const struct job *job, const struct member *member)
{
    return newcomers_have(job, member->node) && member_has_joined(member) &&
           membership_coordinates(&job->in_force);
}

/* Whether the rank is on a member, or on a newcomer that came before. */
static bool newcomers_meet(const struct job *job, uint16_t node, uint32_t rank)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member->node != node && member_has_rank(member, rank) &&
            (!newcomers_have(job, member->node) || newcomers_were_before(job, member))) {
            return true;
        }
    }
    return false;
}

/* Nodes of the known view, newcomers that came before, and this one. */
static unsigned newcomers_nodes(const struct job *job, uint16_t node)
{
    unsigned nodes = views_known(job->agreement.views)->nodes + 1;

    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        nodes += member->node != node && newcomers_were_before(job, member);
    }
    return nodes;
}

static bool newcomers_share_rank(const struct member *one, const struct member *other)
{
    for (uint32_t r = 0; r < one->ranks; r++) {
        if (member_has_rank(other, one->rank[r])) {
            return true;
        }
    }
    return false;
}

bool newcomers_fit(const struct job *job, const struct member *newcomer)
{
    unsigned nodes = views_known(job->agreement.views)->nodes + 1;

    for (unsigned i = 0; job->member[i] != newcomer; i++) {
        const struct member *member = job->member[i];
        if (newcomers_have(job, member->node) && member_has_joined(member)) {
            nodes++;
            if (newcomers_share_rank(newcomer, member)) {
                return false;
            }
        }
    }
    return nodes <= job->agreement.views->founders;
}

static enum adtopk_status newcomers_check_ranks(
    const struct job *job, uint16_t node, const Adtopk__PeerJoin *join, struct error *err)
{
    for (size_t r = 0; r < join->n_ranks; r++) {
        if (join->ranks[r] >= job->run.world_size) {
            return error_set(err, ADTOPK_ERR_MISMATCH,
                "node %u has rank %u of job '%s', which has %u", node, join->ranks[r],
                job->key.name, job->run.world_size);
        }
        if (r > 0 && join->ranks[r] <= join->ranks[r - 1]) {
            return error_set(err, ADTOPK_ERR_MISMATCH,
                "node %u names rank %u of job '%s' after rank %u: ranks ascend", node,
                join->ranks[r], job->key.name, join->ranks[r - 1]);
        }
        if (newcomers_meet(job, node, join->ranks[r])) {
            return error_set(err, ADTOPK_ERR_MISMATCH,
                "rank %u of job '%s' trains on another node than %u: only ranks that were lost can "
                "join",
                join->ranks[r], job->key.name, node);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status newcomers_check(const struct job *job, uint16_t node,
    const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join, struct error *err)
{
    const uint32_t founders = job->agreement.views->founders;

    if (about->run != 0) {
        return error_set(err, ADTOPK_ERR_PEER,
            "the other nodes of job '%s' lost node %u and went on without it: start its ranks anew",
            job->key.name, node);
    }
    if (join->view > (uint64_t)job->agreement.promised + VIEW_JUMP) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "node %u names view %u, and this is view %u",
            node, join->view, job->view);
    }
    if (job->batches > 1 || job->registering.since_us != 0) {
        return error_set(err, ADTOPK_ERR_STATE,
            "job '%s' committed more tensors while it trained: no node can join it", job->key.name);
    }
    if (newcomers_nodes(job, node) > founders) {
        return error_set(err, ADTOPK_ERR_STATE,
            "job '%s' began with %u nodes, and has memory for no more", job->key.name, founders);
    }
    return newcomers_check_ranks(job, node, join, err);
}

void newcomers_note(struct job *job, const struct member *member)
{
    const struct membership *proposed = &job->agreement.members;
    const int at = membership_index(proposed, member->node);

    if (at < 0 || proposed->incarnation[at] != member->incarnation ||
        proposed->job[at] != member->job) {
        job->agreement.newcomers_us = job->core->now_us; /* otherwise others wait for it already */
    } else if (proposed->ranks[at] != member->ranks) {
        job_regroup(job); /* no member answers that proposal any more */
    }
    job->agreement.newcomers_taken = false;
    newcomers_look(job);
}

void newcomers_refuse(struct job *job, uint16_t node, const struct error *error)
{
    Adtopk__PeerAbout asked = ADTOPK__PEER_ABOUT__INIT;

    asked.owner = job->key.owner;
    asked.name = job->key.name;
    asked.run_id = job->key.run_id;
    asked.sender_job = members_find(job, node)->job;
    peer_refuse(job->core, node, &asked, error, REFUSE_RECEIVER);
    (void)newcomers_forget(job, node);
}

bool newcomers_doubt(const struct job *job)
{
    return job->view == 0 && job->run.id == 0 && !newcomers_have_self(job) &&
           newcomers_may_come(job) &&
           (job->ending.doubt_us == 0 || job->core->now_us < job->ending.doubt_us);
}

void newcomers_blame(struct job *job, uint16_t node, const struct error *error, bool tell_peers)
{
    if (!newcomers_doubt(job)) {
        job_fail(job, error, tell_peers);
        return;
    }
    if (job->ending.doubt_us == 0) {
        job->ending.doubt = *error;
        job->ending.doubt_us = job->core->now_us + NEWCOMERS_HEAR_US;
    }
    if (node != job->core->config.node) {
        members_drop(job, node);
    }
}

static void newcomers_judge(struct job *job)
{
    if (job_ended(job) || job->ending.doubt_us == 0 || job->core->now_us < job->ending.doubt_us) {
        return;
    }
    if (job->view == 0 && !newcomers_have_self(job)) {
        job_fail(job, &job->ending.doubt, true);
    } else {
        job->ending.doubt_us = 0;
    }
}

bool newcomers_wait_with(const struct job *job, uint16_t node)
{
    const struct member *member = members_find(job, node);

    return newcomers_have_self(job) && (member == NULL || !member->loss.trains);
}

bool newcomers_forget(struct job *job, uint16_t node)
{
    struct member *member = members_find(job, node);

    if (newcomers_wait_with(job, node)) {
        if (member != NULL && !member_is_proposed(job, member)) {
            members_drop(job, node);
        }
        return true; /* if it is proposed, the others propose again without it */
    }
    if (!newcomers_are_known(job, node)) {
        return false;
    }
    if (!member_is_proposed(job, member)) {
        members_drop(job, node);
        return true;
    }
    member->loss.since_us = job->core->now_us; /* its view may still come in force */
    member->loss.gone = member->loss.dropped = true;
    job_regroup(job);
    return true;
}

/* The ranks of members and newcomers. */
static uint32_t newcomers_ranks(const struct job *job)
{
    uint32_t ranks = 0;

    for (unsigned i = 0; i < job->members; i++) {
        ranks += newcomers_count(job, job->member[i]) ? job->member[i]->ranks : 0;
    }
    return ranks;
}

static uint64_t newcomers_due_us(const struct job *job)
{
    if (!newcomers_are_welcome(job) || job->agreement.newcomers_us == 0 || absent_in_step(job)) {
        return UINT64_MAX;
    }
    return newcomers_ranks(job) == job->run.world_size
               ? job->agreement.newcomers_us
               : job->agreement.newcomers_us + job->plan->policy.shrink_after_us;
}

bool newcomers_are_due(const struct job *job)
{
    return newcomers_due_us(job) <= job->core->now_us;
}

void newcomers_look(struct job *job)
{
    newcomers_judge(job);
    if (newcomers_are_due(job) && !job->agreement.newcomers_taken) {
        job->agreement.newcomers_taken = true;
        job_regroup(job);
    }
}

uint64_t newcomers_deadline(const struct job *job)
{
    if (newcomers_are_in_doubt(job)) {
        return job->ending.doubt_us;
    }
    return job->agreement.newcomers_taken ? UINT64_MAX : newcomers_due_us(job);
}

void newcomers_invite(struct job *job, uint16_t node)
{
    if (newcomers_are_welcome(job) && newcomers_have(job, node) && members_self(job) != NULL) {
        peer_send_join(job, node, true);
    }
}

void newcomers_invite_all(struct job *job)
{
    job->agreement.newcomers_us = 0;
    job->agreement.newcomers_taken = false;
    for (unsigned i = 0; i < job->core->peers; i++) {
        newcomers_invite(job, job->core->peer[i].node);
    }
}
