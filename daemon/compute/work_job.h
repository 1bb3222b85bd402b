/*
 * Computations for a whole job between two steps.
 */
#ifndef ADTOPK_COMPUTE_WORK_JOB_H
#define ADTOPK_COMPUTE_WORK_JOB_H

#include "daemon/compute/work.h"

extern const struct work_kind work_switch; /* converts residuals and velocities for the next plan */
extern const struct work_kind work_rejoin; /* ends a joining of residuals that was cut off */
extern const struct work_kind work_verify; /* the ledgers' sums, into tensor.found */

/* About how much memory the change to the next plan touches. */
uint64_t work_switch_bytes(const struct job *job);

#endif
