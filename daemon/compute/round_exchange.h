/*
 * Setting up a round's collective, and sending the frames that it makes.
 */
#ifndef ADTOPK_COMPUTE_ROUND_EXCHANGE_H
#define ADTOPK_COMPUTE_ROUND_EXCHANGE_H

#include "daemon/job/model.h"

enum adtopk_status round_begin_exchange(struct round *round); /* in the view in force */
void round_drop_exchange(struct round *round);                /* and all its frames */
void round_drop_inputs(struct round *round, unsigned phase);  /* drops only the frames of a phase */
/* Sends the frames that a compute has made. */
enum adtopk_status round_send_frames(struct round *round);

void core_send_frame(const struct round *round, uint16_t node, struct buffer *frame);

#endif
