/*
 * What the core decided, told to its session.
 */
#ifndef ADTOPK_SESSION_ANSWER_H
#define ADTOPK_SESSION_ANSWER_H

#include "daemon/session/session.h"

/** Applies READY, DELIVERED, STEP, OP_DONE, FAILED or CLOSED, never inside an event. An action for
 * a session that has ended or gone is ignored. */
void answer_apply(struct doors *doors, const struct action *action);

#endif
