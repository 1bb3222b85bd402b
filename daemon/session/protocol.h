/*
 * The states of a trainer's session, and which request may come in which of them.
 *
 *   - Happy path: CONNECTED, OPEN, ARENA, MAPPED, READY, LEAVING, CLOSED.
 *   - A move that the table does not have is a bug of ours. A request that it does not have is an
 *     error of the client.
 */
#ifndef ADTOPK_SESSION_PROTOCOL_H
#define ADTOPK_SESSION_PROTOCOL_H

#include <stdbool.h>

#include "proto/error.h"
#include "proto/local.pb-c.h"

enum session_state {
    SESSION_CONNECTED, /* has said nothing yet */
    SESSION_OPEN,      /* a rank of a job; registers */
    SESSION_RESERVING, /* commits; memory for its arena is being reserved, it is not listened to */
    SESSION_ARENA,     /* committed; its arena is on its way to be mapped */
    SESSION_MAPPED,    /* its arena is sealed; waits for the job */
    SESSION_READY,     /* trains */
    SESSION_LEAVING,   /* said goodbye; the core finishes */
    SESSION_ENDED,     /* was told so, and may read why; the core may still use its gradients */
    SESSION_CLOSED,    /* has no connection any more; the core may still use its gradients */
    SESSION_STATES
};

/** True if the table has this move. */
bool protocol_may_move(enum session_state from, enum session_state to);

/** The name of a state, for error messages. */
const char *protocol_name(enum session_state state);

/** Errors: PROTOCOL, if the request may not come in this state. */
enum adtopk_status protocol_allow(
    enum session_state state, Adtopk__LocalRequest__KindCase kind, struct error *err);

#endif
