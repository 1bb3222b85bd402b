/*
 * Jobs that go on without nodes that are lost.
 */
#ifndef ADTOPK_COMPUTE_SHRINK_H
#define ADTOPK_COMPUTE_SHRINK_H

#include "daemon/job/model.h"

/* The prepared members take the place of those in force. The job forgets all other nodes. */
void shrink_take(struct job *job);

#endif
