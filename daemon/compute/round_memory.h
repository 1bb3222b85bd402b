/*
 * The memory of a round: its lists of tensors and pushes, its exchange, and parked frames.
 */
#ifndef ADTOPK_COMPUTE_ROUND_MEMORY_H
#define ADTOPK_COMPUTE_ROUND_MEMORY_H

#include "daemon/job/model.h"

enum adtopk_status round_init(struct round *round, struct job *job, uint32_t bucket,
    const uint32_t *tensor, unsigned tensors);
void round_free(struct round *round);
/* Drops parked frames of views before `view` and of numbers before `number`. */
void round_drop_parked(struct round *round, uint32_t view, uint64_t number);

#endif
