/*
 * A framed collective whose frames a carrier moves: traits.framed is that collective, and all but
 * the way of its frames is its own. So the update has the bits that it has by frames.
 *
 * A phase of the framed collective becomes an operation. It is a GATHER if a node sends all others
 * the same frame, and a DEAL if each gets its own. Pieces of an operation have one size: the length
 * comes first, then the frame, padded to the largest of all nodes, which the ready frames tell.
 * Where all select the same number of entries and encode them raw, next to nothing is padded.
 *
 * Failures: a member is blamed for a size that no frame of these tensors has, and for a piece whose
 * length does not fit.
 */
#ifndef ADTOPK_CARRIED_FRAMES_H
#define ADTOPK_CARRIED_FRAMES_H

#include "daemon/collective/collective.h"

/** For collective_ops. The framed collective must have one frame per phase and receiver, and expect
 * frames of all members. */
unsigned carried_frames_phases(const struct exchange *exchange);
enum adtopk_status carried_frames_produce(
    struct exchange *exchange, unsigned phase, struct error *err);
enum adtopk_status carried_frames_finish(struct exchange *exchange, struct error *err);
void carried_frames_drop(struct exchange *exchange);

#endif
