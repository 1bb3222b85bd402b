/*
 * From one policy to the next: what is kept beside a residual.
 */
#ifndef ADTOPK_HANDOVER_H
#define ADTOPK_HANDOVER_H

#include "daemon/core/model.h"

/**
 * Makes what the next plan keeps of a tensor, beside what the one in force keeps, while the step is
 * held: velocities, where both have momentum, else zeros; and what sparsifiers remember, where both
 * select alike. It counts once the next policy is in force. Repeatable. For a compute.
 */
void handover_tensor(const struct job *job, uint32_t tensor);

/** How much memory the change to the next plan writes, but for some words. */
uint64_t handover_bytes(const struct job *job);

#endif
