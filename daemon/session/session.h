/*
 * The life of a trainer's session, whatever connects it: its states, its verdicts, and its end.
 *
 *   - Happy path: session_begin(), the requests of joining.h, the actions of answer.h, and
 *     session_close() after goodbye.
 *   - A client that breaks the protocol is refused: the core and the client hear why.
 *   - What the core refuses becomes a verdict. It takes effect two turns later, when the core's own
 *     reason, if it has one, has been applied.
 *   - README.md lists who owns what, and the assert of each of these rules.
 */
#ifndef ADTOPK_SESSION_SESSION_H
#define ADTOPK_SESSION_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/session/door.h"
#include "daemon/session/protocol.h"

#define SESSION_PEER_SIZE 96

/* What follows from an error of the core. It has to wait: the core may have ended the session's job
 * already, so that the error only says that it no longer knows the session, while the
 * ACTION_FAILED that says why is still in its queue. */
enum verdict {
    VERDICT_NONE,
    VERDICT_ERROR, /* the request is refused */
    VERDICT_END,   /* the request is refused, and the session ends */
    VERDICT_REFUSE /* the client broke the protocol */
};

struct session {
    session_id id;
    struct door *door;
    struct session *next, *previous; /* in door->sessions */
    enum session_state state;
    uint32_t uid, pid;            /* pid 0: on another machine */
    char peer[SESSION_PEER_SIZE]; /* for messages: "process 42" */
    uint32_t rank;
    uint64_t job; /* its number in the core, once the session is READY */
    uint32_t tensors;
    struct error refused; /* the first registration that was refused; told at commit */
    bool known;           /* the core must hear if the session is lost */
    unsigned batches;     /* of its tensors that are in force */
    unsigned lent;        /* arenas that the core has, one per batch */
    uint64_t arena_size;  /* of the last of them */
    bool told;            /* the last word was sent: a final error, or goodbye */
    unsigned users;       /* what else refers to the session: handles, tasks, queues */
    uint64_t deadline_ms; /* CONNECTED, OPEN, RESERVING, ENDED: ended or closed then */
    enum verdict verdict;
    struct error verdict_error;
    uint64_t verdict_turn; /* when the verdict takes effect */
};

/** A connection begins: gives the session, whose uid, pid and peer are filled in, its place.
 * `users` counts what refers to it. */
void session_begin(struct session *session, struct door *door, unsigned users);

/** Moves to a state that the table allows; others are a bug of ours. */
void session_move(struct session *session, enum session_state state);

/** Raises an event for this session. */
enum adtopk_status session_raise(struct session *session, struct event *event, struct error *err);

/** Sends a reply. If it cannot be sent the session is lost. */
void session_send(struct session *session, Adtopk__LocalReply *reply);

/** The client is gone: `what` says what became of it, as in "process 42 closed its connection".
 * Tells the core and closes. */
void session_lost(struct session *session, const char *what);

/** Ends a session: tells the client why, and closes when the client does or after a while. */
void session_end(struct session *session, enum adtopk_status status, const char *text);

/** The client broke the protocol: ends its session, and tells it and the core why. */
void session_refuse(struct session *session, const struct error *why);

/** Passes a verdict on what the core refused. Until it takes effect nothing more is taken. */
void session_judge(struct session *session, enum verdict verdict, const struct error *why);

/** Puts a verdict into effect when its turn has come; true if there was one. */
bool session_execute(struct session *session);

/** Ends the connection. The core knows of it already, or never knew the session. */
void session_close(struct session *session);

/** One of `users` refers to the session no more. May free it. */
void session_drop(struct session *session);

/** The core asks for the session's arena of a batch of tensors, and has it until
 * session_take_back(). */
const void *session_lend(
    struct doors *doors, session_id id, unsigned batch, uint64_t size, struct error *err);

/** The core gives all arenas back. Does nothing if it had none, or the session is gone. */
void session_take_back(struct doors *doors, session_id id);

/** Ends sessions that have kept the daemon waiting for too long. True if one still has a deadline.
 */
bool session_expire(struct door *door);

/** The daemon stops: tells every client and closes. The core is destroyed. */
void session_stop(struct door *door);

#endif
