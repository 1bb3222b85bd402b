/*
 * How a trainer joins its job and leaves it, checked and passed to the core: open, register,
 * commit, mapped and leave, over every kind of connection; and how it reads a residual.
 */
#ifndef ADTOPK_SESSION_JOINING_H
#define ADTOPK_SESSION_JOINING_H

#include "daemon/session/session.h"

/** Takes a request of a session that has no verdict and has not said goodbye. The session may have
 * ended afterwards. */
void joining_take(struct session *session, const Adtopk__LocalRequest *request);

/** The connection reserves the arena's memory: until joining_commit() the client is not listened
 * to. */
void joining_wait(struct session *session);

/** The arena's memory is reserved, or need not be: tells the core that the rank commits. */
void joining_commit(struct session *session);

#endif
