#include "daemon/job/members.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/job_fail.h"

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
    if (membership_begin(joined, job->core->config.node, job->members) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_has_joined(member)) {
            membership_add(joined, member->node, member->incarnation, member->job);
        }
    }
    return ADTOPK_OK;
}

static bool rank_is_here(const struct job *job, uint32_t rank)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        for (uint32_t r = 0; member_has_joined(member) && r < member->ranks; r++) {
            if (member->rank[r] == rank) {
                return true;
            }
        }
    }
    return false;
}

bool members_missing_ranks(const struct job *job, char *text, size_t size)
{
    size_t used = 0;
    unsigned missing = 0;

    for (uint32_t rank = 0; rank < job->run.world_size; rank++) {
        int written;
        if (rank_is_here(job, rank)) {
            continue;
        }
        if (++missing > 8) {
            (void)snprintf(text + used, size - used, " and more");
            return true;
        }
        written = snprintf(text + used, size - used, "%s%u", missing == 1 ? "rank " : ", ", rank);
        used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
    }
    if (missing == 0) {
        (void)snprintf(text, size, "the first view");
    }
    return missing > 0;
}

/* Notes a member's ranks in `seen`, one bit each. False, and the job has failed, if one was there.
 */
static bool note_ranks(struct job *job, const struct member *member, uint8_t *seen)
{
    for (uint32_t r = 0; r < member->ranks; r++) {
        uint32_t rank = member->rank[r];
        if (rank >= job->run.world_size) {
            view_fail(job, ADTOPK_ERR_MISMATCH, "node %u has rank %u of job '%s', which has %u",
                member->node, rank, job->key.name, job->run.world_size);
            return false;
        }
        if ((seen[rank / 8] >> rank % 8 & 1) != 0) {
            view_fail(job, ADTOPK_ERR_MISMATCH, "rank %u of job '%s' runs twice, once on node %u",
                rank, job->key.name, member->node);
            return false;
        }
        seen[rank / 8] |= (uint8_t)(1u << rank % 8);
    }
    return true;
}

bool members_complete(struct job *job)
{
    uint8_t *seen = calloc(job->run.world_size / 8 + 1, 1);
    uint64_t total = 0;
    bool once = true;

    if (seen == NULL) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for the ranks of job '%s'", job->key.name);
        return false;
    }
    for (unsigned i = 0; once && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_has_joined(member)) {
            once = note_ranks(job, member, seen);
            total += member->ranks;
        }
    }
    free(seen);
    return once && total == job->run.world_size;
}

bool member_has_joined(const struct member *member)
{
    return member->incarnation != 0 && member->ranks > 0;
}

bool members_include(const struct job *job, uint16_t node)
{
    if (job->in_force.nodes > 0) {
        return membership_index(&job->in_force, node) >= 0;
    }
    return job->agreement.members.nodes > 0 ? membership_index(&job->agreement.members, node) >= 0
                                            : members_find(job, node) != NULL;
}
