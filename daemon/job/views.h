/*
 * The views that a node knows, and which nodes may go on without the others.
 *
 * A job whose policy is on_peer_loss "shrink" goes on without nodes that are lost. If the network
 * is cut, at most one side may do so, whatever messages were lost and whichever daemons were
 * killed. So every node remembers:
 *
 *   the known view     the last one in force, as far as the node has heard, with its members
 *   promised views     later ones with other members or another tie-breaker. The node promised to
 *                      take part in them. Each may be in force on some node that it does not hear.
 *
 * Nodes may form a view if those of them that are members of the known view are more than half of
 * it, and more than half of each promised one. Half is enough for the half with the view's
 * *tie-breaker*. The proposal of a view names this member: the policy's `tie_breaker`, or the
 * lowest member if that is none. So a change of the policy, which comes with a view, cannot give
 * both halves one. Every node checks this before it promises, and a view begins only when all of
 * its members have promised. So two views that begin have a common member, and it knows the earlier
 * one. This is dynamic voting with ambiguous attempts (Yeger-Lotem, Keidar, Dolev: Dynamic voting
 * for consistent primary components, PODC 1997).
 *
 * Other nodes may be in a view, too: they join a job that trains (compute/grow.c). They have no
 * vote in it, whatever they promised in an earlier life. So a node that comes with nothing is as
 * good as one that remembers. From the next view on they vote. The proposal names the known view of
 * its proposer, so that all agree on who votes.
 *
 * The structure lies in the store. A daemon may be killed at any instruction: a view is published
 * by one word, after everything that it consists of.
 */
#ifndef ADTOPK_JOB_VIEWS_H
#define ADTOPK_JOB_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/declared.h"
#include "daemon/job/events.h"
#include "daemon/job/membership.h"

/* Every restart of a daemon takes a few numbers, so no node can be further ahead than this. */
#define VIEW_JUMP (1u << 20)
#define VIEWS_PROMISED 8u /* views with different members; a node that promised more refuses */

struct known_view {
    uint32_t view;  /* 0: none yet */
    uint32_t nodes; /* members */
    uint16_t tie_breaker;
    uint16_t node[CORE_MAX_NODES];
    uint32_t ranks[CORE_MAX_NODES]; /* of each member */
    uint64_t since[CORE_MAX_NODES]; /* the step from which they take part: struct membership */
};

struct promised_view {
    uint32_t view; /* it counts while that is higher than the known view's number */
    uint32_t nodes;
    uint16_t tie_breaker;
    uint16_t node[CORE_MAX_NODES];
};

struct views {
    uint32_t changes;  /* the known view is known[changes % 2]; the other is being made */
    uint32_t founders; /* nodes of the job's first view; 0: there was none yet */
    /* Steps from which nodes that joined take part: the last even and the last odd one; 0: none. A
     * node is at most one step behind others, so no other one can matter to it. */
    uint64_t grown[2];
    struct known_view known[2];
    struct promised_view promised[VIEWS_PROMISED];
    struct declared declared[2]; /* what was lost up to the known view, at the same index */
};

static inline const struct known_view *views_known(const struct views *views)
{
    return &views->known[views->changes % 2];
}

/** The known view before that; without members if there was none. */
static inline const struct known_view *views_before(const struct views *views)
{
    return &views->known[(views->changes + 1) % 2];
}

static inline const struct declared *views_declared(const struct views *views)
{
    return &views->declared[views->changes % 2];
}

/** The node's place among the members of the known view; -1: it is not one. */
int views_place(const struct views *views, uint16_t node);
/** Whether nodes that joined take part from this step on. */
static inline bool views_grow_at(const struct views *views, uint64_t step)
{
    return step > 0 && views->grown[step % 2] == step;
}

/** The last step, up to this one, from which nodes that joined take part; 0: none joined. */
uint64_t views_grown_by(const struct views *views, uint64_t step);
/** Whether there is a known view, and the node is not in it. */
bool views_leave_out(const struct views *views, uint16_t node);
/** The step from which the node takes part; SINCE_UNKNOWN: it is not a member, but others are. */
uint64_t views_since(const struct views *views, uint16_t node);
/** Whether the i-th promised view counts. */
bool views_counts(const struct views *views, unsigned i);

/** Whether these nodes may form a view. Always true before there is a known view. */
bool views_allow(const struct views *views, const struct membership *members);
/** Notes that the node takes part in this view if it begins. False: there is no room, and the node
 * must not promise. */
bool views_promise(struct views *views, const struct membership *members, uint32_t view);
/** The view is in force, and with it what is declared as lost. */
void views_take(struct views *views, const struct membership *members, uint32_t view,
    const struct declared *declared);

/** Learns a known view of another node, with ascending nodes. True: it is news. */
bool views_learn(struct views *views, const struct known_view *known);
/** The node joins the job: takes over the known view of the others, and forgets its promises. */
void views_adopt(struct views *views, const struct known_view *known, uint32_t founders);
/** Learns that another node promised a view. True: it is news. */
bool views_learn_promised(struct views *views, const struct promised_view *heard);
/** Whether memory that a daemon left may be read: no view has more nodes than there can be, and
 * they ascend, and none has declared more than can be listed. */
bool views_fit(const struct views *views);
/** Adds everything that another memory of the same node knows, which fits. */
void views_merge(struct views *views, const struct views *other);

#endif
