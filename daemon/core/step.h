/*
 * Steps: they are opened, become complete, and are accepted or withdrawn.
 */
#ifndef ADTOPK_CORE_STEP_H
#define ADTOPK_CORE_STEP_H

#include "daemon/job/model.h"

void step_open(struct job *job);   /* as far as the store knows it: see round_recover() */
void step_rest(struct job *job);   /* notes the ledgers, before the next step changes them */
void step_start(struct job *job);  /* tries all rounds */
bool step_settle(struct job *job); /* closes the step, and returns true, if it is complete */

#endif
