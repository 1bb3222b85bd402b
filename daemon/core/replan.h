/*
 * Deciding when to ask the planner: see replan.c.
 */
#ifndef ADTOPK_REPLAN_H
#define ADTOPK_REPLAN_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* Sends the coordinator the measurements of a step that has just closed. False: none has. */
bool replan_step(struct job *job);
/* Handles the measurements of a member. */
void replan_estimates(struct job *job, uint16_t from, const Adtopk__PeerEstimates *message);

#endif
