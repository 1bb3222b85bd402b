#include "daemon/job/loss.h"

#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"

/* Whether the job goes on without nodes that are lost. A daemon that has restarted may not know the
 * policy in force yet. Before, it hears the known view from members with this policy, or reads
 * both in its store. */
static bool loss_shrinks(const struct job *job)
{
    return !job_ended(job) && views_known(job->agreement.views)->nodes > 0 &&
           (job->store == NULL ? !job->agreement.awaits_all
                               : job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK);
}

/* A member of the known view, other than this node; NULL: it is none. */
static struct member *loss_member(const struct job *job, uint16_t node)
{
    return loss_shrinks(job) && node != job->core->config.node &&
                   views_place(job->agreement.views, node) >= 0
               ? members_find(job, node)
               : NULL;
}

/* Whether the members that are not gone could form a view if all of them came back. */
static bool loss_has_hope(struct job *job)
{
    const struct known_view *known = views_known(job->agreement.views);
    struct membership left;
    bool hope;

    if (membership_begin(&left, job->core->config.node, known->nodes) != ADTOPK_OK) {
        return false;
    }
    for (uint32_t i = 0; i < known->nodes; i++) {
        const struct member *member = members_find(job, known->node[i]);
        if (member == NULL || !member->loss.gone) {
            membership_add(&left, known->node[i], 0, 0, known->ranks[i], known->since[i]);
        }
    }
    hope = views_allow(job->agreement.views, &left);
    membership_free(&left);
    return hope;
}

bool loss_note(struct job *job, uint16_t node, enum peer_loss loss)
{
    struct member *member = loss_member(job, node);

    if (loss_shrinks(job) && views_leave_out(job->agreement.views, node)) {
        return true; /* others have gone on without it, and this node is about to */
    }
    if (member == NULL) {
        return false;
    }
    job_note_since(job, &member->loss.since_us);
    if (loss != PEER_SILENT && !member->loss.keeps) {
        member->loss.gone = true;
    }
    loss_look(job);
    return loss_has_hope(job);
}

bool loss_for_ever(struct job *job, uint16_t node)
{
    struct member *member = loss_member(job, node);

    if (member != NULL) {
        member->loss.keeps = false;
    }
    return loss_note(job, node, PEER_GONE);
}

static void loss_over(struct member *member)
{
    member->loss = (struct member_loss){.keeps = member->loss.keeps, .trains = member->loss.trains};
}

/* Whether the node is there with all of its ranks, as far as the known view says how many it has.
 */
static bool loss_is_whole(const struct job *job, const struct member *member)
{
    const int place = views_place(job->agreement.views, member->node);

    return member->incarnation != 0 &&
           (place < 0 || member->ranks == views_known(job->agreement.views)->ranks[place]);
}

void loss_joined(const struct job *job, struct member *member)
{
    if (loss_is_whole(job, member)) {
        loss_over(member);
    }
}

void loss_back(struct job *job, uint16_t node)
{
    struct member *member = loss_member(job, node);

    newcomers_invite(job, node);
    if (member == NULL || member->loss.gone || !loss_is_whole(job, member)) {
        return;
    }
    loss_over(member);
    job_regroup(job);
}

void loss_begin_anew(struct job *job)
{
    for (unsigned i = 0; i < job->members; i++) {
        struct member *member = job->member[i];
        const bool gone = member->loss.gone;
        const bool lost = member->loss.since_us != 0 && !job_peer_is_up(job, member->node);
        loss_over(member);
        member->loss.gone = gone;
        member->loss.since_us = lost || gone ? job->core->now_us : 0;
    }
}

bool loss_expect(struct job *job)
{
    const struct known_view *known = views_known(job->agreement.views);

    for (uint32_t i = 0; i < known->nodes; i++) {
        struct member *member;
        if (known->node[i] == job->core->config.node) {
            continue; /* its own entry says that its ranks have committed: join.c */
        }
        member = members_add(job, known->node[i]);
        if (member == NULL) {
            job_fail_with(
                job, ADTOPK_ERR_MEMORY, "no memory for the nodes of job '%s'", job->key.name);
            return false;
        }
        if (!loss_is_whole(job, member)) {
            job_note_since(job, &member->loss.since_us);
        }
    }
    return true;
}

/* When the node is dropped; UINT64_MAX: it is not, or it is already. */
static uint64_t loss_due(const struct job *job, const struct member *member)
{
    if (member->loss.since_us == 0 || member->loss.dropped) {
        return UINT64_MAX;
    }
    return member->loss.gone ? member->loss.since_us
                             : member->loss.since_us + job->plan->policy.shrink_after_us;
}

void loss_look(struct job *job)
{
    bool news = false;

    for (unsigned i = 0; loss_shrinks(job) && i < job->members; i++) {
        struct member *member = job->member[i];
        if (loss_due(job, member) <= job->core->now_us) {
            member->loss.dropped = news = true;
        }
    }
    if (news) {
        job_regroup(job);
    }
    newcomers_look(job);
}

uint64_t loss_deadline(const struct job *job)
{
    uint64_t due = newcomers_deadline(job);

    for (unsigned i = 0; loss_shrinks(job) && i < job->members; i++) {
        uint64_t next = loss_due(job, job->member[i]);
        due = next < due ? next : due;
    }
    return due;
}
