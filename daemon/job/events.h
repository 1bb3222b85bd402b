/*
 * What goes into a core and what comes out of it: the requests of ranks and operators, packets,
 * computes that are back, and the actions that follow.
 */
#ifndef ADTOPK_JOB_EVENTS_H
#define ADTOPK_JOB_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/engine/engine.h"
#include "daemon/link/link.h"
#include "daemon/sparsify/sparsifier.h"
#include "proto/error.h"

#define CORE_NAME_SIZE 128 /* of a tensor's name, with the NUL */
#define CORE_KEY_SIZE 64   /* of a job's name or run id, with the NUL */
#define CORE_MAX_NODES 1024
#define CORE_MAX_WORLD 65536
#define CORE_MAX_TENSORS 65536
#define CORE_MAX_BATCHES ENGINE_BATCHES /* commits of tensors in one run of a job */
#define CORE_STORE_PARTS ENGINE_STORE_PARTS
#define CORE_STORE_MAIN 0u
#define CORE_STORE_RANKS 1u     /* residuals of ranks, too */
#define CORE_STORE_RESIDUALS 4u /* from this part on only the engine reads and writes */
#define CORE_STORE_VELOCITIES 6u
#define CORE_STORE_LATER 8u /* later batches of tensors have four parts each */

/** The part of the first batch that has the same of its tensors as this one of any batch. */
static inline unsigned core_store_like(unsigned part)
{
    const unsigned number = (part - CORE_STORE_LATER) % 4;

    return part < CORE_STORE_LATER      ? part
           : number <= CORE_STORE_RANKS ? number
                                        : number - 2 + CORE_STORE_RESIDUALS;
}
#define CORE_OP_SIZE (1u << 20) /* bytes of a plain operation; the client cuts longer ones */
#define CORE_OP_GRADIENTS 0u    /* offset of the operation area in a rank's first arena */

#define CORE_PLAN_EVERY 3u               /* default of core_config.plan_every */
#define CORE_STUCK_US UINT64_C(60000000) /* default of core_config.stuck_us */
#define CORE_INLINE_TENSORS 1024u        /* default of core_config.inline_tensors */
#define CORE_SEGMENT (UINT64_C(1) << 20) /* default of core_config.segment */

/* A piece of compute. The driver calls run() once, on any thread, and hands the compute back. */
struct compute {
    void (*run)(struct compute *compute);
    uint64_t bytes; /* about how much memory it will move: small computes are cheaper inline */
    struct share_class class;  /* its urgency among waiting computes */
    struct share_item waiting; /* for the driver */
    /* Set by the driver: the thread that runs it, below core_config.threads if that is not 0. */
    unsigned thread;
    uint64_t took_us; /* set by the driver: how long run() took; 0: not known */
};

/* One rank's connection to this daemon. The driver numbers sessions, and never uses a number twice.
 */
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

/* What a rank sees of updates in memory that only the engine can read. */
enum core_shown { CORE_SHOWN_NOT, CORE_SHOWN_WHOLE, CORE_SHOWN_LISTS /* beside all elements */ };

struct tensor_spec {
    char name[CORE_NAME_SIZE];
    enum dtype dtype;
    unsigned forms; /* enum local_form, combined */
    struct tensor_shape shape;
    /* The rank's gradients are in memory that only the engine can read. Ranks may differ in it. */
    bool on_gpu;
    enum core_shown shown_on_gpu; /* its updates there: the same for all tensors of a rank */
    bool stays; /* the rank cannot come back with it to the next daemon of this node */
};

enum event_type {
    /* Requests of a rank. An error goes back to that rank. It is final for the session only if
     * core_event() says so with an ACTION_FAILED. */
    EVENT_RANK_OPEN,     /* open */
    EVENT_RANK_REGISTER, /* spec */
    /* No more tensors: the core asks memory->gradients() for the arena. These three may come again
     * between two steps, for another batch of tensors. */
    EVENT_RANK_COMMIT,
    EVENT_RANK_MAPPED,   /* the rank has mapped its arena, and the driver has sealed it */
    EVENT_RANK_PUSH,     /* tensor, number = step, scale = the loss scale, 0: 1 */
    EVENT_RANK_STEP_END, /* number = step */
    EVENT_RANK_WAIT,     /* tensor, number = step: the rank now blocks on this tensor */
    EVENT_RANK_OP,       /* op, number = the operation's number, 0, 1, ... */
    EVENT_RANK_READ,     /* read: a part of its residual at a step boundary. PENDING: not now */
    /* keep: a piece of what a checkpoint keeps, out at a step boundary, or in before the first
     * step. PENDING: not now */
    EVENT_RANK_KEEP,
    EVENT_RANK_LEAVE, /* clean goodbye */
    EVENT_RANK_LOST,  /* its process is gone; reason */
    /* Requests of operators. An error is the whole answer. Otherwise one action with the ticket
     * follows. */
    EVENT_POLICY,     /* policy: change it on all nodes at one step. Ends with ACTION_POLICY */
    EVENT_VERIFY,     /* asked: compare the ledgers. Ends with ACTION_VERIFIED */
    EVENT_RECORDS,    /* asked: what all nodes have recorded. Ends with ACTION_RECORDS */
    EVENT_RANKS,      /* asked: the ranks of all nodes. Ends with ACTION_RANKS */
    EVENT_CHECKPOINT, /* asked: the ranks are to save one. Ends with ACTION_CHECKPOINT */
    EVENT_PEER_GONE,  /* peer_gone: nothing listens at this peer's address any more */
    EVENT_STOP, /* stay. Other jobs end at their next step boundary, with a sentence; no job begins
                 */
    EVENT_PACKET,       /* packet */
    EVENT_COMPUTE_DONE, /* compute */
    EVENT_RESERVED,     /* reserved: core_memory.reserve_results() has ended */
    EVENT_ENGINE_DONE,  /* batch: a far engine has carried it out */
    EVENT_CARRIED,      /* cargo: the carrier has brought an operation back */
    EVENT_ENGINE_LOST,  /* lost: a far engine has lost the memory of a job, which fails */
    EVENT_TIMER         /* core_deadline() has passed */
};

/* A rank opens a job. */
struct event_open {
    struct job_key key;
    uint32_t rank;
    uint32_t world_size;
    const char *policy; /* JSON, or NULL for the default */
    uint64_t run;       /* 0: the rank begins a run; else it returns to this run */
    uint32_t pid;       /* of the rank's process; 0: not known */
    bool returns;       /* its client can come back to the next daemon of this node */
    bool here;          /* it is on this node: another process may take its place */
    /* How often it commits before it is ready; 0: once. More than once only if it returns. */
    unsigned batches;
    /* This process takes the place of one that ended, and pushes this step first. */
    bool comes_back;
    uint64_t first_step;
};

/* A request for another policy. */
struct event_policy {
    uint64_t ticket; /* not 0; comes back in the action */
    uint64_t job;
    const char *text;    /* JSON */
    bool merge;          /* change the policy in force instead of the daemon's default */
    uint32_t if_version; /* refuse if another version is in force; UINT32_MAX: any */
    uint32_t uid, pid;   /* the user and process that ask */
};

/* A request that is about a job. */
struct event_job {
    uint64_t ticket; /* not 0; comes back in the action */
    uint64_t job;
};

/* A rank pushes, waits for a tensor, or ends a step. */
struct event_step {
    uint32_t tensor;
    uint64_t number;
    float scale;
    float lookahead;
};

/* A part begins at a multiple of this, and has at most this many elements. */
#define CORE_READ_STEP 8192u

/* A rank reads a part of a tensor's residual into the caller's memory. */
struct event_read {
    uint32_t tensor;
    uint64_t first; /* a multiple of CORE_READ_STEP */
    uint32_t count;
    float *values;
};

/* What a checkpoint keeps (compute/keeping.h). */
enum keep_section {
    KEEP_JOB = 0,  /* a CheckpointJob; written first */
    KEEP_POLICY,   /* the policy's text; read only */
    KEEP_TENSOR,   /* a CheckpointTensor */
    KEEP_ELEMENTS, /* the arrays of proto/checkpoint_content.h */
    KEEP_CARRIES,  /* read only: written behind the elements of their chunks, in one piece */
    KEEP_VELOCITY,
    KEEP_END, /* nothing; written last */
    KEEP_SECTIONS
};
#define CORE_KEEP_SIZE (CORE_READ_STEP * 4 + 256) /* most bytes of a piece */

/* A rank reads or writes a piece of a section. */
struct event_keep {
    bool writes;
    enum keep_section section;
    uint32_t tensor;
    uint32_t residual; /* 0: the node's, or the first rank's */
    uint64_t first;    /* float of an array, a multiple of CORE_READ_STEP; byte of the policy */
    uint32_t count;    /* of floats, or bytes */
    uint8_t *bytes;    /* the caller's; reading: has room for CORE_KEEP_SIZE. Aligned for floats */
    size_t size;       /* bytes in it; reading: filled in */
};

struct event_packet {
    uint16_t peer; /* UINT16_MAX: the transport cannot tell */
    enum link_lane lane;
    const uint8_t *bytes;
    size_t size;
    struct buffer *body; /* see links_receive() */
};

struct recorded;

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
        struct event_keep *keep;
        const char *reason;
        struct event_policy policy;
        struct event_job asked; /* VERIFY, RECORDS, RANKS, CHECKPOINT */
        struct event_packet packet;
        struct compute *compute;
        struct engine_batch *batch;
        struct cargo *cargo;
        uint64_t lost; /* number of the job; 0: of every job on this node */
        uint16_t peer_gone;
        bool
            stay; /* STOP: jobs that the next daemon of this node can go on with stay as they are */
        struct {
            uint64_t job;
            const struct error *error; /* NULL: the memory is there */
        } reserved;
    };
};

enum action_type {
    ACTION_COMPUTE, /* run the compute, then raise EVENT_COMPUTE_DONE */
    /* session: the job, or another batch of its tensors, is ready and the results are mapped;
     * number = next step. */
    ACTION_READY,
    ACTION_DELIVERED, /* session: the tensor's update of step `number` is there; status */
    ACTION_STEP,      /* session: step `number` is accepted (OK) or withdrawn (NONFINITE) */
    ACTION_OP_DONE,   /* session: plain operation `number` is done */
    ACTION_FAILED,    /* session: its job has ended, or goes on without it; error says why. The core
                       * forgets the session */
    ACTION_CLOSED,    /* session: its leave is complete. The core forgets the session */
    ACTION_POLICY,    /* ticket: status, error; OK: policy version `operation` from step `number` */
    ACTION_VERIFIED,  /* ticket: status, error; OK: tensor_info.verified is as of step `number` */
    ACTION_RECORDS,   /* ticket: status, error; OK: records */
    ACTION_RANKS,     /* ticket: status, error; OK: core_roster() has the ranks of other nodes */
    /* ticket: status, error; OK: the ranks hear that they are to save one after `number` steps,
     * those of the runs before included. */
    ACTION_CHECKPOINT
};

/* What a rank hears before its next step, of those who take part in it: READY, STEP. */
struct taking_part {
    uint32_t ranks;  /* in the next step */
    uint32_t place;  /* the rank's among them, from 0 */
    uint32_t root;   /* the lowest of them that took part in the step before */
    uint64_t joined; /* the step from which the ranks that joined last take part; 0: none joined */
    bool due;        /* before it they save a checkpoint, for which an operator has asked */
};

struct action {
    enum action_type type;
    session_id session;
    uint32_t tensor;
    uint64_t number;
    uint64_t operation; /* READY: the next plain operation's number */
    uint64_t run;       /* READY: the number of the run; 0: no rank can return to it */
    uint64_t job;       /* READY: the number of its job, as in core_memory */
    uint32_t index;     /* READY: the rank's place among the ranks of this node */
    unsigned batches;   /* READY: of tensors that are in force */
    uint64_t ticket;    /* of the operator's request that this answers; else 0 */
    enum adtopk_status status;
    struct taking_part members;
    struct compute *compute;
    bool shown; /* DELIVERED: the update is on the GPUs of ranks that asked for that */
    const struct error *error; /* FAILED, or with a ticket: why; valid until the next
                                  core_next_action() */
    struct recorded *recorded; /* RECORDS; valid until the next core_next_action() */
};

/* Offsets of a tensor in a rank's gradient arena and in the job's result arena. */
struct tensor_layout {
    uint32_t batch; /* the batch that committed it, from 0; each has arenas of its own */
    uint64_t gradient_offset;
    uint64_t shown_offset;   /* of the update there, if the rank sees updates on a GPU */
    uint64_t list_offset;    /* of its list there, if the rank sees lists, too */
    uint64_t pending_offset; /* of what updates lack, behind all lists (layout_pending()) */
    bool pending;            /* that may be other than zeros */
    uint64_t update_offset;  /* struct local_update of proto/local.h */
};

#endif
