/*
 * The nodes that have ranks of a job, as this node knows them.
 */
#ifndef ADTOPK_JOB_MEMBERS_H
#define ADTOPK_JOB_MEMBERS_H

#include "daemon/job/model.h"

struct member *members_find(const struct job *job, uint16_t node); /* NULL: it never joined */
struct member *members_self(const struct job *job); /* this node's own; NULL before commit */
struct member *members_at(const struct job *job, unsigned i); /* the i-th member in force */
/* The first member in force for which a condition holds; NULL: none. */
struct member *members_first(
    const struct job *job, bool (*met)(const struct job *job, const struct member *member));
/* The first other node in force with a rank that has not left; NULL: none. */
struct member *members_staying(const struct job *job);

bool member_has_joined(const struct member *member); /* its join is current and names ranks */
/* All nodes that have joined, as a membership to propose. Errors: MEMORY. */
enum adtopk_status members_joined(const struct job *job, struct membership *joined);
bool members_complete(struct job *job); /* their joins name every rank once */
/* Names the ranks that no join names; false: there are none, only the first view is missing. */
bool members_missing_ranks(const struct job *job, char *text, size_t size);
/* Whether the node is a member of the view in force, or else of the prepared one. Before there is
 * either, whether it has joined. */
bool members_include(const struct job *job, uint16_t node);

#endif
