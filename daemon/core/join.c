/*
 * Joins: which nodes have ranks of a job, and whether they agree on what it is.
 *
 * The happy path: a local rank has mapped its arena; this node's own entry is made anew and sent
 * to every peer, which answers with its own. When the entries name every rank once, and all
 * describe the same tensors and policy, the lowest node among them proposes a view
 * (coordinate.c).
 *
 * A peer that restarts invalidates its entry until it joins again. Nodes that disagree, or a rank
 * that runs twice, fail the job everywhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/hash.h"
#include "daemon/core/view.h"

struct member *join_member(const struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node == node) {
            return job->member[i];
        }
    }
    return NULL;
}

static struct member *member_add(struct job *job, uint16_t node)
{
    struct member *member = join_member(job, node);
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

struct member *join_self(const struct job *job)
{
    return join_member(job, job->core->config.node);
}

/* Copies what a join says into the member. */
static enum adtopk_status member_fill(struct member *member, const Adtopk__PeerAbout *about,
    const Adtopk__PeerJoin *join, uint64_t incarnation)
{
    uint32_t *rank = malloc(join->n_ranks * sizeof(*rank) + 1);
    uint64_t *tensor = malloc(join->n_tensors * sizeof(*tensor) + 1);

    if (rank == NULL || tensor == NULL) {
        free(rank);
        free(tensor);
        return ADTOPK_ERR_MEMORY;
    }
    if (join->n_ranks > 0) {
        (void)memcpy(rank, join->ranks, join->n_ranks * sizeof(*rank));
    }
    if (join->n_tensors > 0) {
        (void)memcpy(tensor, join->tensors, join->n_tensors * sizeof(*tensor));
    }
    if (member->incarnation != incarnation || member->job != about->sender_job ||
        member->ranks != join->n_ranks) {
        member->anew = true;
        member->left = false;
    }
    free(member->rank);
    free(member->tensor);
    member->incarnation = incarnation;
    member->job = about->sender_job;
    member->run = about->run;
    member->policy_hash = join->policy;
    member->exchanges = join->exchanges != 0 ? join->exchanges : 1;
    member->world_size = join->world_size;
    member->view = join->view;
    member->rank = rank;
    member->ranks = (uint32_t)join->n_ranks;
    member->tensor = tensor;
    member->tensors = (uint32_t)join->n_tensors;
    return ADTOPK_OK;
}

/* Fills a join from this node's own member entry; its arrays are borrowed. */
static void join_fill(const struct job *job, bool reply, Adtopk__PeerJoin *join)
{
    const struct member *self = join_self(job);

    adtopk__peer_join__init(join);
    join->world_size = self->world_size;
    join->ranks = self->rank;
    join->n_ranks = self->ranks;
    join->policy = self->policy_hash;
    join->exchanges = self->exchanges;
    join->tensors = self->tensor;
    join->n_tensors = self->tensors;
    join->view = job->promised;
    join->reply = reply;
}

static void join_send(struct job *job, uint16_t node, bool reply)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join;

    join_fill(job, reply, &join);
    join.member = view_index(job, node) >= 0;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    peer_send(job, node, &message);
}

/* Compares a member's join with this node's own. False, and the job has failed, if they differ. */
static bool agrees(struct job *job, const struct member *other)
{
    const struct member *self = join_self(job);
    uint16_t node = job->core->config.node;

    if (other->exchanges != EXCHANGE_VERSION) {
        view_fail(job, ADTOPK_ERR_MISMATCH,
            "job '%s': the daemons of nodes %u and %u exchange in other ways (versions %u and %u): "
            "run the same release on both",
            job->key.name, node, other->node, EXCHANGE_VERSION, other->exchanges);
        return false;
    }
    if (other->world_size != job->world_size) {
        view_fail(job, ADTOPK_ERR_MISMATCH, "job '%s' has %u ranks on node %u, but %u on node %u",
            job->key.name, job->world_size, node, other->world_size, other->node);
        return false;
    }
    if (other->policy_hash != self->policy_hash) {
        view_fail(job, ADTOPK_ERR_MISMATCH,
            "job '%s' has another policy on node %u than on node %u", job->key.name, other->node,
            node);
        return false;
    }
    for (uint32_t t = 0; t < self->tensors && t < other->tensors; t++) {
        if (self->tensor[t] != other->tensor[t]) {
            view_fail(job, ADTOPK_ERR_MISMATCH,
                "tensor %u, '%s' on node %u (rank %u), has another name, type, shape or form on "
                "node %u (rank %u)",
                t, job->tensor[t].spec.name, node, self->rank[0], other->node, other->rank[0]);
            return false;
        }
    }
    if (other->tensors != self->tensors) {
        view_fail(job, ADTOPK_ERR_MISMATCH,
            "node %u (rank %u) registered %u tensors, node %u (rank %u) %u; the first that differs "
            "is number %u",
            node, self->rank[0], self->tensors, other->node, other->rank[0], other->tensors,
            self->tensors < other->tensors ? self->tensors : other->tensors);
        return false;
    }
    return true;
}

static bool rank_is_here(const struct job *job, uint32_t rank)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        for (uint32_t r = 0; join_in_view(member) && r < member->ranks; r++) {
            if (member->rank[r] == rank) {
                return true;
            }
        }
    }
    return false;
}

void join_missing_ranks(const struct job *job, char *text, size_t size)
{
    size_t used = 0;
    unsigned missing = 0;

    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        int written;
        if (rank_is_here(job, rank)) {
            continue;
        }
        if (++missing > 8) {
            (void)snprintf(text + used, size - used, " and more");
            return;
        }
        written = snprintf(text + used, size - used, "%s%u", missing == 1 ? "rank " : ", ", rank);
        used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
    }
    if (missing == 0) {
        (void)snprintf(text, size, "the first view");
    }
}

/* Notes a member's ranks in `seen`, one bit each. False, and the job has failed, if one was there.
 */
static bool note_ranks(struct job *job, const struct member *member, uint8_t *seen)
{
    for (uint32_t r = 0; r < member->ranks; r++) {
        uint32_t rank = member->rank[r];
        if (rank >= job->world_size) {
            view_fail(job, ADTOPK_ERR_MISMATCH, "node %u has rank %u of job '%s', which has %u",
                member->node, rank, job->key.name, job->world_size);
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

bool join_complete(struct job *job)
{
    uint8_t *seen = calloc(job->world_size / 8 + 1, 1);
    uint64_t total = 0;
    bool once = true;

    if (seen == NULL) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for the ranks of job '%s'", job->key.name);
        return false;
    }
    for (unsigned i = 0; once && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (join_in_view(member)) {
            once = note_ranks(job, member, seen);
            total += member->ranks;
        }
    }
    free(seen);
    return once && total == job->world_size;
}

bool join_in_view(const struct member *member)
{
    return member->incarnation != 0 && member->ranks > 0;
}

/* Notes this node's own ranks and tensors as if they had come in a join. */
static enum adtopk_status note_self(struct job *job)
{
    struct member *self = member_add(job, job->core->config.node);
    uint32_t *rank = malloc(job->ranks * sizeof(*rank));
    uint64_t *tensor = malloc(job->tensors * sizeof(*tensor));

    if (self == NULL || rank == NULL || tensor == NULL) {
        free(rank);
        free(tensor);
        return ADTOPK_ERR_MEMORY;
    }
    free(self->rank);
    free(self->tensor);
    self->rank = rank;
    self->ranks = 0;
    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->machine.state >= RANK_MAPPED) {
            rank[self->ranks++] = job->rank[r]->number;
        }
    }
    self->tensor = tensor;
    self->tensors = job->tensors;
    for (uint32_t t = 0; t < job->tensors; t++) {
        tensor[t] = job->tensor[t].hash;
    }
    self->incarnation = job->core->config.incarnation;
    self->job = job->number;
    self->run = job->run;
    self->world_size = job->world_size;
    self->policy_hash = job->policy_hash;
    self->exchanges = EXCHANGE_VERSION;
    self->anew = true;
    return ADTOPK_OK;
}

void join_announce(struct job *job)
{
    if (note_self(job) != ADTOPK_OK) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node != job->core->config.node && !agrees(job, job->member[i])) {
            return;
        }
    }
    for (unsigned i = 0; i < job->core->peers; i++) {
        join_send(job, job->core->peer[i].node, true);
    }
    coordinate(job);
}

void join_peer_up(struct core *core, uint16_t node)
{
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        struct member *member = join_member(job, node);
        if (job_ended(job)) {
            continue;
        }
        if (member != NULL && member->incarnation != 0) {
            member->incarnation = 0; /* it restarted: its join was its predecessor's */
            job_peer_lost(job, node, PEER_RESTARTED);
        }
        if (!job_ended(job) && join_self(job) != NULL) {
            join_send(job, node, true);
        }
    }
}

/* Whether the node, whose daemon lives on, has opened the job's key again: its part in the job of
 * before is over. */
static bool join_begins_again(
    const struct job *job, const struct member *member, const Adtopk__PeerAbout *about)
{
    return job->view_nodes > 0 && member->incarnation != 0 && member->job != about->sender_job;
}

/* Whether the job has room for what a join brings. False, and somebody was told, if it has none. */
static bool join_fits(struct job *job, uint16_t from, const Adtopk__PeerAbout *about)
{
    const struct member *member = join_member(job, from);
    struct error error;

    if (job->view_nodes > 0 && view_index(job, from) < 0) {
        (void)error_set(&error, ADTOPK_ERR_STATE,
            "job '%s', run '%s', runs without ranks on node %u; use another run id", job->key.name,
            job->key.run_id, from);
        peer_refuse(job->core, from, about, &error);
        return false;
    }
    if (member != NULL && join_begins_again(job, member, about)) {
        if (!member->left) {
            view_fail(
                job, ADTOPK_ERR_PEER, "node %u began another run of job '%s'", from, job->key.name);
        }
        return false;
    }
    if (about->run != 0 && job->run != 0 && about->run != job->run) {
        view_fail(job, ADTOPK_ERR_MISMATCH,
            "node %u returns to another run of job '%s' than node %u", from, job->key.name,
            job->core->config.node);
        return false;
    }
    return true;
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
    if (!join_fits(job, from, about)) {
        return;
    }
    member = member_add(job, from);
    if (member == NULL || member_fill(member, about, join, incarnation) != ADTOPK_OK) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for node %u of job '%s'", from, job->key.name);
        return;
    }
    if (join_self(job) == NULL || !agrees(job, member)) {
        return; /* compared when this node's own ranks have committed */
    }
    if (join->reply) {
        join_send(job, from, false);
    }
    view_try_answer(job);
    coordinate(job);
}
