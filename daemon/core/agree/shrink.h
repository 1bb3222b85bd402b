/*
 * Jobs that go on without nodes that are lost.
 */
#ifndef ADTOPK_CORE_SHRINK_H
#define ADTOPK_CORE_SHRINK_H

#include "daemon/job/model.h"

/* The prepared members, which are fewer than those in force, take their place. */
void shrink_take(struct job *job);

#endif
