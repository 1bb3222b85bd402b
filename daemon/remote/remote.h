/*
 * Trainers on other machines: they talk to this daemon over ZeroMQ (TCP), and their gradients and
 * updates travel as messages. README.md beside this file draws one step.
 *
 * Like daemon/local, this module turns what a trainer says into the core's events, and the core's
 * actions into what the trainer is told. It decides nothing. All functions belong to the loop's
 * thread; a turn of the loop calls remote_poll().
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
    uint32_t max_sessions; /* 0: 256 */
    uint32_t heartbeat_ms; /* between signs of life on an idle connection */
    uint32_t timeout_ms;   /* silence after which a trainer counts as gone */
    /* Takes one line on a connection that was refused; may be NULL. A flood of those is a flood of
     * calls: the callee limits what it writes. */
    void (*warn)(void *context, const char *line);
    /* Where the results of a job's batch are that the core has, or NULL if it has given them back.
     */
    const void *(*results)(void *context, uint64_t job, unsigned batch);
};

/* Counts since remote_create(). */
struct remote_stats {
    struct door_stats door;
    uint64_t keys;           /* connections refused: their key belongs to nobody */
    uint64_t handshakes;     /* connections refused: another protocol, or another key of ours */
    uint64_t strays;         /* messages that belong to no session */
    uint64_t received, sent; /* messages of sessions */
    uint64_t gradient_bytes; /* reserved now */
};

/** Listens, as one of the daemon's doors. `config` is copied; `context` goes to its operations.
 * Errors: ARGUMENT (the endpoint), SYSTEM, MEMORY. */
struct remote *remote_create(uv_loop_t *loop, const struct remote_config *config,
    struct doors *doors, void *context, struct error *err);

/**
 * Other keys, while trainers train. Sessions whose key belongs to nobody now, or to somebody else,
 * end. If the daemon's own pair is another one all connections are cut, because libzmq binds a
 * socket to its key, and with them all sessions end. Only with a pair since remote_create(). On an
 * error the keys are as before, but for SYSTEM: then nobody listens.
 */
enum adtopk_status remote_reload(struct remote *remote, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err);

/** Receives and sends, a bounded number of messages; true if there was anything to do. */
bool remote_poll(struct remote *remote);

/** The endpoint that listens, with the port that was chosen if the configured one was "*". */
const char *remote_endpoint(const struct remote *remote);

void remote_stats(const struct remote *remote, struct remote_stats *stats);

/** Tells every trainer that the daemon stops and gives all memory back. Raises no events; the core
 * must be destroyed and no compute running. Handles close in the loop, then `remote` is freed. */
void remote_close(struct remote *remote);

#endif
