/*
 * Trainers on other machines. They talk to this daemon over ZeroMQ (TCP), and their gradients and
 * updates are sent as messages. README.md beside this file draws one step.
 *
 * Like daemon/local, this module turns messages of trainers into the core's events, and the core's
 * actions into messages to trainers. It decides nothing. All functions belong to the loop's thread;
 * an iteration of the loop calls remote_poll().
 */
#ifndef ADTOPK_REMOTE_REMOTE_H
#define ADTOPK_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/core/core.h"
#include "daemon/session/door.h"
#include "proto/error.h"
#include "proto/keyfile.h"

struct remote;

/* A key of a trainer and the user to whom it belongs. */
struct remote_owner {
    char key[KEYFILE_KEY_SIZE];
    uint32_t uid;
};

struct remote_config {
    const char *listen; /* endpoint: tcp://ADDRESS:PORT */
    /* The daemon's keys; the function copies them. NULL: connections are not encrypted, and every
     * trainer that reaches the port counts as one of `owner`. */
    const struct keyfile_pair *pair;
    const struct remote_owner *owners; /* used with a pair; copied */
    size_t owner_count;
    uint32_t owner;        /* uid; used without a pair */
    uint32_t max_sessions; /* 0: 256 */
    uint32_t heartbeat_ms; /* time between signs of life on an idle connection */
    uint32_t timeout_ms;   /* silence after which a trainer counts as gone */
    /* Logs one line about a connection that was refused; may be NULL. A flood of connections leads
     * to a flood of calls: the function itself limits what it writes. */
    void (*warn)(void *context, const char *line);
    /* The results of a job's batch that the core has, or NULL if it has given them back. */
    const void *(*results)(void *context, uint64_t job, unsigned batch);
};

/* Counts since remote_create(). */
struct remote_stats {
    struct door_stats door;
    uint64_t keys; /* connections refused because nobody owns their key */
    /* Connections refused because of another protocol or another daemon's key. */
    uint64_t handshakes;
    uint64_t strays;         /* messages without a session */
    uint64_t received, sent; /* of sessions */
    uint64_t gradient_bytes; /* reserved now */
};

/** Listens, as one of the daemon's doors. The function copies `config`; `context` is the first
 * argument of the operations in it. Errors: ARGUMENT (the endpoint), SYSTEM, MEMORY. */
struct remote *remote_create(uv_loop_t *loop, const struct remote_config *config,
    struct doors *doors, void *context, struct error *err);

/**
 * Changes the keys while trainers train. A session ends if its key has no owner any more, or
 * another one. A new pair of the daemon's own cuts all connections, because libzmq binds a socket
 * to its key. All sessions end with them. Allowed only if there was a pair at remote_create().
 * After an error the keys are as before. SYSTEM is the exception: after it the daemon does not
 * listen any more.
 */
enum adtopk_status remote_reload(struct remote *remote, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err);

/** Receives and sends a limited number of messages. True if there was anything to do. */
bool remote_poll(struct remote *remote);

/** The endpoint that listens, with the port that the system chose if the configured one was "*". */
const char *remote_endpoint(const struct remote *remote);

void remote_stats(const struct remote *remote, struct remote_stats *stats);

/** Tells every trainer that the daemon stops, unless they are to `stay` for the next one, and gives
 * all memory back. Raises no events. The core
 * must be destroyed, and no compute may run. Handles close in the loop, which then frees `remote`.
 */
void remote_close(struct remote *remote, bool stay);

#endif
