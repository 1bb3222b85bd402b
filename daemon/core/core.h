/*
 * The core: every decision of the daemon, and no I/O.
 *
 * Events go in through core_event(), actions come out of core_next_action(). The daemon drives it
 * with libuv, ZeroMQ and worker threads; the simulator drives the same code with a virtual
 * network, clock and memory. README.md beside this file follows one round from push to accept.
 *
 * A core is used by one thread. Only a compute's run() may be called on another, and until the
 * core gets it back as EVENT_COMPUTE_DONE nobody else touches what it works on.
 */
#ifndef ADTOPK_CORE_H
#define ADTOPK_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/core/machine.h"
#include "daemon/engine/engine.h"
#include "daemon/link/link.h"
#include "daemon/sparsify/sparsifier.h"
#include "kernels/base/parallel.h"
#include "proto/error.h"

#define CORE_NAME_SIZE 128 /* of a tensor, including the NUL */
#define CORE_KEY_SIZE 64   /* of a job's name or run id, including the NUL */
#define CORE_MAX_NODES 1024
#define CORE_MAX_WORLD 65536
#define CORE_MAX_TENSORS 65536
#define CORE_MAX_BATCHES ENGINE_BATCHES /* commits of tensors in one run of a job */
#define CORE_STORE_PARTS ENGINE_STORE_PARTS
#define CORE_STORE_RESIDUALS 4u /* from this part on only the engine reads and writes */
#define CORE_OP_SIZE (1u << 20) /* bytes of a plain operation; the client cuts longer ones */

#define CORE_PLAN_EVERY 3u               /* default of core_config.plan_every */
#define CORE_STUCK_US UINT64_C(60000000) /* default of core_config.stuck_us */
#define CORE_INLINE_TENSORS 1024u        /* default of core_config.inline_tensors */
#define CORE_SEGMENT (UINT64_C(1) << 20) /* default of core_config.segment */

struct core;

/* One piece of compute. The driver calls run() once, on any thread, and hands it back. */
struct compute {
    void (*run)(struct compute *compute);
    uint64_t bytes;            /* memory it will move, about: small ones are cheaper inline */
    struct share_class class;  /* when it goes, where several wait */
    struct share_item waiting; /* the driver's */
    unsigned thread;  /* set by the driver: who runs it, below core_config.threads, if not 0 */
    uint64_t took_us; /* set by the driver: how long run() took; 0: not known */
};

/* A session is one rank's connection to this daemon; the driver numbers them, never reusing a
 * number. */
typedef uint64_t session_id;

struct job_key {
    uint32_t owner; /* uid */
    char name[CORE_KEY_SIZE];
    char run_id[CORE_KEY_SIZE];
};

/** Whether both keys name the same job: owner, name and run id. */
static inline bool core_same_job(const struct job_key *a, const struct job_key *b)
{
    return a->owner == b->owner && strcmp(a->name, b->name) == 0 &&
           strcmp(a->run_id, b->run_id) == 0;
}

struct tensor_spec {
    char name[CORE_NAME_SIZE];
    enum dtype dtype;
    unsigned forms; /* enum adtopk_form of the client's header: 1 list, 2 dense */
    struct tensor_shape shape;
};

enum event_type {
    /* A rank's requests. An error goes back to that rank; it is final for the session only where
     * core_event() says so through an ACTION_FAILED. */
    EVENT_RANK_OPEN,     /* open */
    EVENT_RANK_REGISTER, /* spec */
    EVENT_RANK_COMMIT,   /* no more tensors: the core asks memory->gradients() for the arena. All
                          * three may come again between two steps, for another batch of tensors */
    EVENT_RANK_MAPPED,   /* the rank has mapped its arena, the driver has sealed it */
    EVENT_RANK_PUSH,     /* tensor, number = step, scale = the loss scale, 0: 1 */
    EVENT_RANK_STEP_END, /* number = step */
    EVENT_RANK_WAIT,     /* tensor, number = step: the rank now blocks on this tensor */
    EVENT_RANK_OP,       /* op, number = the operation's number, 0, 1, ... */
    EVENT_RANK_READ,  /* read: a part of its residual at a step boundary. PENDING: not just now */
    EVENT_RANK_LEAVE, /* clean goodbye */
    EVENT_RANK_LOST,  /* its process is gone; reason */
    /* Requests of operators. An error is the whole answer; otherwise an action with the ticket
     * follows, once. */
    EVENT_POLICY,    /* policy: change it on all nodes, at one step. Ends with ACTION_POLICY */
    EVENT_VERIFY,    /* verify: compare the ledgers. Ends with ACTION_VERIFIED */
    EVENT_PEER_GONE, /* peer_gone: nothing listens at this peer's address any more */
    EVENT_STOP,      /* every job ends at its next step boundary, with a sentence; no job begins */
    EVENT_PACKET,    /* packet */
    EVENT_COMPUTE_DONE, /* compute */
    EVENT_RESERVED,     /* reserved: core_memory.reserve_results() has ended */
    EVENT_ENGINE_DONE,  /* batch: a far engine has carried it out */
    EVENT_ENGINE_LOST,  /* a far engine has lost its memory: every job on this node fails */
    EVENT_TIMER,        /* core_deadline() has passed */
    EVENT_TYPE_COUNT
};

/* A rank opens a job. */
struct event_open {
    struct job_key key;
    uint32_t rank;
    uint32_t world_size;
    const char *policy; /* JSON, or NULL for the default */
    uint64_t run;       /* 0: the rank begins a run; else it returns to this one */
    uint32_t pid;       /* of its process; 0: not known */
};

/* Somebody asks for another policy. */
struct event_policy {
    uint64_t ticket; /* comes back in the action */
    uint64_t job;
    const char *text;    /* JSON */
    bool merge;          /* on top of the policy in force, instead of the daemon's default */
    uint32_t if_version; /* refuse if another one is in force; UINT32_MAX: any */
    uint32_t uid, pid;   /* who asks */
};

/* A rank pushes, waits for a tensor, or ends a step. */
struct event_step {
    uint32_t tensor;
    uint64_t number;
    float scale;
    float lookahead;
};

#define CORE_READ_STEP 8192u /* where a part may begin; the most elements that it has */

/* A rank reads a part of a tensor's residual, into memory of the caller's. */
struct event_read {
    uint32_t tensor;
    uint64_t first; /* a multiple of CORE_READ_STEP */
    uint32_t count;
    float *values;
};

struct event {
    enum event_type type;
    uint64_t now_us; /* monotonic; never goes back */
    session_id session;
    union {
        struct event_open open;
        const struct tensor_spec *spec;
        struct event_step step;
        struct {
            uint64_t number;
            enum op_kind kind;
            uint32_t root;
            uint32_t size; /* bytes in the arena's operation area, at most CORE_OP_SIZE */
        } op;
        struct event_read read;
        const char *reason;
        struct event_policy policy;
        struct {
            uint64_t ticket;
            uint64_t job;
        } verify;
        struct {
            uint16_t peer; /* UINT16_MAX: the transport cannot tell */
            enum link_lane lane;
            const uint8_t *bytes;
            size_t size;
        } packet;
        struct compute *compute;
        struct engine_batch *batch;
        uint16_t peer_gone;
        struct {
            uint64_t job;
            const struct error *error; /* NULL: the memory is there */
        } reserved;
    };
};

enum action_type {
    ACTION_COMPUTE,   /* run compute, then EVENT_COMPUTE_DONE */
    ACTION_READY,     /* session: the job, or another batch of its tensors, is ready, results are
                       * mapped; number = next step */
    ACTION_DELIVERED, /* session: tensor's update of step `number` is there; status */
    ACTION_STEP,      /* session: step `number` is accepted (OK) or withdrawn (NONFINITE) */
    ACTION_OP_DONE,   /* session: plain operation `number` is done */
    ACTION_FAILED,    /* session: its job has ended; error says why. The core forgets the session */
    ACTION_CLOSED,    /* session: its leave is complete. The core forgets the session */
    ACTION_POLICY,    /* ticket: status, error; OK: policy version `operation` from step `number` */
    ACTION_VERIFIED   /* ticket: status, error; OK: tensor_info.residual is as of step `number` */
};

struct action {
    enum action_type type;
    session_id session;
    uint32_t tensor;
    uint64_t number;
    uint64_t operation; /* READY: the next plain operation's number */
    uint64_t run;       /* READY: the number of the run, for a rank that returns to it */
    uint64_t job;       /* READY: its job's number, as core_memory has it */
    uint32_t index;     /* READY: of the rank among those of this node */
    uint64_t ticket;    /* POLICY, VERIFIED */
    enum adtopk_status status;
    struct compute *compute;
    const struct error
        *error; /* FAILED, POLICY, VERIFIED: why; valid until the next core_next_action() */
};

/* Offsets of a tensor in a rank's gradient arena and in the job's result arena. */
struct tensor_layout {
    uint32_t batch; /* in which it was committed, from 0: each has arenas of its own */
    uint64_t gradient_offset;
    uint64_t update_offset; /* struct local_update of proto/local.h */
};

/* A piece of the results, in bytes. */
struct core_piece {
    uint64_t offset, size;
};

/* Memory outside the core. `job` is the number that the core gave a job on this node; it never uses
 * a number twice. All memory is zeroed when new and aligned to 4096. A failure fills err and
 * returns NULL. */
struct core_memory {
    void *context;
    /* Called before the first store() or results() of a job. returning: the job gets the stores
     * that an earlier core of this node left under this key; otherwise those are given back, and
     * the job begins with new ones. NULL: no store outlives a core. The daemon's is NULL until
     * its stores outlive it. */
    void (*open_job)(void *context, uint64_t job, const struct job_key *key, bool returning);
    /* The arena into which one rank writes gradients; the core only reads. Each batch of tensors
     * has one; those of earlier batches stay where they are. */
    const void *(*gradients)(
        void *context, session_id session, unsigned batch, uint64_t size, struct error *err);
    /* The arena from which all ranks of this node read updates, one for each batch of tensors.
     * *existing: it holds what an earlier core of this node left there. */
    void *(*results)(void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing,
        struct error *err);
    /* Reserves pieces of a batch's results, in ascending order, which may be written from then on,
     * and stay so until the job is released. *later: not yet, but when EVENT_RESERVED for the job
     * comes. Those of one job come in the order of the calls, and the job is not released before.
     * NULL: all may be written at once. */
    enum adtopk_status (*reserve_results)(void *context, uint64_t job, unsigned batch,
        const struct core_piece *piece, unsigned pieces, bool *later, struct error *err);
    /* Residuals and their state: outlives the core. A job has part 0, part 1 while its ranks have
     * residuals of their own, and by turns parts 2 and 3, and 4 and 5 (store.h). Each further batch
     * of tensors has four parts behind those. A part whose size has changed is new. drop_store() of
     * a part that is not there does nothing. shown: ranks may map the part, which has residuals of
     * a batch with LOCAL_FORM_PENDING. It never changes in a part. Private memory is faster. */
    void *(*store)(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
        bool *existing, struct error *err);
    void (*drop_store)(void *context, uint64_t job, unsigned part);
    /* The session's gradients, or the job's results and store, are no longer used. */
    void (*release_session)(void *context, session_id session);
    /* The job's run has ended. */
    void (*release_job)(void *context, uint64_t job);
    /* Whether an earlier core of this node left a store under this key. NULL if open_job is. The
     * restart of a daemon will set both; the simulator does so today. */
    bool (*has_store)(void *context, const struct job_key *key);
};

struct core_config {
    uint16_t node;
    uint64_t incarnation;
    uint64_t secret;           /* drawn for this start; no message and no answer shows it */
    struct links_config links; /* self and incarnation are filled in by the core */
    struct core_memory memory;
    /* Who makes the passes over residuals; NULL: engine_host. The daemon's far engine is
     * engine_cuda, if the setting `engine` says so. */
    const struct engine_ops *engine;
    void *engine_context; /* of a far engine */
    /* Packets go out at once, not through the action queue: see links_ops.transmit. */
    bool (*transmit)(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size);
    /* Opens another connection for a lane: see links_ops.reopen. May be NULL. */
    void (*reopen)(void *context, uint16_t peer, enum link_lane lane);
    void *transmit_context; /* of both */
    /* Threads that run computes, if a pass that is cut short with the daemon is to be repeated from
     * the store; 0: the store ends with the daemon, and no pass is journalled. The restart of a
     * daemon will turn this on. */
    unsigned threads;
    /* How a compute spreads a loop over threads that are idle; `caller` is filled in for each
     * compute, with its thread. Numbers are those of compute.thread. Zero: computes do not. */
    struct parallel parallel;
    uint64_t segment;        /* elements of a dense bucket under way at a time; 0: CORE_SEGMENT */
    uint64_t range;          /* elements of a tensor that are worth a worker; 0: ENGINE_RANGE */
    uint32_t inline_tensors; /* of a job: what is made for each takes no worker; 0:
                              * CORE_INLINE_TENSORS */
    const char *policy;      /* JSON: the default policy; NULL for the built-in one */
    uint64_t stuck_us;       /* a job that waits so long for one thing is stuck; 0: CORE_STUCK_US */
    uint64_t plan_every;     /* steps between two looks of the planner; 0: CORE_PLAN_EVERY */
    /* A line that an operator may want to see: what the planner changed, and what came of it. NULL:
     * nobody does. The context is that of `trace`. */
    void (*note)(void *context, const char *line);
    /* The same for trouble: a job that is stuck, and that it goes on. */
    void (*warn)(void *context, const char *line);
    /* One line per decision, for traces and failed tests; may be NULL. */
    void (*trace)(void *context, const char *line);
    /* Every move of a state machine, for coverage; may be NULL. `id` of a job's: the job's. */
    void (*moved)(void *context, const struct machine_table *table, uint64_t id, unsigned from,
        unsigned event, unsigned to);
    void *trace_context;
};

/** NULL and an error if the configuration is wrong or memory is short. */
struct core *core_create(const struct core_config *config, struct error *err);

/** Drops everything at once, as a crash would: stores and results keep what they hold. Computes
 * must not be running. */
void core_destroy(struct core *core);

/* What may change while the core runs. */

/** The default policy of jobs that are opened from now on; JSON, NULL for the built-in one. On an
 * error the old one stays. */
enum adtopk_status core_set_default_policy(struct core *core, const char *json, struct error *err);

/** After how long a job that waits for one thing is stuck; 0: CORE_STUCK_US. */
void core_set_stuck(struct core *core, uint64_t stuck_us);

/** Where trace lines go from now on, with core_config's context; NULL: nowhere. */
void core_set_trace(struct core *core, void (*trace)(void *context, const char *line));

enum adtopk_status core_add_peer(struct core *core, uint16_t node, uint64_t now_us);

/**
 * Takes one event. Returns an error where a rank's request is refused (err names what is wrong);
 * such a request changes nothing. Packets never fail: what is wrong with them is counted.
 */
enum adtopk_status core_event(struct core *core, const struct event *event, struct error *err);

/** Takes the oldest action out of the queue; false if there is none. */
bool core_next_action(struct core *core, struct action *action);

/** When EVENT_TIMER is due; UINT64_MAX if never. */
uint64_t core_deadline(struct core *core);

#endif
