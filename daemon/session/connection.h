/*
 * The differences between the connections over which trainers speak to the daemon: one table of
 * operations per kind. The rows are `local` (a unix socket and shared memory) and `remote`
 * (ZeroMQ).
 *
 * A connection has a struct session as the first member of its record of a trainer. It reads
 * messages and passes requests to joining_take(). The session does everything else that requests
 * and the core's actions require, and calls these operations for it. An operation never frees the
 * session.
 */
#ifndef ADTOPK_SESSION_CONNECTION_H
#define ADTOPK_SESSION_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "proto/local.pb-c.h"

struct session;

struct connection {
    uint32_t version;    /* the protocol version that clients speak over it */
    uint32_t silence_ms; /* how long a client may say nothing after it connected */
    uint32_t linger_ms;  /* how long an ended session stays open, so that the client can read why */
    bool returns;        /* clients can come back to the next daemon of this node */
    bool here;           /* clients are on this machine, where others can take their places */

    /* Sends a reply. With OPENED, ARENA, READY and SHOWN it also sends what the client needs to
     * reach the memory. Never blocks. Returns NULL, or, if the reply will not arrive, why,
     * as what the client did or got: "closed its connection". The session then counts as lost. */
    const char *(*send)(struct session *session, Adtopk__LocalReply *reply);

    /* The session has moved to another state, or has a verdict. In CLOSED the connection gives back
     * everything that it has, except the arena. */
    void (*moved)(struct session *session);

    /* The core has accepted a tensor, whose number is session->tensors. An error refuses the
     * tensor. */
    enum adtopk_status (*add)(
        struct session *session, const struct tensor_spec *spec, struct error *err);

    /* Optional. Refuses a GPU in which the rank's gradients cannot lie, and notes it otherwise.
     * `gpu`: its UUID, NULL for host memory. A connection without it serves host memory only. */
    enum adtopk_status (*place)(
        struct session *session, const char *tensor, const char *gpu, struct error *err);

    /* Optional. Reserves memory for the arena before the core asks for it, because that would stop
     * the loop. It calls joining_wait() at once, and joining_commit() when it has the memory.
     * False: there is nothing to wait for. */
    bool (*reserve)(struct session *session);

    /* Makes the gradient arena of a batch of tensors, all zero and perhaps larger than *size. The
     * core owns it until `give_back` of all arenas. Without memory: NULL and an error. */
    const void *(*arena)(
        struct session *session, unsigned batch, uint64_t *size, struct error *err);
    void (*give_back)(struct session *session);

    /* Optional. The client has mapped its last arena: from now on nobody else can map it to write.
     */
    enum adtopk_status (*seal)(struct session *session, struct error *err);

    /* Optional. Takes the entries that the client submitted before it said goodbye. */
    void (*drain)(struct session *session);

    /* The job is ready, or a later batch of tensors. Finds the results and fills in where they are.
     */
    enum adtopk_status (*ready)(struct session *session, const struct action *action,
        Adtopk__LocalReady *ready, struct error *err);

    /* Optional. Finds a part of the job's store that its ranks may read, and fills in its size. The
     * size is 0 if there is no such part. */
    void (*show)(struct session *session, uint32_t part, Adtopk__LocalShown *shown);

    /* Tells a client of an action DELIVERED, STEP or OP_DONE. */
    void (*progress)(struct session *session, const struct action *action);

    /* Frees the session, to which nothing refers any more. */
    void (*free)(struct session *session);
};

#endif
