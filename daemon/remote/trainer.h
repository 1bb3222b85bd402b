/*
 * A remote trainer's session, and what the files of this folder share.
 *
 *   remote.c    the public functions       gate.c      the socket
 *   trainer.c   states, ending, sending    arena.c     the core's memory
 *   intake.c    messages -> events         delivery.c  actions -> messages; updates in pieces
 *
 * Functions that may end a session return void: look at its state afterwards. A session is freed
 * by remote_poll() only.
 */
#ifndef ADTOPK_REMOTE_TRAINER_H
#define ADTOPK_REMOTE_TRAINER_H

#include "daemon/local/segment.h"
#include "daemon/remote/gate.h"
#include "proto/remote.pb-c.h"

enum trainer_state {
    TRAINER_OPEN,    /* a rank of a job; registers */
    TRAINER_ARENA,   /* committed, has memory for gradients */
    TRAINER_MAPPED,  /* waits for the job */
    TRAINER_READY,   /* trains */
    TRAINER_LEAVING, /* said goodbye; the core finishes */
    TRAINER_ENDED,   /* was told so; the core may still use its gradients */
    TRAINER_STATES
};

/* What follows from an error of the core. It waits until the actions of that time have been
 * applied: the core's own reason may be among them. */
enum trainer_verdict {
    TRAINER_VERDICT_NONE,
    TRAINER_VERDICT_ERROR, /* the request is refused */
    TRAINER_VERDICT_END,   /* ... and with it the session */
    TRAINER_VERDICT_REFUSE /* the client broke the protocol */
};

struct trainer_tensor {
    uint64_t numel;
    uint64_t bytes;            /* of its gradient */
    uint64_t gradient;         /* offset in the gradients */
    uint64_t update;           /* offset of its struct local_update in the results */
    uint64_t pushed;           /* step + 1 of the last push */
    uint64_t delivered;        /* step + 1 of the last update that was put into the queue */
    enum adtopk_status status; /* ... and its status */
};

struct trainer {
    struct trainer *next;
    struct remote *remote;
    session_id id;
    enum trainer_state state;
    bool known; /* the core wants to hear if it is lost */
    uint8_t route[GATE_ROUTE_SIZE];
    size_t route_size;
    char peer[64]; /* its address, for messages */
    uint32_t uid;
    char key[KEYFILE_KEY_SIZE]; /* that it showed; "" where none is needed */
    uint64_t job;
    uint32_t rank;
    struct trainer_tensor *tensor;
    uint32_t tensors, capacity;
    struct error refused; /* the first registration that was; told at commit */
    enum trainer_verdict verdict;
    struct error verdict_error;
    uint64_t verdict_turn;

    uint64_t sent, acknowledged; /* messages to it, and those that it has taken */
    uint64_t received;           /* messages from it */
    uint64_t answered;           /* ... that it knows were taken */

    struct segment gradients;
    const uint8_t *results; /* of its job, or NULL */
    uint64_t op_gradient, op_result;

    uint64_t step; /* that it may push; the updates of the one before are on their way */
    bool ended;    /* it ended that step */
    uint32_t pushing;
    uint64_t pushed_bytes; /* of tensor `pushing`; 0: none is under way */

    uint32_t *queue; /* tensors whose updates of the step are there, in that order */
    uint32_t queued, taken;
    uint64_t first; /* how far the update of queue[taken] was sent */
    bool step_over; /* the step is; told after the queue */
    enum adtopk_status step_status;

    bool op_running, op_done;
    uint64_t op_number;
    uint32_t op_bytes; /* that the trainer gets */
};

/* A job's results, which the core has from `local`. */
struct remote_results {
    struct remote_results *next;
    uint64_t job;
    const uint8_t *bytes;
};

struct remote {
    uv_loop_t *loop;
    struct remote_config config;
    const struct remote_ops *ops;
    void *context;
    struct gate gate;
    uv_poll_t poll[GATE_DESCRIPTORS];
    uv_timer_t timer;
    unsigned handles;
    unsigned probes; /* looks at all connections that are left, since one went away */
    struct core_memory local;
    struct remote_results *results;
    struct trainer *trainers;
    uint32_t count;
    uint64_t serial;
    uint64_t turn; /* counts remote_poll() */
    struct remote_stats stats;
};

/* ---- trainer.c ---- */

/** A session for the connection, or NULL without memory. */
struct trainer *trainer_create(struct remote *remote, const void *route, size_t route_size);

struct trainer *trainer_find(const struct remote *remote, session_id id);
struct trainer *trainer_of_route(const struct remote *remote, const void *route, size_t size);

/** Frees the sessions that have ended and whose memory the core has given back. */
void trainer_collect(struct remote *remote);

void trainer_free(struct trainer *trainer);

/** Moves to a state that the table allows; others are a bug of ours. */
void trainer_move(struct trainer *trainer, enum trainer_state state);

/** Raises an event for this session. */
enum adtopk_status trainer_event(struct trainer *trainer, struct event *event, struct error *err);

/** Sends a message, with its numbers filled in. False if its queue is full, or the connection gone,
 * which ends the session. A part is taken over in any case. */
bool trainer_send(struct trainer *trainer, Adtopk__RemoteReply *reply, zmq_msg_t *part);

/** Sends an answer that must not wait; ends the session if it cannot be sent. */
void trainer_answer(struct trainer *trainer, Adtopk__LocalReply *reply);

/** A final error to a connection without a session. */
void trainer_turn_away(struct remote *remote, const void *route, size_t route_size,
    enum adtopk_status status, const char *text);

/** The rank is gone, for the core and for us. */
void trainer_lost(struct trainer *trainer, const char *why);

/** Ends the session and tells the client why. */
void trainer_end(struct trainer *trainer, enum adtopk_status status, const char *text);

/** The client broke the protocol: ends its session, and tells it and the core why. */
void trainer_refuse(struct trainer *trainer, const struct error *why);

/** Passes a verdict on what the core refused, and puts it into effect when its turn has come. */
void trainer_judge(struct trainer *trainer, enum trainer_verdict verdict, const struct error *why);
bool trainer_execute(struct trainer *trainer);

/* ---- intake.c ---- */

/** Takes one message of a connection. */
void intake_take(struct remote *remote, struct gate_message *message);

/* ---- delivery.c ---- */

/** Sends what is due, at most `budget` messages; true if anything was sent. */
bool delivery_pump(struct trainer *trainer, unsigned budget);

/* ---- arena.c ---- */

/** Where the job's results are, or NULL. */
const uint8_t *arena_results(const struct remote *remote, uint64_t job);

void arena_drop_all(struct remote *remote);

#endif
