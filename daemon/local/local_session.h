/*
 * A session over the unix socket: the record that `local` keeps of a trainer, with its struct
 * session, and declarations that the files of this folder share. README.md lists the files.
 *
 * Functions that may end a session return void: look at its state afterwards. They never free a
 * session's memory. The loop frees it, when the session's handles are closed.
 */
#ifndef ADTOPK_LOCAL_LOCAL_SESSION_H
#define ADTOPK_LOCAL_LOCAL_SESSION_H

#include <sys/socket.h>
#include <sys/types.h>

#include "daemon/local/gpu.h"
#include "daemon/local/keeper.h"
#include "daemon/local/local.h"
#include "daemon/local/outbox.h"
#include "daemon/local/ring.h"
#include "daemon/local/segment.h"
#include "daemon/local/store.h"
#include "daemon/session/listener.h"
#include "daemon/session/session.h"

/* The arena, from before the core asks for it: see reserve.c. */
struct reserve {
    struct keeper_task task; /* reserves `prepared` */
    struct segment prepared;
    uint64_t counted;   /* bytes of the tensors, each aligned; UINT64_MAX: too large to count */
    uint64_t size;      /* the size for which the core will ask */
    struct error error; /* why there is no `prepared`; OK: there is, or it is not needed */
};

struct local_session {
    struct session base;
    struct local *local;
    bool active;                  /* it is in local->active */
    uint32_t active_at;           /* its place there */
    bool postponed;               /* it is in the queue that begins at local->postponed */
    struct local_session *behind; /* the next session in that queue */
    bool gone;                    /* its process has ended, so the session ends */
    int socket;
    int process; /* pidfd, or -1 */
    bool watches_process;
    uv_poll_t socket_poll;
    uv_poll_t process_poll;
    struct outbox outbox;
    struct ring_reader reader;
    struct segment ring, page;
    struct segment gradients[CORE_MAX_BATCHES];
    struct local_gpu gpu;
    int shown; /* a descriptor that the next READY or SHOWN sends; -1: none */
    struct reserve reserve;
};

/* The results of one batch of a job's tensors. */
struct results {
    struct results *next;
    uint64_t job;
    unsigned batch;
    struct segment memory;
    struct reservation *reservations; /* that have not ended, linked by `next` */
};

/* An iteration serves sockets and rings for a limited time. It begins where the last iteration
 * stopped. */
struct local_serving {
    /* The sessions that local_poll() serves; some of them no longer need it. */
    struct local_session **active;
    uint32_t actives;
    uint32_t first_active; /* the session with which the next iteration begins */
    /* A queue of sessions that the next iterations serve. */
    struct local_session *postponed, *postponed_last;
    uint64_t iteration;      /* counted by local_poll() */
    uint64_t busy_iteration; /* the last iteration that served sockets or rings */
    uint64_t busy_since_us;  /* when that iteration began to do so */
};

struct local {
    uv_loop_t *loop;
    struct local_config config;
    void *context;
    struct listener listener;
    struct door door;
    bool closing;
    unsigned handles; /* open handles of the listener and the timer */
    uv_timer_t timer;
    int look; /* timerfd: ends the loop's sleep while entries are held (gpu.c); -1: no GPUs */
    uv_poll_t look_poll;
    uint64_t look_us; /* when it should do so, from now; 0: not */
    struct keeper keeper;
    struct local_serving serving;
    struct results *results;
    struct stores *stores;
    struct folder *folder; /* NULL: stores and results end with the daemon */
    uint64_t counted_ms;   /* when all stores were last counted */
    struct local_stats stats;
    void (*done)(void *context);
};

/** The local session to which a struct session belongs. */
static inline struct local_session *local_session(struct session *session)
{
    return (struct local_session *)(void *)session; /* `base` is the first member */
}

/* ---- local.c ---- */

/** Frees `local` when it is closing and the last handle and session are gone. */
void local_finish(struct local *local);

/* ---- listen.c ---- */

/** Opens the socket. From now on sessions can begin. */
enum adtopk_status listen_open(struct local *local, struct error *err);

/* ---- local_session.c ---- */

/** The process's name in messages. */
void local_name_process(const struct ucred *who, char name[SESSION_PEER_SIZE]);

/** Begins a session of process `who` on an accepted socket. The function owns the socket even if it
 * fails. */
enum adtopk_status local_session_create(
    struct local *local, int socket, const struct ucred *who, struct error *err);

/** The operations `moved` and `free` of struct connection. */
void local_session_moved(struct session *session);
void local_session_free(struct session *session);

/** Polls the socket for what the session needs in its present state. */
void local_session_watch(struct local_session *session);

/** True if the session is READY or has a verdict: local_poll() has to serve it. */
bool local_session_is_active(const struct local_session *session);

/** Takes the session off the list of local_poll(). The last session of the list takes its place. */
void local_session_deactivate(struct local_session *session);

/** True if this iteration's time for serving sessions is over. The others wait for the next
 * iteration. */
bool local_session_is_late(struct local *local);

/** Leaves the messages on the session's socket to one of the next iterations. */
void local_session_postpone(struct local_session *session);

/** Serves postponed sessions until the iteration's time is over. True if there were any. */
bool local_session_resume(struct local *local);

/* ---- receive.c ---- */

/** Reads a limited number of messages from a readable socket. */
void receive_messages(struct local_session *session);

/* ---- reserve.c: operations of struct connection ---- */

enum adtopk_status reserve_count(
    struct session *session, const struct tensor_spec *spec, struct error *err);
bool reserve_begin(struct session *session);

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

/** Sends a final error to a socket without a session, if the socket takes it. */
void reply_refuse(int socket, enum adtopk_status status, const char *text);

/* ---- memory.c ---- */

/** The operations `arena`, `give_back` and `seal` of struct connection. */
const void *memory_arena(
    struct session *session, unsigned batch, uint64_t *size, struct error *err);
void memory_give_back(struct session *session);
enum adtopk_status memory_seal(struct session *session, struct error *err);

/** Does what stores_show() does, for the job. */
int memory_show(const struct local *local, uint64_t job, unsigned part, uint64_t *size);

/** The job's results of a batch, or NULL. */
struct results *memory_results(const struct local *local, uint64_t job, unsigned batch);

/** Returns a new descriptor of the results, for reading, which the caller closes. -1 and an error
 * if there is none. */
int memory_show_results(
    const struct local *local, const struct results *results, struct error *err);

/** ADTOPK_ERR_MEMORY unless there is memory for the session's prepared arena. */
enum adtopk_status memory_afford_prepared(const struct local_session *session, struct error *err);

/** The daemon ends: the keeper stops reserving results and stores. */
void memory_stop_reserving(struct local *local);

/** Drops all results and stores. */
void memory_drop_all(struct local *local);

#endif
