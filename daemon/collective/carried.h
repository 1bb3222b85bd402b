/*
 * What collectives share whose values a carrier moves (cargo.h). They have two phases of small
 * frames, and then one operation of the carrier:
 *
 * 1. *Ready*: each node tells the others that it has its contribution, how large that is, and which
 *    groups it knows. Marks of tensors and the loss scale come with it. So an operation is begun
 *    only when all members have something to give, and a late rank holds up nobody else.
 * 2. *Number*: each node proposes a number for the operation, higher than all that it has seen. The
 *    highest proposal counts. As all nodes hear the same proposals, they agree on it, and start
 *    operations of all jobs in the order of these numbers (daemon/compute/launch.h). The leader
 *    also tells the group.
 *
 * A collective's produce() calls carried_ready() in the first phase. In the second it calls
 * carried_hear(), makes exchange->carried.cargo, and calls carried_number().
 */
#ifndef ADTOPK_CARRIED_H
#define ADTOPK_CARRIED_H

#include "daemon/collective/collective.h"

#define CARRIED_PHASES 2u

/* exchange->state of such a collective. */
struct carried_state {
    struct payload_writer frame; /* a list that the carrier is to move; else empty */
    uint64_t size[];             /* per member: the size that its ready frame told */
};

/** For collective_ops. A lone member has one phase, without frames. */
unsigned carried_phases(const struct exchange *exchange);
bool carried_expects(const struct exchange *exchange, unsigned phase, unsigned from);
void carried_drop(struct exchange *exchange);

/** Makes exchange->state. NULL, with an error, without memory. */
struct carried_state *carried_begin(struct exchange *exchange, struct error *err);

/** Makes the frame of the first phase. Errors: MEMORY. */
enum adtopk_status carried_ready(struct exchange *exchange, uint64_t size, struct error *err);

/** Notes what all ready frames tell. Errors: PROTOCOL, which names the node. */
enum adtopk_status carried_hear(struct exchange *exchange, struct error *err);

/** Makes the frame of the second phase. Errors: MEMORY. */
enum adtopk_status carried_number(struct exchange *exchange, struct error *err);

/** The highest of what all members told of groups. Does without a bad frame, which carried_hear()
 * will blame. */
void carried_groups(const struct exchange *exchange, struct carried_groups *said);

/** The operation's number, and the group that the leader told, from the frames of the second phase.
 * Errors: PROTOCOL, which names the node. */
enum adtopk_status carried_agree(const struct exchange *exchange, uint64_t *number,
    struct cargo_group *group, struct error *err);

#endif
