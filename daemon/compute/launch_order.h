/*
 * The rounds whose operations wait for their turn: see launch.h. Each has proposed a number, and
 * none is started.
 */
#ifndef ADTOPK_COMPUTE_LAUNCH_ORDER_H
#define ADTOPK_COMPUTE_LAUNCH_ORDER_H

#include "daemon/job/model.h"

/** Whether `a` comes before `b` in the order of all nodes, as far as this one knows. */
bool launch_before(const struct round *a, const struct round *b);

void launch_add(struct round *round);
void launch_remove(struct round *round);

/** The round that is next, whether its number is agreed on or not; NULL: none waits. */
struct round *launch_first(const struct core *core);

#endif
