/*
 * How long a job waits for its peers and ranks.
 */
#ifndef ADTOPK_CORE_JOB_WAIT_H
#define ADTOPK_CORE_JOB_WAIT_H

#include "daemon/job/model.h"

void job_check_time(struct job *job);
uint64_t job_deadline(const struct job *job);

#endif
