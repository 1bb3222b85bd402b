/*
 * How the values of a job go between nodes, in words.
 */
#ifndef ADTOPK_COMPUTE_LAUNCH_DESCRIBE_H
#define ADTOPK_COMPUTE_LAUNCH_DESCRIBE_H

#include "daemon/job/model.h"

/** "by NCCL 2.28.9", or why the job does without; "" if its policy names no collective that is
 * carried. */
void launch_describe(const struct job *job, char *text, size_t size);

#endif
