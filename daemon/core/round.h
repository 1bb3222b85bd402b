/*
 * Rounds: one bucket, or the plain operations, at one step.
 */
#ifndef ADTOPK_CORE_ROUND_H
#define ADTOPK_CORE_ROUND_H

#include "daemon/job/model.h"

void round_open(struct round *round);
void round_recover(struct round *round); /* opens it as the store says; no compute may run */
void round_push(struct round *round, unsigned rank); /* the rank-th local rank pushed */
void round_try(struct round *round);
void round_advance(struct round *round); /* goes on if all frames of the phase are there */
void round_freeze(struct round *round);
void round_fetch(struct round *round, uint16_t holder);
void round_split(struct round *round, uint64_t step);
void round_close(struct round *round);
void round_copy(struct round *round, const struct buffer *frame);
void round_send_copy(const struct round *round, uint16_t node, uint64_t number);

#endif
