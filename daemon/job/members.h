/*
 * The nodes that have ranks of a job, as this node knows them.
 */
#ifndef ADTOPK_JOB_MEMBERS_H
#define ADTOPK_JOB_MEMBERS_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

struct member *members_find(const struct job *job, uint16_t node); /* NULL: it never joined */
struct member *members_self(const struct job *job); /* this node's own; NULL before commit */
struct member *members_at(const struct job *job, unsigned i); /* the i-th member in force */
/* The first member in force for which a condition holds; NULL: none. */
struct member *members_first(
    const struct job *job, bool (*met)(const struct job *job, const struct member *member));
/* The first other node in force with a rank that has not left; NULL: none. */
struct member *members_staying(const struct job *job);

/* Its join is current and names ranks, and the job is not to go on without it. */
bool member_has_joined(const struct member *member);
/* Whether nothing is heard of it now, or nothing was yet. */
bool member_is_away(const struct job *job, const struct member *member);
bool member_has_rank(const struct member *member, uint32_t rank);
/* Whether it is among the members of the proposal under way. */
bool member_is_proposed(const struct job *job, const struct member *member);
/* Whether, besides, it was a member before, or there was no view before. */
bool member_was_there(const struct job *job, const struct member *member);
/* The node's entry, which is made if there is none; NULL without memory. */
struct member *members_add(struct job *job, uint16_t node);
/* Frees the node's entry. */
void members_drop(struct job *job, uint16_t node);
/* Gives a member new lists of ranks and tensors. Without memory it keeps those it has. */
enum adtopk_status member_renew(struct member *member, size_t ranks, size_t tensors);
/* Copies the content of a join to the member. Errors: MEMORY, and nothing is copied. */
enum adtopk_status member_fill(struct member *member, const Adtopk__PeerAbout *about,
    const Adtopk__PeerJoin *join, uint64_t incarnation);
/* Frees the entries of all other nodes; NULL: of all. */
void members_keep(struct job *job, const struct membership *kept);

/* All nodes that have joined, as a membership to propose; newcomers when they are due. The policy
 * in force says which of them breaks ties. Errors: MEMORY. */
enum adtopk_status members_joined(const struct job *job, struct membership *joined);
/* Whether their joins name every rank once. Later than the first view: every rank of the known
 * view, except those of nodes without which the job is to go on. */
bool members_complete(struct job *job);
/* What the rank hears before this step of the ranks that take part. */
struct taking_part members_taking_part(const struct rank *rank, uint64_t step);
/* Whether others joined with the open step, and the rank has yet to broadcast with them. */
bool members_await_broadcast(const struct rank *rank);
/* Whether the rank is on no node of the view in force, or only watches. */
bool members_lost_rank(const struct job *job, uint32_t rank);
/* Names the ranks that no join names. False: there are none, and the nodes have yet to agree, or to
 * take this one in. */
bool members_missing_ranks(const struct job *job, char *text, size_t size);
/* Compares a member's join with this node's own. Errors: MISMATCH; PROTOCOL: a view that no node of
 * the job can know. */
enum adtopk_status members_compare(
    const struct job *job, const struct member *other, struct error *err);
/* Whether the node is a member of the view in force, or of the prepared one. Before there is
 * either, whether it has joined. */
bool members_include(const struct job *job, uint16_t node);

#endif
