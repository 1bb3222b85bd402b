/*
 * What differs between the connections over which trainers speak to the daemon: one table of
 * operations for each kind. The rows are `local` (a unix socket and shared memory) and `remote`
 * (ZeroMQ).
 *
 * A connection keeps a struct session as the first member of what it knows of a trainer. It reads
 * messages and passes requests to joining_take(); everything that follows from them, and from the
 * core's actions, is the session's, which calls these operations. An operation never frees the
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
    uint32_t version;    /* of the protocol that clients speak over it */
    uint32_t silence_ms; /* how long a client may say nothing after it connected */
    uint32_t linger_ms;  /* how long an ended session stays open, so that the client reads why */

    /* Sends a reply, and with OPENED, ARENA, READY and SHOWN what the client needs to reach the
     * memory. Never blocks. NULL, or what the client did if the reply will not arrive: "closed its
     * connection". The session then counts as lost. */
    const char *(*send)(struct session *session, Adtopk__LocalReply *reply);

    /* The session has moved to another state, or has a verdict. In CLOSED the connection gives back
     * all that it has but the arena. */
    void (*moved)(struct session *session);

    /* The core has taken a tensor, whose number is session->tensors. An error refuses it. */
    enum adtopk_status (*add)(
        struct session *session, const struct tensor_spec *spec, struct error *err);

    /* Optional. Reserves memory for the arena before the core asks for it, so that this does not
     * stop the loop: calls session_wait() now and joining_commit() when it has done so. False:
     * there is nothing to wait for. */
    bool (*reserve)(struct session *session);

    /* Makes the gradient arena of a batch of tensors, all zero and perhaps larger than *size, which
     * belongs to the core until `give_back` of all arenas. NULL and an error without memory. */
    const void *(*arena)(
        struct session *session, unsigned batch, uint64_t *size, struct error *err);
    void (*give_back)(struct session *session);

    /* Optional. The client has mapped its last arena: no writer may come after it. */
    enum adtopk_status (*seal)(struct session *session, struct error *err);

    /* Optional. Takes what the client submitted before it said goodbye. */
    void (*drain)(struct session *session);

    /* The job is ready, or a later batch: finds its results, and fills in where they are. */
    enum adtopk_status (*ready)(struct session *session, const struct action *action,
        Adtopk__LocalReady *ready, struct error *err);

    /* Optional. Finds a part of the job's store that its ranks may read, and fills in its size: 0
     * where there is none. */
    void (*show)(struct session *session, uint32_t part, Adtopk__LocalShown *shown);

    /* Tells a client of an action DELIVERED, STEP or OP_DONE. */
    void (*progress)(struct session *session, const struct action *action);

    /* Nothing refers to the session any more: frees it. */
    void (*free)(struct session *session);
};

#endif
