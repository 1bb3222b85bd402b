/*
 * When the planner is asked: see replan.c. What peers send is taken by replan_estimates(), in
 * view.h.
 */
#ifndef ADTOPK_REPLAN_H
#define ADTOPK_REPLAN_H

#include "daemon/core/model.h"

void replan_step(struct job *job);     /* one is over */
void replan_switched(struct job *job); /* another policy is in force */

#endif
