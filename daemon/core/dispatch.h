/*
 * Messages from other nodes, and which nodes may send them.
 */
#ifndef ADTOPK_CORE_DISPATCH_H
#define ADTOPK_CORE_DISPATCH_H

#include "daemon/job/model.h"

void dispatch_control(struct core *core, uint16_t node, const struct buffer *message);

#endif
