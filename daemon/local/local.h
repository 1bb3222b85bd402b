/*
 * Local sessions: the trainers on this node, their sockets and the memory they share with us.
 *
 * A trainer connects to an AF_UNIX SOCK_SEQPACKET socket; proto/local.proto has the messages and
 * proto/local.h the shared memory. This module turns what a trainer says into the core's events,
 * and the core's actions into progress that the trainer can see. It decides nothing.
 *
 * A turn of the owner's loop, all on the loop's thread:
 *
 *     busy = local_poll(local);                   rings -> events
 *     while (core_next_action(core, &action))     actions of sessions -> local_apply()
 *         ...
 *     if (!busy && local_sleep(local))
 *         uv_run(loop, UV_RUN_ONCE);              sockets -> events
 *     else
 *         uv_run(loop, UV_RUN_NOWAIT);
 *     local_awake(local);
 *
 * Events are raised from local_poll() and from inside uv_run(). Actions must be applied after the
 * event that caused them has returned, never inside it, and all of them between two calls of
 * local_poll(): a client must hear why its job ended before it hears that the core knows its
 * session no more.
 */
#ifndef ADTOPK_LOCAL_LOCAL_H
#define ADTOPK_LOCAL_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "proto/error.h"

struct local;

struct local_config {
    const char *path;      /* of the socket; at most 107 bytes */
    unsigned mode;         /* permissions of the socket, such as 0666 */
    uint32_t max_sessions; /* more are refused with an error that says so; 0: 1024. The last
                            * sixteenth is root's, and the one before that is for users who hold
                            * less than a sixty-fourth */
    /* Takes one line on a trainer of this user that was turned away; may be NULL. A flood of those
     * is a flood of calls: the callee limits what it writes. */
    void (*warn)(void *context, uint32_t uid, const char *line);
};

/* What may change while sessions are served. */
struct local_limits {
    uint32_t user_sessions; /* of one user, root excepted; 0: three quarters of all */
    uint64_t commit_ms;     /* from a session's opening to its commit; 0: for ever */
};

struct local_ops {
    /* Takes an event of a session: the owner stamps now_us and passes it to core_event(), whose
     * result it returns. Must not call local_apply(). The pointers in the event are valid during
     * the call only. */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
    /* An error if the user may not have so many bytes more. NULL: anybody may. */
    enum adtopk_status (*afford)(void *context, uint32_t uid, uint64_t bytes, struct error *err);
};

/* Counts since local_create(), but for `sessions`. */
struct local_stats {
    uint32_t sessions;        /* connected now */
    uint64_t accepted;        /* connections ever accepted */
    uint64_t refused;         /* connections refused: too many, or no descriptors left */
    uint64_t refused_share;   /* ... of them because one user had too many */
    uint64_t lost;            /* sessions whose process went away without leaving */
    uint64_t protocol_errors; /* sessions ended because of what their client did */
    uint64_t entries;         /* ring entries consumed */
    uint64_t messages;        /* socket messages received, wake-ups included */
    uint64_t wakeups_sent;
    uint64_t gradient_bytes; /* reserved now, all sessions */
    uint64_t result_bytes;   /* ... all jobs */
    uint64_t store_bytes;    /* ... all jobs */
};

/**
 * Listens on config->path. `config` is copied, `ops` must outlive the result.
 *
 * A stale socket file is replaced. Ignores SIGXFSZ for the process, because RLIMIT_FSIZE applies
 * to shared memory too. Errors, each naming the path: ARGUMENT (too long), STATE (a live daemon
 * serves it, or it is no socket), SYSTEM (missing directory, no permission).
 */
struct local *local_create(uv_loop_t *loop, const struct local_config *config,
    const struct local_ops *ops, void *context, struct error *err);

/**
 * Two daemons that start at once must not both find a socket's path free: while one looks and
 * binds, it holds a lock on the directory that `path` is in. Returns the descriptor that holds the
 * lock, to be closed, or -1 and err. Waits a second at most. local_create() does this for its own
 * socket.
 */
int local_lock_directory(const char *path, struct error *err);

/** Limits for sessions from now on. */
void local_limit(struct local *local, const struct local_limits *limits);

/** The core's memory operations. They may be called inside ops->event(). */
struct core_memory local_memory(struct local *local);

/** Applies READY, DELIVERED, STEP, OP_DONE, FAILED or CLOSED. An action for a session that went
 * away meanwhile is ignored. */
void local_apply(struct local *local, const struct action *action);

/** Takes what sessions submitted, a bounded number of entries from each; true if there was any. */
bool local_poll(struct local *local);

/**
 * Says to all sessions that the owner is about to sleep in uv_run(): whoever submits from now on
 * sends a wake-up. Returns false, and takes it back, if something was submitted meanwhile.
 */
bool local_sleep(struct local *local);

/** The owner is awake again: no wake-ups needed. */
void local_awake(struct local *local);

void local_stats(const struct local *local, struct local_stats *stats);

/**
 * Stops listening, tells every client that the daemon stops, unlinks the socket and gives all
 * memory back. Raises no events; the core must be destroyed and no compute running. Handles close
 * in the loop; afterwards `local` is freed and done(context) called, with local_create()'s
 * context. `done` may be NULL.
 */
void local_close(struct local *local, void (*done)(void *context));

#endif
