/*
 * What a round gives its collective, and the frames that come out.
 */
#ifndef ADTOPK_WORK_ROUND_EXCHANGE_H
#define ADTOPK_WORK_ROUND_EXCHANGE_H

#include "daemon/job/model.h"

enum adtopk_status round_begin_exchange(struct round *round); /* in the view in force */
void round_drop_exchange(struct round *round);                /* and all its frames */
void round_drop_inputs(struct round *round, unsigned phase);  /* only the frames of a phase */
enum adtopk_status round_send_frames(struct round *round);    /* those that left a compute */

void core_send_frame(const struct round *round, uint16_t node, struct buffer *frame);

#endif
