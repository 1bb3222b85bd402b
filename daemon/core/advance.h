/*
 * The next things that jobs do after an event was handled.
 */
#ifndef ADTOPK_CORE_ADVANCE_H
#define ADTOPK_CORE_ADVANCE_H

#include "daemon/job/model.h"

/* Lets every touched job (job_touch() in job/job_state.h) do what it can do now. */
void advance_jobs(struct core *core);

#endif
