/*
 * A door: all sessions over one kind of connection, and who may have one more. A daemon's doors
 * know of each other, because the limits of a user count at all of them.
 *
 *   - A session has a place in its door from door_enter() to door_leave(). Its number leads to it.
 *   - Nobody but root can lock all others out: a user may hold three quarters of a door's places,
 * or as many at all doors as the limit says. The last sixteenth is root's, and the one before that
 *     is for users who hold less than a sixty-fourth.
 */
#ifndef ADTOPK_SESSION_DOOR_H
#define ADTOPK_SESSION_DOOR_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "daemon/session/connection.h"

/* What may change while sessions are served. */
struct door_limits {
    uint32_t user_sessions; /* of one user at all doors, root excepted; 0: none */
    uint64_t commit_ms;     /* from a session's opening to its commit; 0: for ever */
};

/* Counts since door_open(), but for `sessions`. */
struct door_stats {
    uint32_t sessions;        /* connected now */
    uint64_t opened;          /* sessions ever */
    uint64_t refused;         /* connections refused: too many, no right, no memory */
    uint64_t refused_share;   /* how many of them because one user had too many */
    uint64_t lost;            /* sessions whose process went away without leaving */
    uint64_t protocol_errors; /* sessions ended because of what their client did */
};

#define DOORS_MAX 4

struct door;

/* All doors of a daemon. */
struct doors {
    /* Takes an event of a session: the owner stamps now_us and passes it to core_event(), whose
     * result it returns. Must not apply actions. The pointers in the event are valid during the
     * call only. */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
    /* Takes one line on a trainer of this user that was turned away; may be NULL. A flood of those
     * is a flood of calls: the callee limits what it writes. */
    void (*warn)(void *context, uint32_t uid, const char *line);
    void *context; /* of both */
    struct door_limits limits;
    struct door *door[DOORS_MAX]; /* the number of a session says which; NULL: none */
};

struct door {
    const struct connection *connection;
    uv_loop_t *loop;
    uint32_t max_sessions;
    struct doors *doors;
    unsigned number;          /* of the door */
    struct session *sessions; /* all, in no order */
    struct session **slot;    /* by id % max_sessions */
    uint32_t used;            /* slots */
    uint64_t serial;
    uint64_t turn; /* of the loop; its owner counts them */
    struct door_stats stats;
};

/** Makes room for door->max_sessions. The owner has filled in what stands above `doors`. */
enum adtopk_status door_open(struct door *door, struct doors *doors, struct error *err);

/** Frees the room, and takes the door away, if it was opened. All sessions have left. */
void door_free(struct door *door);

/** Gives the session a number and a place. door_admit() said that there is one. */
void door_enter(struct door *door, struct session *session);

/** Takes its place back. Nobody uses the session any more: neither its connection nor the core. */
void door_leave(struct session *session);

/** The session of that number, or NULL. */
struct session *door_find(const struct doors *doors, session_id id);

/** Sessions that are connected now, at all doors. */
uint32_t door_count(const struct doors *doors);

/** True if the user may have one more session; else `text` says why not. */
bool door_admit(struct door *door, uint32_t uid, char text[ERROR_TEXT_SIZE]);

/** Counts and logs a trainer that was turned away. */
void door_refused(struct door *door, uint32_t uid, const char *peer, const char *why);

/** Logs a trainer that was turned away, by a name as session->peer. */
void door_warn(const struct door *door, uint32_t uid, const char *peer, const char *why);

#endif
