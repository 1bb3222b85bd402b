/*
 * Local sessions: the trainers on this node, their sockets, and the memory that they share with the
 * daemon.
 *
 * A trainer connects to an AF_UNIX SOCK_SEQPACKET socket; proto/local.proto has the messages and
 * proto/local.h the shared memory. This module turns the trainer's messages and entries into the
 * core's events, and the core's actions into progress that the trainer can see. It decides nothing.
 *
 * An iteration of the owner's loop, all on the loop's thread:
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
 * local_poll() and uv_run() raise events. The owner must not apply an action inside the event that
 * caused it, only after the event has returned. It must apply all actions before it calls
 * local_poll() again. Otherwise a client could hear that the core does not know its session before
 * it hears why its job ended.
 */
#ifndef ADTOPK_LOCAL_LOCAL_H
#define ADTOPK_LOCAL_LOCAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "daemon/local/folder.h"
#include "daemon/session/door.h"
#include "proto/error.h"

struct local;

/* The part of a rank's arena that lies in a GPU's memory. */
struct local_gpu_arena {
    session_id session;
    const char *gpu;  /* UUID */
    const void *base; /* address of the arena, which the core has */
    uint64_t begin;   /* offset in the arena at which the GPU's memory begins */
    uint64_t size;    /* bytes there; then those that the memory has, which may be more */
    int descriptor;   /* then the memory's, which stays the GPU's */
};

struct local_config {
    const char *path;         /* path of the socket, at most 107 bytes */
    unsigned mode;            /* permissions of the socket, such as 0666 */
    const char *store_folder; /* where stores outlive the daemon (folder.h); "" or NULL: nowhere */
    /* Without that, stores outlive the daemon at the service manager, if it keeps descriptors: at
     * most max_kept. NULL: it keeps none. */
    files_tell *tell;
    unsigned max_kept;
    uint32_t workers;      /* of this daemon, on which the layout of stores depends (folder.h) */
    uint32_t max_sessions; /* above it the daemon refuses sessions, with an error; 0: 1024 */
    /* Returns an error if the user may not have so many more bytes. NULL: no limit. */
    enum adtopk_status (*afford)(void *context, uint32_t uid, uint64_t bytes, struct error *err);
    /* Returns an error if the user at the other end of the connection may open no session. NULL:
     * everybody may. */
    enum adtopk_status (*admit)(
        void *context, int socket, const struct ucred *who, struct error *err);
    /* Hears of a store to which ranks could have returned: a new run of its job begins without it.
     * NULL: nobody does. */
    void (*replaced)(void *context, const struct folder_info *old);
    /* Memory of GPUs for gradients: all three, or NULL if no engine here reads it. gpu_find returns
     * an error that names the GPU if this node cannot share its memory. gpu_open makes memory for a
     * part of an arena. gpu_drop gives it back, when the core no longer uses it. */
    enum adtopk_status (*gpu_find)(void *context, const char *gpu, struct error *err);
    enum adtopk_status (*gpu_open)(void *context, struct local_gpu_arena *arena, struct error *err);
    void (*gpu_drop)(void *context, const void *base);
};

/* Counts since local_create(). */
struct local_stats {
    struct door_stats door;
    uint64_t entries;  /* ring entries consumed */
    uint64_t messages; /* socket messages received, wake-ups included */
    uint64_t wakeups_sent;
    uint64_t gradient_bytes; /* of all sessions, now */
    uint64_t result_bytes;   /* of all jobs, now */
    uint64_t store_bytes;    /* of all jobs, now */
};

/**
 * Listens on config->path, as one of the daemon's doors. The function copies `config`; `context` is
 * the first argument of the operations in it.
 *
 * Replaces a stale socket file. Ignores SIGXFSZ for the process, because RLIMIT_FSIZE applies to
 * shared memory too. Errors, each naming the path: ARGUMENT (too long), STATE (a live daemon serves
 * it, or it is no socket), SYSTEM (missing directory, no permission).
 */
struct local *local_create(uv_loop_t *loop, const struct local_config *config, struct doors *doors,
    void *context, struct error *err);

/** The core's memory operations, for the sessions of all doors. The core may call them inside an
 * event. */
struct core_memory local_memory(struct local *local);

/** The results of a job's batch that local_memory() made, or NULL. */
const void *local_results(const struct local *local, uint64_t job, unsigned batch);

/** Whether stores outlive the daemon. */
bool local_outlives(const struct local *local);

/** Where they do; NULL: nowhere. */
struct folder *local_folder(const struct local *local);

/** The index-th store in the folder; false if there are fewer. */
bool local_store(const struct local *local, unsigned index, struct folder_info *info);

/** Does what folder_expire() does; call it now and then, until it returns false. */
bool local_expire(struct local *local, uint64_t ttl_s, struct folder_info *gone);

/** Takes entries that sessions submitted, a limited number from each. True if there were any. */
bool local_poll(struct local *local);

/**
 * Tells all sessions that the owner is about to sleep in uv_run(). A client that submits an entry
 * from now on sends a wake-up. Returns false, and withdraws this, if a client submitted something
 * meanwhile.
 */
bool local_sleep(struct local *local);

/** Tells all sessions that the owner is awake and needs no wake-ups. */
void local_awake(struct local *local);

void local_stats(const struct local *local, struct local_stats *stats);

/**
 * Stops listening, tells every client that the daemon stops, unlinks the socket and gives all
 * memory back. Raises no events. The core must be destroyed, and no compute may run. Handles close
 * in the loop. Then it frees `local` and calls done(context), with local_create()'s context. `done`
 * may be NULL.
 */
void local_close(struct local *local, void (*done)(void *context));

#endif
