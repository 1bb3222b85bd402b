/*
 * A door: all sessions over one kind of connection, and the decision who may open another. The
 * doors of a daemon know each other, because the limits of a user count at all of them.
 *
 * - A session has a place in its door from door_enter() to door_leave(). Its number leads to the
 *   place.
 * - No user but root can lock all others out. A user may hold three quarters of a door's places,
 *   or, if user_sessions is set, that many at all doors. The last sixteenth of the places is
 *   root's. The sixteenth before it is for users who hold fewer than a sixty-fourth of the places.
 */
#ifndef ADTOPK_SESSION_DOOR_H
#define ADTOPK_SESSION_DOOR_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "daemon/session/connection.h"

/* Limits that may change while the daemon serves sessions. */
struct door_limits {
    uint32_t user_sessions; /* sessions of one user at all doors, root excepted; 0: no limit */
    uint64_t commit_ms;     /* time from a session's opening to its commit; 0: no limit */
};

/* Counts since door_open(). Only `sessions` is a present number. */
struct door_stats {
    uint32_t sessions;        /* connected now */
    uint64_t opened;          /* all sessions so far */
    uint64_t refused;         /* connections refused: too many, no right, no memory */
    uint64_t refused_share;   /* of these, because one user had too many */
    uint64_t lost;            /* ranks of a job that went without leaving it */
    uint64_t protocol_errors; /* sessions that ended because their client broke the protocol */
};

#define DOORS_MAX 4

struct door;

/* All doors of a daemon. */
struct doors {
    /* Passes on an event of a session: the owner stamps now_us, calls core_event() and returns its
     * result. It must not apply actions. The pointers in the event are valid during the call only.
     */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
    /* Logs one line about a trainer of this user that was turned away; may be NULL. A flood of
     * trainers leads to a flood of calls: the function itself limits what it writes. */
    void (*warn)(void *context, uint32_t uid, const char *line);
    void *context; /* the first argument of both */
    struct door_limits limits;
    uint64_t emptied; /* how often all actions of the core had been applied (answer_emptied()) */
    /* By the door's number, which a session's number contains; NULL: none. */
    struct door *door[DOORS_MAX];
};

struct door {
    const struct connection *connection;
    uv_loop_t *loop;
    uint32_t max_sessions;
    struct doors *doors;
    unsigned number;          /* the door's own number */
    struct session *sessions; /* all sessions, in no order */
    struct session **slot;    /* by id % max_sessions */
    uint32_t used;            /* used slots */
    uint64_t serial;
    struct door_stats stats;
};

/** Makes room for door->max_sessions. The owner has filled in the fields above `doors`. */
enum adtopk_status door_open(struct door *door, struct doors *doors, struct error *err);

/** Frees the room and, if the door was opened, removes it from the doors. All sessions have left.
 */
void door_free(struct door *door);

/** Gives the session a number and a place. The caller has asked door_admit(), so there is one. */
void door_enter(struct door *door, struct session *session);

/** Takes the session's place back. Neither its connection nor the core uses the session any more.
 */
void door_leave(struct session *session);

/** The session of that number, or NULL. */
struct session *door_find(const struct doors *doors, session_id id);

/** The sums of all doors. */
struct door_stats door_count(const struct doors *doors);

/** True if the user may have one more session; else `text` says why not. */
bool door_admit(struct door *door, uint32_t uid, char text[ERROR_TEXT_SIZE]);

/** Counts and logs a trainer that was turned away. */
void door_refused(struct door *door, uint32_t uid, const char *peer, const char *why);

/** Logs a trainer that was turned away. `peer` names it as session->peer does. */
void door_warn(const struct door *door, uint32_t uid, const char *peer, const char *why);

#endif
