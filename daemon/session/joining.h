/*
 * How a trainer joins and leaves its job over every kind of connection: open, register, commit,
 * mapped and leave. This file checks the requests and passes them to the core. It also answers a
 * trainer that reads a residual.
 */
#ifndef ADTOPK_SESSION_JOINING_H
#define ADTOPK_SESSION_JOINING_H

#include "daemon/session/session.h"

/** Takes a request of a session that has no verdict and has not said goodbye. The session may have
 * ended afterwards. */
void joining_take(struct session *session, const Adtopk__LocalRequest *request);

/** The connection is reserving the arena's memory. Until joining_commit() the session reads no
 * requests of the client. */
void joining_wait(struct session *session);

/** The arena's memory is reserved, or need not be. Tells the core that the rank commits. */
void joining_commit(struct session *session);

#endif
