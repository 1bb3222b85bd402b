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
 *     while (core_next_action(core, &action))     actions of sessions -> answer_apply()
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
#include <sys/socket.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "daemon/session/door.h"
#include "proto/error.h"

struct local;

struct local_config {
    const char *path;      /* of the socket; at most 107 bytes */
    unsigned mode;         /* permissions of the socket, such as 0666 */
    uint32_t max_sessions; /* more are refused with an error that says so; 0: 1024 */
    /* An error if the user may not have so many bytes more. NULL: anybody may. */
    enum adtopk_status (*afford)(void *context, uint32_t uid, uint64_t bytes, struct error *err);
    /* An error if the user at the other end of the connection may open no session. NULL: anybody
     * may. */
    enum adtopk_status (*admit)(
        void *context, int socket, const struct ucred *who, struct error *err);
};

/* Counts since local_create(). */
struct local_stats {
    struct door_stats door;
    uint64_t entries;  /* ring entries consumed */
    uint64_t messages; /* socket messages received, wake-ups included */
    uint64_t wakeups_sent;
    uint64_t gradient_bytes; /* reserved now, all sessions */
    uint64_t result_bytes;   /* reserved now, all jobs */
    uint64_t store_bytes;    /* reserved now, all jobs */
};

/**
 * Listens on config->path, as one of the daemon's doors. `config` is copied; `context` goes to its
 * operations.
 *
 * A stale socket file is replaced. Ignores SIGXFSZ for the process, because RLIMIT_FSIZE applies
 * to shared memory too. Errors, each naming the path: ARGUMENT (too long), STATE (a live daemon
 * serves it, or it is no socket), SYSTEM (missing directory, no permission).
 */
struct local *local_create(uv_loop_t *loop, const struct local_config *config, struct doors *doors,
    void *context, struct error *err);

/** The core's memory operations, for the sessions of all doors. They may be called inside an event.
 */
struct core_memory local_memory(struct local *local);

/** Where the job's results are that local_memory() made, or NULL. */
const void *local_results(const struct local *local, uint64_t job, unsigned batch);

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
