/*
 * The coordinator's side of a view: propose, collect the states, decide.
 */
#ifndef ADTOPK_CORE_COORDINATE_H
#define ADTOPK_CORE_COORDINATE_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

void coordinate(
    struct job *job); /* proposes a view if it is this node's turn and there is reason */
/* Does so if members were lost, or came back. */
bool coordinate_regroup(struct job *job);
/* Proposes a view of the same nodes: the one that puts the next policy in force, once all members
 * hold for it; or, between two changes, one that says when to save a checkpoint. */
bool coordinate_anew(struct job *job);
void coordinate_above(struct job *job, uint32_t view); /* proposes one with a higher number */
void coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state);

#endif
