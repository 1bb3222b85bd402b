/*
 * Messages from other nodes: who may say what.
 */
#ifndef ADTOPK_CORE_DISPATCH_H
#define ADTOPK_CORE_DISPATCH_H

#include "daemon/job/model.h"

void dispatch_control(struct core *core, uint16_t node, const struct buffer *message);

#endif
