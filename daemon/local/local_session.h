/*
 * A session over the unix socket: what `local` keeps of a trainer beside its struct session, and
 * what the files of this folder share. README.md lists the files.
 *
 * Functions that may end a session return void: look at its state afterwards. A session's memory
 * is never freed inside them, only when its handles are closed, from the loop.
 */
#ifndef ADTOPK_LOCAL_LOCAL_SESSION_H
#define ADTOPK_LOCAL_LOCAL_SESSION_H

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "daemon/local/keeper.h"
#include "daemon/local/local.h"
#include "daemon/local/outbox.h"
#include "daemon/local/ring.h"
#include "daemon/local/segment.h"
#include "daemon/local/store.h"
#include "daemon/session/listener.h"
#include "daemon/session/session.h"

/* The arena before the core asks for it: see reserve.c. */
struct reserve {
    struct keeper_task task; /* reserves `prepared` */
    atomic_bool unwanted;    /* nobody needs `prepared` any more: the task may stop */
    struct segment prepared;
    uint64_t counted;   /* bytes of the tensors, each aligned; UINT64_MAX: too large to count */
    uint64_t size;      /* what the core will ask for */
    struct error error; /* why `prepared` is not there; OK: it is, or need not be */
};

struct local_session {
    struct session base;
    struct local *local;
    bool active;                  /* in local->active, */
    uint32_t active_at;           /* at this place */
    bool postponed;               /* in the queue from local->postponed */
    struct local_session *behind; /* the next in that queue */
    bool gone;                    /* the session ends, because its process has ended */
    int socket;
    int process; /* pidfd, or -1 */
    bool watches_process;
    uv_poll_t socket_poll;
    uv_poll_t process_poll;
    struct outbox outbox;
    struct ring_reader reader;
    struct segment ring, page;
    struct segment gradients[CORE_MAX_BATCHES];
    int shown; /* goes with the next SHOWN; -1: none */
    struct reserve reserve;
};

/* A job's results, of one batch of tensors. */
struct results {
    struct results *next;
    uint64_t job;
    unsigned batch;
    struct segment memory;
};

/* A turn serves sockets and rings for a limited time, and goes on where the last one stopped. */
struct local_turns {
    struct local_session **active; /* local_poll() looks at these; some need it no more */
    uint32_t actives;
    uint32_t first_active;                            /* where the next turn begins */
    struct local_session *postponed, *postponed_last; /* a queue: served in the next turns */
    uint64_t busy_turn;     /* the turn in which sockets or rings were served last, */
    uint64_t busy_since_us; /* when that began */
};

struct local {
    uv_loop_t *loop;
    struct local_config config;
    void *context;
    struct listener listener;
    struct door door;
    bool closing;
    unsigned handles; /* the listener and the timer, until they have closed */
    uv_timer_t timer;
    struct keeper keeper;
    atomic_uint_least64_t filling; /* bytes that the keeper's task will still take */
    struct local_turns turns;
    struct results *results;
    struct stores *stores;
    uint64_t counted_ms; /* when all stores were looked at last */
    struct local_stats stats;
    void (*done)(void *context);
};

/** The session that a connection's operation is called with. */
static inline struct local_session *local_session(struct session *session)
{
    return (struct local_session *)(void *)session; /* its first member */
}

/* ---- local.c ---- */

/** Frees `local` when it is closing and the last handle and session are gone. */
void local_finish(struct local *local);

/* ---- listen.c ---- */

/** Opens the socket, on which sessions begin from now on. */
enum adtopk_status listen_open(struct local *local, struct error *err);

/* ---- local_session.c ---- */

/** A session of process `who` on an accepted socket, which it takes over even when it fails. */
enum adtopk_status local_session_create(
    struct local *local, int socket, const struct ucred *who, struct error *err);

/** The operations `moved` and `free` of struct connection. */
void local_session_moved(struct session *session);
void local_session_free(struct session *session);

/** Sees to it that the socket is polled for what matters now. */
void local_session_watch(struct local_session *session);

/** True if it is READY or has a verdict, so that local_poll() has to look at it. */
bool local_session_is_active(const struct local_session *session);

/** local_poll() need not look at it any more: the last one of the list takes its place. */
void local_session_deactivate(struct local_session *session);

/** True if this turn has served sessions for so long that the rest has to wait for the next one. */
bool local_session_is_late(struct local *local);

/** Leaves what the session's socket brought to one of the next turns. */
void local_session_postpone(struct local_session *session);

/** Serves sessions that were postponed, until it is late; true if there were any. */
bool local_session_resume(struct local *local);

/* ---- receive.c ---- */

/** The socket is readable: takes a bounded number of messages. */
void receive_messages(struct local_session *session);

/* ---- reserve.c: operations of struct connection ---- */

enum adtopk_status reserve_count(
    struct session *session, const struct tensor_spec *spec, struct error *err);
bool reserve_begin(struct session *session);

/** On the keeper's thread: takes the memory of a piece in strides, until *stop is true (NULL:
 * never), and counts down local->filling. */
enum adtopk_status reserve_fill(struct local *local, struct segment *segment, const char *name,
    const struct core_piece *piece, const atomic_bool *stop, struct error *err);

/* ---- submit.c ---- */

/** Takes up to `limit` ring entries of a READY session; true if there was one. */
bool submit_take(struct local_session *session, unsigned limit);

/** The operation `drain` of struct connection. */
void submit_drain(struct session *session);

/* ---- reply.c: operations of struct connection ---- */

const char *reply_send(struct session *session, Adtopk__LocalReply *reply);
enum adtopk_status reply_ready(struct session *session, const struct action *action,
    Adtopk__LocalReady *ready, struct error *err);
void reply_progress(struct session *session, const struct action *action);

void reply_show(struct session *session, uint32_t part, Adtopk__LocalShown *shown);

/** Wakes the client if it sleeps. */
void reply_wake(struct local_session *session);

/** A final error to a socket that is no session, as far as it goes. */
void reply_refuse(int socket, enum adtopk_status status, const char *text);

/* ---- memory.c ---- */

/** The operations `arena`, `give_back` and `seal` of struct connection. */
const void *memory_arena(
    struct session *session, unsigned batch, uint64_t *size, struct error *err);
void memory_give_back(struct session *session);
enum adtopk_status memory_seal(struct session *session, struct error *err);

/** stores_show() of the job. */
int memory_show(const struct local *local, uint64_t job, unsigned part, uint64_t *size);

/** The job's results of a batch, or NULL. */
struct results *memory_results(const struct local *local, uint64_t job, unsigned batch);

/** ADTOPK_ERR_MEMORY unless there is memory for the session's prepared arena. */
enum adtopk_status memory_afford_prepared(const struct local_session *session, struct error *err);

/** Drops all results and stores. */
void memory_drop_all(struct local *local);

#endif
