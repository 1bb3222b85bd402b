/*
 * A session over ZeroMQ: the record that `remote` keeps of a trainer, with its struct session, and
 * declarations that the files of this folder share. README.md lists the files.
 *
 * Functions that may end a session return void: look at its state afterwards. Only trainer_sweep()
 * and the end of a rank that another session takes over free one.
 */
#ifndef ADTOPK_REMOTE_TRAINER_H
#define ADTOPK_REMOTE_TRAINER_H

#include "daemon/local/keeper.h"
#include "daemon/remote/gate.h"
#include "daemon/session/session.h"
#include "proto/remote.pb-c.h"

struct trainer_tensor {
    unsigned batch; /* the batch that committed it */
    uint64_t numel;
    uint64_t bytes;            /* size of its gradient */
    uint64_t gradient;         /* offset in the gradients */
    uint64_t update;           /* offset of its struct local_update in the results */
    uint64_t pushed;           /* step + 1 of the last push */
    uint64_t begun;            /* step + 1 of the last piece of a push */
    uint64_t received;         /* bytes of it that have come */
    uint64_t delivered;        /* step + 1 of the last update that was put into the queue */
    enum adtopk_status status; /* result of that update's round */
};

/* The connection of a trainer, and counts of its messages. */
struct trainer_route {
    uint8_t id[GATE_ROUTE_SIZE];
    size_t size;
    char key[KEYFILE_KEY_SIZE];  /* the key that the trainer showed; "" if none is needed */
    uint64_t sent, acknowledged; /* messages to the trainer, and how many it has taken */
    uint64_t received;           /* messages from the trainer */
    uint64_t answered;           /* how many of them the trainer knows were taken */
};

/* The gradients of a step that are arriving. */
struct trainer_pushes {
    uint64_t step; /* the step for which it may push; updates of the step before are on their way */
    bool ended;    /* the trainer has ended that step */
};

/* The updates of a step that are being sent. */
struct trainer_updates {
    uint32_t *queue; /* tensors whose updates of the step are there, in that order */
    uint32_t queued, taken;
    uint64_t first; /* how much of the update of queue[taken] was sent */
    bool step_over; /* the step is over; the trainer is told after the queue */
    enum adtopk_status step_status;
    struct taking_part members; /* as of the end of the step */
};

/* A plain operation. */
struct trainer_op {
    uint64_t gradient, result; /* offsets in gradients and results */
    bool running, done;
    uint64_t number;
    /* One more than the number of the last operation whose result was there before the trainer,
     * which had returned, called it again; 0: none. */
    uint64_t next;
    uint32_t bytes; /* size of the result for the trainer */
};

struct trainer {
    struct session base;
    struct remote *remote;
    struct trainer_route route;
    struct trainer_tensor *tensor;
    uint32_t capacity; /* room in `tensor` */
    uint32_t laid;     /* tensors whose places in the results are known */
    /* One per batch of tensors: */
    struct segment gradients[CORE_MAX_BATCHES];
    /* The job's results, while delivery_pump() sends from them; NULL: the job has ended. */
    const uint8_t *results[CORE_MAX_BATCHES];
    struct trainer_pushes pushes;
    struct trainer_updates updates;
    struct trainer_op op;
};

struct remote {
    struct remote_config config;
    struct door door;
    void *context; /* the first argument of the configuration's operations */
    struct gate gate;
    uv_poll_t poll[GATE_DESCRIPTORS];
    uv_timer_t timer;
    unsigned handles;     /* 0 once they are closed */
    struct keeper keeper; /* gives back gradients of trainers that have left */
    unsigned served;      /* trainers of the list to which the last iteration sent; 0: to all */
    unsigned probes;      /* probes of all connections that are still to do since one went away */
    struct remote_stats stats;
};

/* ---- trainer.c ---- */

/** The row of the connection table. */
extern const struct connection trainer_connection;

/** The trainer to which a struct session belongs. */
static inline struct trainer *trainer_of(struct session *session)
{
    return (struct trainer *)(void *)session; /* `base` is the first member */
}

/** Makes a session for the connection, or NULL without memory. */
struct trainer *trainer_create(
    struct remote *remote, const void *route, size_t route_size, uint32_t uid, const char *peer);

struct trainer *trainer_of_route(const struct remote *remote, const void *route, size_t size);

/** Frees the closed sessions whose memory the core has given back. */
void trainer_sweep(struct remote *remote);

/** Sends a message with its numbers filled in. False if its queue is full, or if the connection is
 * gone, which ends the session. The function takes over the part in any case. */
bool trainer_send(struct trainer *trainer, Adtopk__RemoteReply *reply, zmq_msg_t *part);

/** Sends a final error to a connection without a session. */
void trainer_turn_away(struct remote *remote, const void *route, size_t route_size,
    enum adtopk_status status, const char *text);

/* ---- intake.c ---- */

/** The operation `add` of struct connection. */
enum adtopk_status intake_add(
    struct session *session, const struct tensor_spec *spec, struct error *err);

/** Takes one message of a connection. */
void intake_take(struct remote *remote, struct gate_message *message);

/* ---- delivery.c ---- */

/** Sends messages that are due until uv_hrtime() is `end_ns`, and one in any case. True if it sent
 * any. */
bool delivery_pump(struct trainer *trainer, uint64_t end_ns);

/** The operations `ready` and `progress` of struct connection. */
enum adtopk_status delivery_ready(struct session *session, const struct action *action,
    Adtopk__LocalReady *ready, struct error *err);
void delivery_progress(struct session *session, const struct action *action);

#endif
