/*
 * Trainers on other machines: they talk to this daemon over ZeroMQ (TCP), and their gradients and
 * updates travel as messages. README.md beside this file draws one step.
 *
 * Like daemon/local, this module turns what a trainer says into the core's events, and the core's
 * actions into what the trainer is told. It decides nothing. All functions belong to the loop's
 * thread; a turn of the loop calls remote_poll(), and remote_apply() for the actions of sessions
 * with REMOTE_SESSION, never inside an event.
 */
#ifndef ADTOPK_REMOTE_REMOTE_H
#define ADTOPK_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "proto/error.h"
#include "proto/keyfile.h"

#define REMOTE_SESSION (UINT64_C(1) << 63) /* set in the numbers of remote sessions */

struct remote;

/* Whose trainers show a key. */
struct remote_owner {
    char key[KEYFILE_KEY_SIZE];
    uint32_t uid;
};

struct remote_config {
    const char *listen; /* endpoint: tcp://ADDRESS:PORT */
    /* The daemon's keys; a copy is made. NULL: nothing is encrypted, and every trainer that reaches
     * the port counts as one of `owner`. */
    const struct keyfile_pair *pair;
    const struct remote_owner *owners; /* with a pair; copied */
    size_t owner_count;
    uint32_t owner;        /* uid; without a pair */
    uint32_t max_sessions; /* 0: 256. One user may hold three quarters of them, root excepted */
    uint32_t heartbeat_ms; /* between signs of life on an idle connection */
    uint32_t timeout_ms;   /* silence after which a trainer counts as gone */
    /* Takes one line on a connection that was refused; may be NULL. A flood of those is a flood of
     * calls: the callee limits what it writes. */
    void (*warn)(void *context, const char *line);
};

struct remote_ops {
    /* As of struct local_ops. */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
};

/* Counts since remote_create(), but for `sessions`. */
struct remote_stats {
    uint32_t sessions;
    uint64_t opened;          /* sessions ever */
    uint64_t refused;         /* ... that were not, for want of room */
    uint64_t lost;            /* ended without leaving */
    uint64_t protocol_errors; /* ended because of what their client sent */
    uint64_t keys;            /* connections refused: their key belongs to nobody */
    uint64_t handshakes;      /* ... they do not speak our protocol, or not under our key */
    uint64_t strays;          /* messages that belong to no session */
    uint64_t received, sent;  /* messages of sessions */
    uint64_t gradient_bytes;  /* reserved now */
};

/** Listens. `config` is copied, `ops` must outlive the result. Errors: ARGUMENT (the endpoint),
 * SYSTEM, MEMORY. */
struct remote *remote_create(uv_loop_t *loop, const struct remote_config *config,
    const struct remote_ops *ops, void *context, struct error *err);

/**
 * Other keys, while trainers train. Sessions whose key belongs to nobody now, or to somebody else,
 * end. If the daemon's own pair is another one all connections are cut, because libzmq binds a
 * socket to its key, and with them all sessions end. Only with a pair since remote_create(). On an
 * error the keys are as before, but for SYSTEM: then nobody listens.
 */
enum adtopk_status remote_reload(struct remote *remote, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err);

/** The core's memory operations: remote sessions' gradients lie here, everything else in `local`,
 * whose results remote trainers are sent. */
struct core_memory remote_memory(struct remote *remote, const struct core_memory *local);

/** Applies an action of a remote session. One for a session that went away is ignored. */
void remote_apply(struct remote *remote, const struct action *action);

/** Receives and sends, a bounded number of messages; true if there was anything to do. */
bool remote_poll(struct remote *remote);

/** The endpoint that listens, with the port that was chosen if the configured one was "*". */
const char *remote_endpoint(const struct remote *remote);

void remote_stats(const struct remote *remote, struct remote_stats *stats);

/** Tells every trainer that the daemon stops and gives all memory back. Raises no events; the core
 * must be destroyed and no compute running. Handles close in the loop, then `remote` is freed. */
void remote_close(struct remote *remote);

#endif
