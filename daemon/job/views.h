/*
 * The views that a node knows, and which nodes may go on without the others.
 *
 * A job whose policy is on_peer_loss "shrink" goes on without nodes that are lost. If the network
 * is cut, at most one side may do so, whatever messages were lost and whichever daemons were
 * killed. So every node remembers:
 *
 *   the known view     the last one in force, as far as the node has heard, with its members
 *   promised views     later ones with other members that the node promised to take part in. Each
 *                      of them may be in force on some node that it does not hear.
 *
 * Nodes may form a view if all of them are members of the known view, and if they are more than
 * half of the known view, and more than half of each promised one. Half is enough for the half with
 * the lowest member. Every node checks this before it promises, and a view begins only when all of
 * its members have promised. So two views that begin have a common member, and it knows the earlier
 * one. This is dynamic voting with ambiguous attempts (Yeger-Lotem, Keidar, Dolev: Dynamic voting
 * for consistent primary components, PODC 1997).
 *
 * The structure lies in the store. A daemon may be killed at any instruction: a view is published
 * by one word, after everything that it consists of.
 */
#ifndef ADTOPK_JOB_VIEWS_H
#define ADTOPK_JOB_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/events.h"
#include "daemon/job/membership.h"

#define VIEWS_PROMISED 8u /* views with different members; a node that promised more refuses */

struct known_view {
    uint32_t view;  /* 0: none yet */
    uint32_t nodes; /* members */
    uint16_t node[CORE_MAX_NODES];
    uint32_t ranks[CORE_MAX_NODES]; /* of each member */
};

struct promised_view {
    uint32_t view; /* it counts while that is higher than the known view's number */
    uint32_t nodes;
    uint16_t node[CORE_MAX_NODES];
};

struct views {
    uint32_t turn;     /* the known view is known[turn % 2]; the other is being made */
    uint32_t founders; /* nodes of the first view that the node took part in; 0: none yet */
    struct known_view known[2];
    struct promised_view promised[VIEWS_PROMISED];
};

static inline const struct known_view *views_known(const struct views *views)
{
    return &views->known[views->turn % 2];
}

/** The known view before that; without members if there was none. */
static inline const struct known_view *views_before(const struct views *views)
{
    return &views->known[(views->turn + 1) % 2];
}

/** The node's place among the members of the known view; -1: it is not one. */
int views_place(const struct views *views, uint16_t node);
/** Whether the i-th promised view counts. */
bool views_counts(const struct views *views, unsigned i);

/** Whether these nodes may form a view. Always true before there is a known view. */
bool views_allow(const struct views *views, const struct membership *members);
/** Notes that the node takes part in this view if it begins. False: there is no room, and the node
 * must not promise. */
bool views_promise(struct views *views, const struct membership *members, uint32_t view);
/** The view is in force. */
void views_take(struct views *views, const struct membership *members, uint32_t view);

/** Learns a known view of another node, with ascending nodes. True: it is news. */
bool views_learn(struct views *views, const struct known_view *known);
/** Learns that another node promised a view. True: it is news. */
bool views_learn_promised(struct views *views, const uint16_t *node, uint32_t nodes, uint32_t view);
/** Adds everything that another memory of the same node knows. */
void views_merge(struct views *views, const struct views *other);

#endif
