/*
 * Looking into a core: what status, stats and tests show. Read-only; the same thread as the core.
 */
#ifndef ADTOPK_INSPECT_H
#define ADTOPK_INSPECT_H

#include "daemon/core/core.h"
#include "daemon/planner/planner.h"

/* Where a round's time goes. */
enum phase {
    PHASE_COLLECT, /* from the first push of a bucket to the last */
    PHASE_SELECT,  /* compensate, select, encode */
    PHASE_EXCHANGE,
    PHASE_REDUCE, /* decode, sum, write the update */
    PHASE_SETTLE, /* per step: winners leave the residual */
    PHASE_COUNT
};

/* What a job waits for. */
enum wait_kind {
    WAIT_NOTHING,
    WAIT_PEER,    /* `node` does not answer */
    WAIT_RETURN,  /* `node` restarted and has not joined again */
    WAIT_PUSH,    /* `rank` is to push `tensor` of step `number` */
    WAIT_CALL,    /* `rank` is to call plain operation `number` */
    WAIT_COMPUTE, /* `node` is to compute its part of step or operation `number` */
    WAIT_FRAME,   /* `node` is to send its part of step or operation `number` */
    WAIT_FORMING, /* ranks are missing */
    WAIT_AGREE,   /* the nodes are to agree on who they are */
    WAIT_LEAVE,   /* `rank`, or if that is -1 the ranks of `node`, are to leave */
    WAIT_SWITCH,  /* all nodes are to reach step `number`, where a policy begins */
    WAIT_COMMIT,  /* `rank`, or if that is -1 the ranks of `node`, are to commit more tensors */
    WAIT_BEGIN,   /* a policy holds from a later step, and nobody trains */
    WAIT_KINDS
};

struct waiting {
    enum wait_kind kind;
    bool operation; /* `number` counts plain operations, not steps */
    bool relayed;   /* FRAME: the node may itself wait for another one */
    uint64_t number;
    uint32_t tensor;
    int32_t rank; /* -1: of no rank */
    int32_t node; /* where that rank is, or the node that is late; -1: no single one */
    uint32_t pid; /* of the rank's process on its node; 0: not known */
    uint64_t since_us;
};

/* The policy of a job, and the next one. */
struct policy_info {
    const char *text;      /* in force; canonical JSON; valid until the next event */
    uint32_t version;      /* 0: what the ranks brought */
    uint64_t step;         /* the first step under it */
    uint32_t next_version; /* being switched to; 0: none */
    uint64_t next_step;
};

struct job_info {
    uint64_t id;
    struct job_key key;
    const char *state;                   /* a name from the job's state table; ended: see below */
    char waiting_for[ERROR_TEXT_SIZE];   /* a sentence, or "" */
    struct waiting waiting;              /* the same for programs, */
    char waiting_tensor[CORE_NAME_SIZE]; /* with the tensor's name, or "" */
    bool stuck;                          /* it has waited for core_config.stuck_us */
    char reason[ERROR_TEXT_SIZE];        /* why it has failed; "" if it has not */
    uint32_t world_size;
    uint32_t local_ranks;
    uint32_t nodes; /* members of the view */
    uint32_t view;
    uint32_t tensors;
    uint32_t buckets;
    uint64_t elements;
    uint64_t sparse_elements; /* of the tensors that do not travel dense */
    uint64_t steps_done;      /* accepted and withdrawn */
    uint64_t steps_withdrawn; /* because of NaN or Inf */
    uint64_t rounds;
    uint64_t rounds_retried;
    uint64_t dense_bytes;   /* 4 bytes an element, per step: what one rank's gradient would be */
    uint64_t bytes_sent;    /* frames of steps handed to the links, once for each peer */
    uint64_t op_bytes_sent; /* frames of plain operations, counted alike */
    uint64_t payload_bytes; /* frames of steps, counted once, dense ones included */
    uint64_t sparse_payload_bytes; /* frames of sparse buckets, counted once */
    uint64_t sparse_nonzeros;      /* values in those, of contributions and of sums */
    uint64_t phase_us[PHASE_COUNT];
    struct policy_info policy;
};

/* What job_info.state says of a job that has ended. */
#define JOB_DONE "done"     /* all its ranks left */
#define JOB_FAILED "failed" /* job_info.reason says why */

/* A change of a job's policy, and who made it. */
struct policy_change {
    uint32_t version; /* 1, 2, ... */
    uint64_t step;    /* the first one under it */
    uint16_t node;    /* where it was asked for, */
    uint32_t uid;     /* by this user; POLICY_PLANNER: by the planner; POLICY_TENSORS:
                       * because ranks registered more tensors */
    uint32_t pid;     /* and process */
};

#define POLICY_PLANNER UINT32_MAX /* no user has this number, nor the next */
#define POLICY_TENSORS (UINT32_MAX - 1)

#define POLICY_CHANGES 16 /* remembered, a job */

/* What the planner of a job knows on this node. */
struct plan_info {
    bool automatic;       /* the policy leaves something to it */
    bool replan;          /* it may change the plan */
    uint16_t coordinator; /* the node where it decides */
    uint64_t bucket_bytes;
    const char *text; /* the plan in force, "" while there is none; valid until the next event */
    const char *why;  /* of the last decision here, a sentence; valid until the next event */
    uint64_t decisions, proposals; /* of other plans, here */
    double predicted_us;           /* of the plan that was put in force here; 0: none was */
    uint32_t steps;                /* measured on this node, under this plan */
    double step_us;                /* their median; 0: none was */
    double gamma;                  /* entries of a sum by those of one contribution, */
    double link_us_byte;           /* what a byte takes on the link, */
    double round_trip_us;          /* and a packet there and back; 0: not known */
};

struct tensor_info {
    struct tensor_spec spec;
    uint64_t numel;
    const char *sparsifier; /* "dense" where it travels dense */
    const char *collective;
    double density;
    const char *scope;   /* "node" or "rank" */
    const char *values;  /* as they travel, by the name that a policy uses */
    const char *indices; /* as the policy says: "auto", ...; "none" where it travels dense */
    uint32_t bucket;
    uint64_t turn;
    uint64_t count; /* entries selected a turn; 0: dense */
    enum choice choice;
    uint32_t allowed;        /* choices that the policy leaves: a bit 1 << choice each */
    double lookahead;        /* the share by which ranks looked ahead when they pushed it last, */
    double lookahead_policy; /* and that of the policy: a guard may reduce it */
    double arrival_us; /* of its last gradient, after the step's first; below 0: not measured */
    /* The ledger when the last step was closed: plain and sign-hashed sums of what came in and what
     * was applied. What is left in the residual is their difference, to rounding. */
    double input[2];
    double applied[2];
    /* The residual's own sums when the job was last verified, while this step was open, with the
     * ledger of that moment. verified_step UINT64_MAX: never. */
    uint64_t verified_step;
    double verified_input[2];
    double verified_applied[2];
    double residual[2];
    double residual_magnitude; /* sum of absolute values */
    double most_magnitude;     /* the largest that a verification has found: rounding is measured
                                * against it */
};

struct peer_info {
    uint16_t node;
    bool up;
    uint64_t incarnation;
    struct link_stats link;
};

/** Number of jobs; job_info of the index-th, in order of creation. */
uint32_t core_job_count(const struct core *core);
bool core_job_info(const struct core *core, uint32_t index, struct job_info *info);

/** The same of the job with this id; false if there is none. */
bool core_find_job(const struct core *core, uint64_t id, struct job_info *info);

/** How many jobs the owner of this one has; 0 if this one is there already. */
uint32_t core_jobs_beside(const struct core *core, const struct job_key *key);

/** The pattern of the index-th rule of the policy in force that matches no tensor; NULL if there
 * are no more, or while the job's tensors are not known. Valid until the next event. */
const char *core_unmatched_rule(const struct core *core, uint64_t job, uint32_t index);

/** The index-th of the job's last policy changes, the newest first. */
bool core_policy_change(
    const struct core *core, uint64_t job, uint32_t index, struct policy_change *change);

/** The plan of a job, and what is known of it here. */
bool core_plan_info(const struct core *core, uint64_t job, struct plan_info *info);

/** The index-th plan that the planner looked at last, best first; only where it decides. */
bool core_plan_candidate(
    const struct core *core, uint64_t job, uint32_t index, struct planner_candidate *candidate);

/** A tensor of the job with that id. */
bool core_tensor_info(
    const struct core *core, uint64_t job, uint32_t tensor, struct tensor_info *info);

/** The ledger of a tensor as it is at this moment, in the middle of a step too. Only while no
 * compute runs on another thread. */
bool core_tensor_ledger(
    const struct core *core, uint64_t job, uint32_t tensor, double input[2], double applied[2]);

/** The residual of a tensor: the node's (slot 0), or with scope rank that of the slot-th local
 * rank. numel elements in memory order; NULL if there is none, or none in f32. Only while no
 * compute runs on another thread. */
const float *core_residual(const struct core *core, uint64_t job, uint32_t tensor, uint32_t slot);

/** A copy of it, in f32 whatever its type; false if there is none. In bf16 some elements get back
 * what rounding cut off others: the ledger's sums are the residual's. */
bool core_residual_copy(
    const struct core *core, uint64_t job, uint32_t tensor, uint32_t slot, float *out);

uint32_t core_peer_count(const struct core *core);
bool core_peer_info(const struct core *core, uint32_t index, struct peer_info *info);

/** Packets of no peer, strangers among them. */
struct link_refused core_refused(const struct core *core);

/* What the driver's memory operations and the client need of a committed session. */
bool core_tensor_layout(
    const struct core *core, session_id session, uint32_t tensor, struct tensor_layout *layout);
/** Offset of the operation area (CORE_OP_SIZE bytes) in the gradient and the result arena. */
bool core_op_layout(const struct core *core, session_id session, uint64_t *gradient_offset,
    uint64_t *result_offset);
/** The number of the job that a session belongs to; 0 for an unknown session. */
uint64_t core_session_job(const struct core *core, session_id session);
/** The key of the job that a session belongs to. NULL for an unknown session. Valid until the next
 * event. */
const struct job_key *core_session_key(const struct core *core, session_id session);
/** The same by the job's id; NULL if there is no such job. */
const struct job_key *core_job_key(const struct core *core, uint64_t job);

#endif
