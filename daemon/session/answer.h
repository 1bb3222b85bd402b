/*
 * Passes the core's decisions on to the sessions that they concern.
 */
#ifndef ADTOPK_SESSION_ANSWER_H
#define ADTOPK_SESSION_ANSWER_H

#include "daemon/session/session.h"

/** Applies READY, DELIVERED, STEP, OP_DONE, FAILED or CLOSED. Do not call it inside an event. It
 * ignores an action for a session that has ended or gone. */
void answer_apply(struct doors *doors, const struct action *action);

/** Says that all actions of the core have been applied: verdicts that waited take effect. */
void answer_emptied(struct doors *doors);

#endif
