/*
 * What collectives share whose values a carrier moves (cargo.h). They make one or more operations
 * of the carrier, one after the other. Before each come two phases of small frames:
 *
 * 1. *Ready*, an even phase: each node tells the others that it has its contribution, how large
 *    that is, and which groups it knows. Marks of tensors and the loss scale come with it. So an
 *    operation is begun only when all members have something to give, and a late rank holds up
 *    nobody else.
 * 2. *Number*, an odd phase: each node proposes a number for the operation, higher than all that it
 *    has seen. The highest proposal counts. As all nodes hear the same proposals, they agree on it,
 *    and start operations of all jobs in the order of these numbers (daemon/compute/launch.h). The
 *    leader also tells the group.
 *
 * A collective's produce() calls carried_ready() in even phases. In odd ones it calls
 * carried_hear(), makes exchange->carried.cargo, and calls carried_number(). The operation is done
 * before the next phase, or finish().
 */
#ifndef ADTOPK_CARRIED_H
#define ADTOPK_CARRIED_H

#include "daemon/collective/collective.h"

#define CARRIED_PHASES 2u /* per operation */

/* exchange->carried.state of such a collective. */
struct carried_state {
    struct exchange_frame *frame; /* frames that the carrier is to move (carried_frames.c) */
    unsigned frames;
    uint64_t size[]; /* per member: the size that its last ready frame told */
};

/** For collective_ops.phases, with one operation. A lone member has one phase, without frames. */
unsigned carried_phases(const struct exchange *exchange);

/** Makes exchange->carried.state. NULL, with an error, without memory. */
struct carried_state *carried_begin(struct exchange *exchange, struct error *err);

/** Frees the frames that the carrier was to move. */
void carried_drop_frames(struct carried_state *state);

/** Frees the operation, which the carrier does not have, and the state. There may be none. */
void carried_drop(struct exchange *exchange);

/** Makes the frame of an even phase. Errors: MEMORY. */
enum adtopk_status carried_ready(
    struct exchange *exchange, unsigned phase, uint64_t size, struct error *err);

/** Notes what all ready frames of that phase tell. Errors: PROTOCOL, which names the node. */
enum adtopk_status carried_hear(struct exchange *exchange, unsigned phase, struct error *err);

/** Makes the frame of an odd phase. Errors: MEMORY. */
enum adtopk_status carried_number(struct exchange *exchange, unsigned phase, struct error *err);

/** The highest of what all members told of groups in an even phase. Does without a bad frame, which
 * carried_hear() will blame. */
void carried_groups(const struct exchange *exchange, unsigned phase, struct carried_groups *said);

/** The operation's number, and the group that the leader told, from the frames of an odd phase.
 * Errors: PROTOCOL, which names the node. */
enum adtopk_status carried_agree(const struct exchange *exchange, unsigned phase, uint64_t *number,
    struct cargo_group *group, struct error *err);

#endif
