/*
 * The states of a trainer's session, and the requests that may come in each state.
 *
 * - Happy path: CONNECTED, OPEN, ARENA, MAPPED, READY, LEAVING, CLOSED.
 * - A move that the table does not have is a bug of the daemon. A request that it does not have is
 *   an error of the client.
 */
#ifndef ADTOPK_SESSION_PROTOCOL_H
#define ADTOPK_SESSION_PROTOCOL_H

#include <stdbool.h>

#include "proto/error.h"
#include "proto/local.pb-c.h"

enum session_state {
    SESSION_CONNECTED, /* the client has said nothing yet */
    SESSION_OPEN,      /* a rank of a job; the client registers tensors */
    /* The client commits; the daemon reserves the arena's memory and reads no requests. */
    SESSION_RESERVING,
    SESSION_ARENA,   /* committed; the client is to map its arena */
    SESSION_MAPPED,  /* the arena is sealed; the session waits for the job */
    SESSION_READY,   /* the rank trains */
    SESSION_LEAVING, /* the client said goodbye; the core is finishing */
    SESSION_ENDED, /* the client was told, and may read why; the core may still use its gradients */
    SESSION_CLOSED, /* the connection is gone; the core may still use the gradients */
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
