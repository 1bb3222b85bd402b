/*
 * Frames from other nodes, also frames that come before their round can take them.
 */
#ifndef ADTOPK_CORE_FRAME_H
#define ADTOPK_CORE_FRAME_H

#include "daemon/job/model.h"

void frame_receive(struct job *job, uint16_t node, struct buffer *frame);
void frame_take_parked(struct round *round);
void frame_release_early(struct job *job); /* gives job->early.frames to the rounds */
void frame_drop_early(struct job *job);

#endif
