/*
 * A membership: the nodes of a view, each with the start of its daemon, its number of the job, its
 * number of ranks, and the step from which these take part.
 *
 * It is a value. It is built once, in ascending order of nodes, compared, and handed on.
 */
#ifndef ADTOPK_JOB_MEMBERSHIP_H
#define ADTOPK_JOB_MEMBERSHIP_H

#include <adtopk/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A node that joins while the job trains: the view's commit says from which step on. */
#define SINCE_UNKNOWN UINT64_MAX

struct membership {
    uint64_t *incarnation; /* of each node's daemon; this memory holds all five arrays */
    uint64_t *job;         /* each node's number of the job */
    uint64_t *since;       /* before this step each node's ranks only watch; see SINCE_UNKNOWN */
    uint32_t *ranks;       /* how many each node has */
    uint16_t *node;
    unsigned nodes;       /* 0: there is no membership */
    unsigned self;        /* this node's place in it */
    uint16_t own;         /* this node's number */
    uint16_t tie_breaker; /* the member whose half of the view may go on: job/views.h */
};

/* Makes an empty membership with room for this many nodes. Errors: MEMORY. */
enum adtopk_status membership_begin(struct membership *membership, uint16_t own, size_t capacity);
void membership_add(struct membership *membership, uint16_t node, uint64_t incarnation,
    uint64_t job, uint32_t ranks, uint64_t since);
/* Fixes the node that breaks ties: this one if it is a member, else the lowest member. */
void membership_break_ties(struct membership *membership, int64_t node);
/* Replaces one membership by another; `from` is empty afterwards. If the nodes are the same, their
 * array stays, because rounds borrow it. */
void membership_replace(struct membership *membership, struct membership *from);
void membership_free(struct membership *membership);

/* The place of a node; -1: it is not a member. */
int membership_index(const struct membership *membership, uint16_t node);
bool membership_same_nodes(const struct membership *one, const struct membership *other);
/* The ranks of all nodes together that take part in a step. */
uint32_t membership_ranks(const struct membership *membership, uint64_t step);
/* Whether both have the same nodes, with the same starts of their daemons and the same numbers of
 * the job. */
bool membership_equal(const struct membership *one, const struct membership *other);

/* The coordinator, which is the lowest node of those that have been there longest. It proposes
 * views and policies, and gets the others' measurements. */
uint16_t membership_coordinator(const struct membership *membership);
bool membership_coordinates(const struct membership *membership); /* whether that is this node */

#endif
