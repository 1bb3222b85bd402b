/*
 * When the planner is asked: see replan.c.
 */
#ifndef ADTOPK_REPLAN_H
#define ADTOPK_REPLAN_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* Sends the coordinator what a step that has just closed took. False: none has. */
bool replan_step(struct job *job);
/* Takes what a member sends. */
void replan_estimates(struct job *job, uint16_t from, const Adtopk__PeerEstimates *message);

#endif
