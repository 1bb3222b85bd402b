#include "daemon/job/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/names.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/register.h"
#include "daemon/planner/estimate.h"

struct member *members_add(struct job *job, uint16_t node)
{
    struct member *member = members_find(job, node);
    struct member **grown;
    unsigned at = job->members;

    if (member != NULL) {
        return member;
    }
    grown = realloc(job->member, (job->members + 1) * sizeof(struct member *));
    if (grown == NULL) {
        return NULL;
    }
    job->member = grown;
    member = calloc(1, sizeof(*member));
    if (member == NULL) {
        return NULL;
    }
    member->node = node;
    for (; at > 0 && grown[at - 1]->node > node; at--) {
        grown[at] = grown[at - 1];
    }
    grown[at] = member;
    job->members++;
    return member;
}

/* Gives a member new lists of ranks and tensors. Without memory it keeps those it has. */
enum adtopk_status member_renew(struct member *member, size_t ranks, size_t tensors)
{
    uint32_t *rank = malloc(ranks * sizeof(*rank) + 1);
    uint64_t *tensor = malloc(tensors * sizeof(*tensor) + 1);

    if (rank == NULL || tensor == NULL) {
        free(rank);
        free(tensor);
        return ADTOPK_ERR_MEMORY;
    }
    free(member->rank);
    free(member->tensor);
    member->rank = rank;
    member->tensor = tensor;
    member->ranks = (uint32_t)ranks;
    member->tensors = (uint32_t)tensors;
    return ADTOPK_OK;
}

enum adtopk_status member_fill(struct member *member, const Adtopk__PeerAbout *about,
    const Adtopk__PeerJoin *join, uint64_t incarnation)
{
    const bool other = member->incarnation != incarnation || member->job != about->sender_job ||
                       member->ranks != join->n_ranks;
    const bool trained = member->loss.trains && member->run == about->run; /* it has restarted */

    if (member_renew(member, join->n_ranks, join->n_tensors) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (join->n_ranks > 0) {
        (void)memcpy(member->rank, join->ranks, join->n_ranks * sizeof(*member->rank));
    }
    if (join->n_tensors > 0) {
        (void)memcpy(member->tensor, join->tensors, join->n_tensors * sizeof(*member->tensor));
    }
    if (other) {
        member->anew = true;
        member->left = false;
    }
    member->incarnation = incarnation;
    member->job = about->sender_job;
    member->run = about->run;
    member->policy_hash = join->policy;
    member->exchanges = join->exchanges != 0 ? join->exchanges : 1;
    member->carrier.version = join->carrier;
    member->carrier.devices = join->devices != 0 ? join->devices : 1;
    member->world_size = join->world_size;
    member->view = join->view;
    member->batches = join->batches;
    member->loss.keeps = join->keeps;
    member->loss.trains = about->run != 0 && (join->grows || trained);
    return ADTOPK_OK;
}

static void member_free(struct member *member)
{
    free(member->rank);
    free(member->tensor);
    free(member->answer.delivered);
    free(member->copied);
    free(member->answer.newer);
    free(member->answer.newcomer);
    if (member->estimates != NULL) {
        estimate_free(member->estimates);
    }
    free(member->estimates);
    free(member);
}

void members_drop(struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node == node) {
            member_free(job->member[i]);
            job->members--;
            (void)memmove(
                &job->member[i], &job->member[i + 1], (job->members - i) * sizeof(struct member *));
            return;
        }
    }
}

void members_keep(struct job *job, const struct membership *kept)
{
    unsigned members = 0;

    for (unsigned i = 0; i < job->members; i++) {
        struct member *member = job->member[i];
        if (kept != NULL && membership_index(kept, member->node) >= 0) {
            job->member[members++] = member;
        } else {
            member_free(member);
        }
    }
    job->members = members;
}

struct member *members_find(const struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node == node) {
            return job->member[i];
        }
    }
    return NULL;
}

struct member *members_self(const struct job *job)
{
    return members_find(job, job->core->config.node);
}

struct member *members_at(const struct job *job, unsigned i)
{
    return members_find(job, job->in_force.node[i]);
}

struct member *members_first(
    const struct job *job, bool (*met)(const struct job *job, const struct member *member))
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        if (met(job, members_at(job, i))) {
            return members_at(job, i);
        }
    }
    return NULL;
}

static bool members_is_staying(const struct job *job, const struct member *member)
{
    return member->node != job->core->config.node && !member->left;
}

struct member *members_staying(const struct job *job)
{
    return members_first(job, members_is_staying);
}

enum adtopk_status members_joined(const struct job *job, struct membership *joined)
{
    const struct views *views = job->agreement.views;

    if (membership_begin(joined, job->core->config.node, job->members) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_has_joined(member) &&
            (!views_leave_out(views, member->node) ||
                (newcomers_are_due(job) && newcomers_fit(job, member)))) {
            membership_add(joined, member->node, member->incarnation, member->job, member->ranks,
                views_since(views, member->node));
        }
    }
    membership_break_ties(joined, job->plan->policy.tie_breaker);
    return ADTOPK_OK;
}

static bool rank_is_here(const struct job *job, uint32_t rank)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];

        if (member_has_joined(member) && member_has_rank(member, rank)) {
            return true;
        }
    }
    return false;
}

struct taking_part members_taking_part(const struct rank *rank, uint64_t step)
{
    const struct job *job = rank->job;

    return (struct taking_part){.ranks = job->run.ranks,
        .place = rank->place,
        .root = job->run.root,
        .joined = views_grown_by(job->agreement.views, step_number(job)),
        .due = step == step_number(job) && store_due(job->store)};
}

/* A rank that returned to a new daemon may have submitted the broadcast to the old one. */
bool members_await_broadcast(const struct rank *rank)
{
    const struct store_header *store = rank->job->store;

    return rank->submitted < store_grown(store) && store->ops_done < store_grown(store);
}

bool members_lost_rank(const struct job *job, uint32_t rank)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        if (member_has_rank(members_at(job, i), rank)) {
            return job->in_force.since[i] > step_number(job);
        }
    }
    return job->run.ranks < job->run.world_size;
}

/* Ranks that are missing may be on a node that is down, which no join can name. */
static void members_add_down(const struct job *job, char *text, size_t size)
{
    const struct core *core = job->core;
    const size_t used = strlen(text);
    unsigned down = 0, first = 0;

    for (unsigned i = 0; i < core->peers; i++) {
        if (!core->peer[i].up) {
            first = down == 0 ? core->peer[i].node : first;
            down++;
        }
    }
    if (down == 1) {
        (void)snprintf(text + used, size - used, " (node %u is down)", first);
    } else if (down > 1) {
        (void)snprintf(
            text + used, size - used, " (node %u is down, and %u more)", first, down - 1);
    }
}

bool members_missing_ranks(const struct job *job, char *text, size_t size)
{
    size_t used = 0;
    unsigned missing = 0;

    if (newcomers_have_self(job)) {
        (void)snprintf(text, size,
            "the nodes that train to take node %u in; they wait for the end of a step in which a "
            "node "
            "was lost",
            job->core->config.node);
        return false;
    }
    for (uint32_t rank = 0; rank < job->run.world_size; rank++) {
        int written;
        if (rank_is_here(job, rank)) {
            continue;
        }
        if (++missing > 8) {
            (void)snprintf(text + used, size - used, " and more");
            break;
        }
        written = snprintf(text + used, size - used, "%s%u", missing == 1 ? "rank " : ", ", rank);
        used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
    }
    if (missing == 0) {
        (void)snprintf(text, size, "its nodes to agree who takes part");
        return false;
    }
    members_add_down(job, text, size);
    return true;
}

/* Notes a member's ranks in `seen`, one bit each. False, and the job has failed, if one was there.
 */
static bool note_ranks(struct job *job, const struct member *member, uint8_t *seen)
{
    for (uint32_t r = 0; r < member->ranks; r++) {
        uint32_t rank = member->rank[r];
        if (rank >= job->run.world_size) {
            job_fail_with(job, ADTOPK_ERR_MISMATCH, "node %u has rank %u of job '%s', which has %u",
                member->node, rank, job->key.name, job->run.world_size);
            return false;
        }
        if ((seen[rank / 8] >> rank % 8 & 1) != 0) {
            struct error error;
            (void)error_set(&error, ADTOPK_ERR_MISMATCH,
                "rank %u of job '%s' runs twice, once on node %u", rank, job->key.name,
                member->node);
            newcomers_blame(job, member->node, &error, true);
            return false;
        }
        seen[rank / 8] |= (uint8_t)(1u << rank % 8);
    }
    return true;
}

/* Whether every member of the known view is there with all of its ranks, or is dropped. A silent
 * one will be either soon. A proposal that names it could not begin meanwhile, and each one stays
 * promised: job/views.h has room for a few. */
static bool members_are_back(const struct job *job)
{
    const struct known_view *known = views_known(job->agreement.views);

    for (uint32_t i = 0; i < known->nodes; i++) {
        const struct member *member = members_find(job, known->node[i]);
        const bool dropped = member != NULL && member->loss.dropped;
        if (!dropped && (member == NULL || !member_has_joined(member) ||
                            member->loss.since_us != 0 || member->ranks != known->ranks[i])) {
            return false;
        }
    }
    return true;
}

bool members_complete(struct job *job)
{
    uint8_t *seen = calloc(job->run.world_size / 8 + 1, 1);
    uint64_t total = 0;
    bool once = true;

    if (seen == NULL) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the ranks of job '%s'", job->key.name);
        return false;
    }
    for (unsigned i = 0; once && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_has_joined(member) && !views_leave_out(job->agreement.views, member->node)) {
            total += member->ranks;
            once = note_ranks(job, member, seen); /* a newcomer that is refused is gone then */
        }
    }
    free(seen);
    return once && !newcomers_are_in_doubt(job) &&
           (views_known(job->agreement.views)->nodes > 0 ? members_are_back(job)
                                                         : total == job->run.world_size);
}

bool member_has_joined(const struct member *member)
{
    return member->incarnation != 0 && member->ranks > 0 && !member->loss.dropped;
}

bool member_is_away(const struct job *job, const struct member *member)
{
    return member->incarnation == 0 || !job_peer_is_up(job, member->node);
}

bool member_has_rank(const struct member *member, uint32_t rank)
{
    for (uint32_t r = 0; r < member->ranks; r++) {
        if (member->rank[r] == rank) {
            return true;
        }
    }
    return false;
}

bool member_is_proposed(const struct job *job, const struct member *member)
{
    return membership_index(&job->agreement.members, member->node) >= 0;
}

bool member_was_there(const struct job *job, const struct member *member)
{
    const int place = membership_index(&job->agreement.members, member->node);

    return place >= 0 && job->agreement.members.since[place] != SINCE_UNKNOWN;
}

enum adtopk_status members_compare(
    const struct job *job, const struct member *other, struct error *err)
{
    const struct member *self = members_self(job);
    uint16_t node = job->core->config.node;

    if (other->exchanges != EXCHANGE_VERSION) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "job '%s': the daemons of nodes %u and %u exchange in other ways (versions %u and %u): "
            "run the same release on both",
            job->key.name, node, other->node, EXCHANGE_VERSION, other->exchanges);
    }
    if (other->view > (uint64_t)job->agreement.promised + VIEW_JUMP) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "node %u names view %u, and this is view %u",
            other->node, other->view, job->view);
    }
    if (other->world_size != job->run.world_size) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "job '%s': rank %u on node %u was started with world size %u, but rank %u on node %u "
            "with %u",
            job->key.name, self->rank[0], node, job->run.world_size, other->rank[0], other->node,
            other->world_size);
    }
    if (other->policy_hash != self->policy_hash) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "job '%s' has another policy on node %u than on node %u", job->key.name, other->node,
            node);
    }
    for (uint32_t t = 0; t < self->tensors && t < other->tensors; t++) {
        if (self->tensor[t] != other->tensor[t]) {
            return error_set(err, ADTOPK_ERR_MISMATCH,
                "tensor %u, '%s' on node %u (rank %u), %s, has another name, type, shape or form "
                "on node %u (rank %u)",
                t, register_at(job, t)->spec.name, node, self->rank[0],
                spec_describe(&register_at(job, t)->spec).text, other->node, other->rank[0]);
        }
    }
    if (other->batches == self->batches && other->tensors != self->tensors) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "node %u (rank %u) registered %u tensors, node %u (rank %u) %u; the first that differs "
            "is number %u",
            node, self->rank[0], self->tensors, other->node, other->rank[0], other->tensors,
            self->tensors < other->tensors ? self->tensors : other->tensors);
    }
    return ADTOPK_OK;
}

bool members_include(const struct job *job, uint16_t node)
{
    if (job->in_force.nodes == 0 && job->agreement.members.nodes == 0) {
        return members_find(job, node) != NULL;
    }
    return membership_index(&job->in_force, node) >= 0 ||
           membership_index(&job->agreement.members, node) >= 0;
}
