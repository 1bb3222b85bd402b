/*
 * A session, and what the files of this folder share.
 *
 *   local.c     the public functions        listen.c   the socket, accepting
 *   session.c   states, ending, freeing     request.c  messages of a client -> events
 *   submit.c    ring entries -> events      reply.c    actions of the core -> the client
 *   memory.c    the core's memory: gradients, results, stores
 *   reserve.c   reserving gradients ahead of the core
 *   keeper.c    takes and gives back memory on another thread
 *
 * Functions that may end a session return void: look at its state afterwards. A session's memory
 * is never freed inside them, only when its handles are closed, from the loop.
 */
#ifndef ADTOPK_LOCAL_SESSION_H
#define ADTOPK_LOCAL_SESSION_H

#include <stdatomic.h>
#include <sys/types.h>

#include "daemon/local/keeper.h"
#include "daemon/local/local.h"
#include "daemon/local/outbox.h"
#include "daemon/local/ring.h"
#include "daemon/local/segment.h"
#include "daemon/local/store.h"

#define SESSION_OPEN_MS 5000   /* to say who it is */
#define SESSION_LINGER_MS 1000 /* to read why it ended */

enum session_state {
    SESSION_CONNECTED, /* has said nothing yet */
    SESSION_OPEN,      /* a rank of a job; registers */
    SESSION_RESERVING, /* commits; memory for its arena is being reserved, it is not listened to */
    SESSION_ARENA,     /* committed; its arena is on its way to be mapped */
    SESSION_MAPPED,    /* its arena is sealed; waits for the job */
    SESSION_READY,     /* trains */
    SESSION_LEAVING,   /* said goodbye; the core finishes */
    SESSION_ENDED,     /* was told so; waits for the client to close */
    SESSION_CLOSED,    /* no socket; its arena may still be in use by the core */
    SESSION_STATES
};

/* What follows from an error of the core. It has to wait: the core may have ended the session's job
 * already, so that the error only says that it no longer knows the session, while the
 * ACTION_FAILED that says why is still in its queue. */
enum verdict {
    VERDICT_NONE,
    VERDICT_ERROR, /* the request is refused */
    VERDICT_END,   /* ... and with it the session */
    VERDICT_REFUSE /* the client broke the protocol */
};

struct session {
    struct session *next, *previous;
    struct local *local;
    session_id id;
    enum session_state state;
    bool known; /* the core wants to hear if it is lost */
    pid_t pid;
    uid_t uid;
    uint64_t job;
    uint32_t tensors;
    uint64_t gradient_size; /* of the tensors, each aligned; UINT64_MAX: too large to count */
    struct error refused;   /* the first registration that was; told at commit */
    enum verdict verdict;
    struct error verdict_error;
    uint64_t verdict_turn;  /* when the actions of that time have been applied */
    uint64_t deadline_ms;   /* CONNECTED, OPEN, ENDED: ended or closed then */
    bool active;            /* in local->active, */
    uint32_t active_at;     /* at this place */
    bool postponed;         /* in the queue from local->postponed */
    bool gone;              /* the session ends, because its process has ended */
    struct session *behind; /* the next in that queue */
    int socket;
    int process; /* pidfd, or -1 */
    unsigned handles;
    uv_poll_t socket_poll;
    uv_poll_t process_poll;
    struct outbox outbox;
    struct ring_reader reader;
    struct segment ring, page, gradients;
    struct keeper_task reserve; /* reserves `prepared`: see reserve.c */
    bool reserving;             /* `reserve` waits or runs */
    atomic_bool unwanted;       /* nobody needs `prepared` any more: `reserve` may stop */
    struct segment prepared;    /* the gradient arena before the core asks for it */
    uint64_t reserve_size;      /* what the core will ask for */
    struct error reserve_error; /* why `prepared` is not there; OK: it is, or need not be */
};

/* A job's results. */
struct results {
    struct results *next;
    uint64_t job;
    struct segment memory;
};

struct local {
    uv_loop_t *loop;
    struct local_config config;
    struct local_limits limits;
    const struct local_ops *ops;
    void *context;
    char *path;
    dev_t path_device; /* of the socket file that is ours to unlink */
    ino_t path_inode;
    int listener;
    int spare;   /* a descriptor to spend when there are no others */
    bool paused; /* not accepting, for a moment */
    bool closing;
    unsigned handles;
    uv_poll_t listen_poll;
    uv_timer_t timer;
    struct session *sessions; /* all, in no order */
    struct keeper keeper;
    atomic_uint_least64_t filling; /* bytes that the keeper's task will still take */
    struct session **slot;         /* by id % max_sessions */
    uint32_t used;                 /* slots */
    struct session **active; /* those that local_poll() has to look at; some need it no more */
    uint32_t actives;
    uint32_t first_active;     /* where the next turn begins */
    struct session *postponed; /* a queue: what their sockets brought is taken in the next turns */
    struct session *postponed_last;
    uint64_t busy_turn;     /* the turn in which sockets or rings were served last, */
    uint64_t busy_since_us; /* when that began */
    uint64_t serial;
    uint64_t turn; /* counts local_poll() */
    struct results *results;
    struct stores *stores;
    struct local_stats stats;
    void (*done)(void *context);
};

/* ---- local.c ---- */

/** Frees `local` when it is closing and the last handle and session are gone. */
void local_finish(struct local *local);

/* ---- listen.c ---- */

/** Opens, checks and binds the socket. */
enum adtopk_status listen_open(struct local *local, struct error *err);
/** Starts accepting, or starts again after a pause. */
void listen_start(struct local *local);
/** Unlinks the socket and closes it. The poll handle must be closing. */
void listen_close(struct local *local);

/* ---- session.c ---- */

/** A session on an accepted socket, which it takes over even when it fails. */
enum adtopk_status session_create(struct local *local, int socket, struct error *err);

/** The session of that number, or NULL. */
struct session *session_find(const struct local *local, session_id id);

/** Moves to a state that the table allows; others are a bug of ours. */
void session_move(struct session *session, enum session_state state);

/** Raises an event for this session. */
enum adtopk_status session_event(struct session *session, struct event *event, struct error *err);

/** The core must hear that the rank is gone, if it knows it. */
void session_lost(struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** The client broke the protocol: ends its session, and tells it and the core why. */
void session_refuse(struct session *session, const struct error *why);

/** Tells the owner's log of a trainer that was turned away. */
void session_warn(struct local *local, uid_t uid, pid_t pid, const char *why);

/** Passes a verdict on what the core refused. Until it takes effect nothing more is taken. */
void session_judge(struct session *session, enum verdict verdict, const struct error *why);

/** Puts a verdict into effect when its turn has come; true if one is left. */
bool session_execute(struct session *session);

/** Ends a session: tells the client why, and closes when the client does or after a while. */
void session_end(struct session *session, enum adtopk_status status, const char *text);

/** Closes the socket and frees what the core does not use. */
void session_close(struct session *session);

/** Frees a closed session when nothing uses it any more. */
void session_collect(struct session *session);

/** Sees to it that the socket is polled for what matters now. */
void session_watch(struct session *session);

/** Has local_poll() look at the session from now on: it is READY or has a verdict. */
void session_activate(struct session *session);

/** Whether it still is. */
bool session_is_active(const struct session *session);

/** It is no more: the last one of local->active takes its place. */
void session_deactivate(struct session *session);

/** True if this turn has served sessions for so long that the rest has to wait for the next one. */
bool session_is_late(struct local *local);

/** Leaves what the session's socket brought to one of the next turns. */
void session_postpone(struct session *session);

/** Serves sessions that were postponed, until it is late; true if there were any. */
bool session_resume(struct local *local);

/** Something has a deadline now: sees to it that somebody looks. */
void session_schedule(struct local *local);

/* ---- request.c ---- */

/** The socket is readable: takes a bounded number of messages. */
void request_receive(struct session *session);

/** The session's arena is prepared, or cannot be: tells the core that the rank commits. */
void request_commit_now(struct session *session);

/* ---- reserve.c ---- */

/** Counts a registered tensor. */
void reserve_count(struct session *session, const struct tensor_spec *spec);

/** The client commits: reserves the memory of a large arena on another thread, then
 * request_commit_now(). */
void reserve_begin(struct session *session);

/** On the keeper's thread: takes the memory of a piece in strides, until *stop is true (NULL:
 * never), and counts down local->filling. */
enum adtopk_status reserve_fill(struct local *local, struct segment *segment, const char *name,
    const struct core_piece *piece, const atomic_bool *stop, struct error *err);

/** The session has ended: a thread that reserves its arena may stop. */
void reserve_abandon(struct session *session);

/* ---- submit.c ---- */

/** Takes up to `limit` ring entries of a READY session; true if there was one. */
bool submit_take(struct session *session, unsigned limit);

/* ---- reply.c ---- */

void reply_opened(struct session *session);
void reply_arena(struct session *session);
void reply_error(struct session *session, enum adtopk_status status, const char *text, bool final);
/** Wakes the client if it sleeps. */
void reply_wake(struct session *session);
/** LocalError to a socket that is no session, as far as it goes. */
void reply_refuse(int socket, enum adtopk_status status, const char *text);

/* ---- memory.c ---- */

/** The client says that it has mapped its arena: seals, verifies and reserves it again. */
enum adtopk_status memory_seal_gradients(struct session *session, struct error *err);

/** The job's results, or NULL. */
struct results *memory_results(const struct local *local, uint64_t job);

/** ADTOPK_ERR_MEMORY unless there is memory for the session's prepared arena. */
enum adtopk_status memory_afford_prepared(const struct session *session, struct error *err);

/** Drops all results and stores. */
void memory_drop_all(struct local *local);

#endif
