/*
 * The life of a trainer's session over any connection: its states, its verdicts, and its end.
 *
 * - Happy path: session_begin(), the requests of joining.h, the actions of answer.h, and
 *   session_close() after goodbye.
 * - If a client breaks the protocol the session refuses it, and tells the core and the client why.
 * - An error of the core becomes a verdict. It takes effect once all actions of the core have been
 *   applied. The core's own reason, if there is one, is among them.
 * - README.md lists who owns what, and the assert of each of these rules.
 */
#ifndef ADTOPK_SESSION_SESSION_H
#define ADTOPK_SESSION_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/session/door.h"
#include "daemon/session/protocol.h"

#define SESSION_PEER_SIZE 96

/* The consequence of an error of the core. It has to wait, because the core may have ended the
 * session's job already. The error then says only that the core does not know the session. The
 * reason is in an ACTION_FAILED that is still in the core's queue. */
enum verdict {
    VERDICT_NONE,
    VERDICT_ERROR, /* the request is refused */
    VERDICT_END,   /* the request is refused, and the session ends */
    VERDICT_REFUSE /* the client broke the protocol */
};

struct session {
    session_id id;
    struct door *door;
    struct session *next, *previous; /* neighbours in door->sessions */
    enum session_state state;
    uint32_t uid, pid;            /* user and process of the client; pid 0: on another machine */
    char peer[SESSION_PEER_SIZE]; /* the client's name in messages: "process 42" */
    struct job_key key;           /* of its job; no name before the core knows the session */
    uint32_t rank;
    uint64_t job; /* the job's number in the core, once the session is READY */
    uint32_t tensors;
    /* The first registration that was refused; the answer to the commit brings it. */
    struct error refused;
    bool known;          /* the core must hear if the session is lost */
    uint64_t step;       /* in which the client is that returns to a run; UINT64_MAX: none does */
    unsigned brings;     /* how often it commits before it can be ready; 0: once */
    uint32_t abilities;  /* of the client: enum local_ability (proto/local.h), combined */
    bool comes_back;     /* its process takes the place of one that ended */
    unsigned batches;    /* batches of its tensors that are in force */
    unsigned lent;       /* arenas that the core has, one per batch */
    uint64_t arena_size; /* size of the last of these arenas */
    bool told;           /* the last message was sent: a final error, or goodbye */
    unsigned users;      /* how many handles, tasks and queues refer to the session */
    /* When a session in CONNECTED, OPEN or ENDED is ended or closed. */
    uint64_t deadline_ms;
    enum verdict verdict;
    struct error verdict_error;
    uint64_t verdict_emptied; /* doors->emptied when it was passed; greater: it takes effect */
};

/** Begins the session of a new connection, whose uid, pid and peer are filled in: gives it a place.
 * `users` counts the handles, tasks and queues that refer to it. */
void session_begin(struct session *session, struct door *door, unsigned users);

/** Moves to another state, which the table must allow. */
void session_move(struct session *session, enum session_state state);

/** Raises an event for this session. */
enum adtopk_status session_raise(struct session *session, struct event *event, struct error *err);

/** Sends a reply. If it cannot be sent, the session is lost. */
void session_send(struct session *session, Adtopk__LocalReply *reply);

/** Handles a client that is gone: tells the core, and closes. `what` says what the client did, as
 * in "process 42 closed its connection". */
void session_lost(struct session *session, const char *what);

/** Ends a session: tells the client why. The session closes when the client does, or after a while.
 */
void session_end(struct session *session, enum adtopk_status status, const char *text);

/** Ends the session of a client that broke the protocol, and tells the client and the core why. */
void session_refuse(struct session *session, const struct error *why);

/** Passes a verdict because of an error of the core. Until the verdict takes effect the session
 * reads no requests. */
void session_judge(struct session *session, enum verdict verdict, const struct error *why);

/** Puts a verdict into effect when its turn has come; true if there was one. */
bool session_execute(struct session *session);

/** Closes the connection. The core knows of the end already, or never knew the session. */
void session_close(struct session *session);

/** One of `users` stops referring to the session. This may free the session. */
void session_drop(struct session *session);

/** Lends the core the session's arena of a batch of tensors, until session_take_back(). */
const void *session_lend(
    struct doors *doors, session_id id, unsigned batch, uint64_t size, struct error *err);

/** Takes all arenas back from the core. Does nothing if the core had none, or the session is gone.
 */
void session_take_back(struct doors *doors, session_id id);

/** Ends sessions that have kept the daemon waiting for too long. True if a session still has a
 * deadline. */
bool session_expire(struct door *door);

/** Tells clients that the daemon stops, and closes all sessions. stay: they are told nothing, so
 * that they come back to the next daemon. The core is destroyed already. */
void session_stop(struct door *door, bool stay);

#endif
