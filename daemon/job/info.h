/*
 * What is known of a job: what it waits for, its policy, what it has done until now.
 */
#ifndef ADTOPK_JOB_INFO_H
#define ADTOPK_JOB_INFO_H

#include "daemon/job/events.h"

/* The phases of a round, for measuring its time. */
enum phase {
    PHASE_COLLECT, /* from the first push of a bucket to the last */
    PHASE_SELECT,  /* compensate, select, encode */
    PHASE_EXCHANGE,
    PHASE_REDUCE, /* decode, sum, write the update */
    PHASE_SETTLE, /* per step: sent entries leave the residual */
    PHASE_COUNT
};

/* Phases are counted by their length: the i-th count is of those of at most 2^i microseconds that
 * are not in an earlier one, the last count also of all longer ones. */
#define PHASE_BUCKETS 26

/* The reasons for which a job waits. */
enum wait_kind {
    WAIT_NOTHING,
    WAIT_PEER,    /* `node` does not answer */
    WAIT_RETURN,  /* `node` restarted and has not joined again */
    WAIT_PUSH,    /* `rank` is to push `tensor` of step `number` */
    WAIT_CALL,    /* `rank` is to call plain operation `number` */
    WAIT_COMPUTE, /* `node` is to compute its part of step or operation `number` */
    WAIT_FRAME,   /* `node` is to send its part of step or operation `number` */
    WAIT_FORMING, /* ranks are missing */
    WAIT_AGREE,   /* the nodes are to agree on the members */
    WAIT_LEAVE,   /* `rank`, or if that is -1 the ranks of `node`, are to leave */
    WAIT_SWITCH,  /* all nodes are to reach step `number`, where a policy begins */
    WAIT_COMMIT,  /* `rank`, or if that is -1 the ranks of `node`, are to commit more tensors */
    WAIT_BEGIN,   /* a policy holds from a later step, and no rank trains */
    WAIT_VACANT,  /* the process of `rank` has ended: another one is to take its place */
    WAIT_KINDS
};

struct waiting {
    enum wait_kind kind;
    bool operation; /* `number` counts plain operations, not steps */
    bool relayed;   /* FRAME: the node may itself wait for another node */
    bool deserted;  /* VACANT: all processes of the node's ranks have ended */
    bool outside;   /* operation: the reporting node knows of no push in the open step */
    uint64_t number;
    uint32_t tensor;
    int32_t rank; /* -1: no rank */
    int32_t node; /* the rank's node, or the late node; -1: no single one */
    uint32_t pid; /* of the rank's process on its node; 0: not known */
    uint64_t since_us;
};

/* The policy of a job, and the next one. */
struct policy_info {
    const char *text;      /* the policy in force; canonical JSON; valid until the next event */
    uint32_t version;      /* 0: the policy that the ranks brought */
    uint64_t step;         /* the first step under it */
    uint32_t next_version; /* the version to which the job is switching; 0: none */
    uint64_t next_step;
    bool in_host; /* by it, residuals are in host memory, although this node has a far engine */
};

/* What the phases of a job's steps took. */
struct phase_times {
    uint64_t us[PHASE_COUNT];
    uint64_t counts[PHASE_COUNT][PHASE_BUCKETS]; /* by length, see PHASE_BUCKETS */
};

/* Of frames of sparse buckets, counted once: contributions, and sums. */
struct sparse_volume {
    uint64_t bytes;
    uint64_t nonzeros; /* values in them */
};

/* Numbers of steps, those of the runs before included; 0: there is none. */
struct checkpoint_steps {
    uint64_t due;   /* after which the ranks save the last one that an operator asked for */
    uint64_t read;  /* after which residuals were read for one */
    uint64_t saved; /* after which all nodes saved one, as a rank of this node said */
};

struct job_info {
    uint64_t id;
    struct job_key key;
    const char *state;                   /* a name from the job's state table; ended: see below */
    char waiting_for[ERROR_TEXT_SIZE];   /* a sentence, or "" */
    struct waiting waiting;              /* the same for programs */
    char waiting_tensor[CORE_NAME_SIZE]; /* the name of the tensor in `waiting`, or "" */
    char carrier[ERROR_TEXT_SIZE];       /* "by NCCL 2.28.9", or why not; "" */
    bool stuck;                          /* it has waited for core_config.stuck_us */
    char reason[ERROR_TEXT_SIZE];        /* why the job has failed; "" if it has not */
    uint32_t world_size;                 /* ranks with which it began */
    uint32_t ranks;                      /* in the view */
    uint32_t local_ranks;
    uint32_t nodes; /* members of the view */
    uint32_t view;
    uint32_t tensors;
    uint32_t buckets;
    uint64_t elements;
    uint64_t sparse_elements; /* of the tensors that are not sent dense */
    uint64_t steps_done;      /* accepted and withdrawn */
    uint64_t steps_withdrawn; /* because of NaN or Inf */
    uint64_t rounds;
    uint64_t rounds_retried;
    uint64_t
        dense_bytes;     /* what the gradients of one rank would be: 4 bytes per element and step */
    uint64_t bytes_sent; /* frames of steps that were handed to the links, once per peer */
    uint64_t op_bytes_sent; /* the same for frames of plain operations */
    uint64_t payload_bytes; /* frames of steps, counted once, with dense ones */
    struct sparse_volume sparse;
    struct checkpoint_steps checkpoint;
    struct phase_times phases;
    struct policy_info policy;
};

/* Values of job_info.state for a job that has ended. */
#define JOB_DONE "done"     /* all its ranks left */
#define JOB_FAILED "failed" /* job_info.reason says why */

/* A change of a job's policy, with its origin. */
struct policy_change {
    uint32_t version; /* 1, 2, ... */
    uint64_t step;    /* the first step under it */
    uint16_t node;    /* where it was asked for */
    uint32_t uid;     /* the user who asked; POLICY_PLANNER: the planner did; POLICY_TENSORS:
                       * it is there because ranks registered more tensors */
    uint32_t pid;     /* the process that asked */
};

#define POLICY_PLANNER UINT32_MAX /* no user has this number or the next */
#define POLICY_TENSORS (UINT32_MAX - 1)

#define POLICY_CHANGES 16    /* remembered changes per job */
#define POLICY_WHAT_SIZE 160 /* of what a change set, in a sentence */

/* A change that was made, as its node remembers it. */
struct policy_past {
    struct policy_change change;
    uint64_t at_us;              /* when the node went on under it; 0: an earlier daemon did */
    char what[POLICY_WHAT_SIZE]; /* what it set (policy_difference()); "": nothing, or not known */
};

/* The result of a tensor's verification: plain and sign-hashed sums at one moment. */
struct verified {
    uint64_t step; /* the step that was open then; UINT64_MAX: it was never verified */
    double input[2];
    double applied[2];
    double lost[2]; /* what decay took, or went with memory */
    double residual[2];
    double magnitude;      /* of the residual: sum of absolute values */
    double most_magnitude; /* the largest of all verifications; rounding is relative to it */
};

/* The magnitude of a tensor's residual as it was read last: by a verification, or job/declare.h. */
struct residual_read {
    uint64_t step; /* the step that was open then; UINT64_MAX: it was never read */
    double magnitude;
};

/* A tensor's share of the frames to and from other nodes, since the job began on this one. */
struct tensor_bytes {
    uint64_t sent, received;
};

/* What a member's residuals held when it told so last: job/declare.h. */
struct member_residual {
    bool told;
    bool kept;      /* it was lost, and has come back with them */
    uint64_t step;  /* steps that were done then */
    double sums[2]; /* plain and sign-hashed */
    bool measured;  /* it told their magnitude, too */
    double magnitude;
};

/* What was lost with nodes, as their residuals' sums say: job/declare.h. It lies in the store. */
struct lost_info {
    uint32_t nodes;      /* that the job went on without */
    uint32_t unknown;    /* how many of them had not told their sums */
    uint64_t step;       /* steps that were done when the last of the others told them */
    double sums[2];      /* of those others: plain and sign-hashed */
    uint32_t unmeasured; /* how many of those others had not told their magnitude */
    double magnitude;    /* of the rest: sum of absolute values */
};

/* A job's residual on this node, and what became of it. */
struct residual_info {
    bool read;                   /* that of each tensor that is sent sparse was, at some time */
    double magnitude;            /* sum of absolute values, of these tensors, as read last */
    uint64_t elements;           /* of these tensors */
    uint64_t step;               /* the step that was open when the first of them was */
    bool verified;               /* it ever was */
    uint32_t unbalanced;         /* tensors whose ledger was out of balance then (verdict.h) */
    uint64_t losses;             /* how often that of a tensor was lost with a GPU's memory */
    double lost[2];              /* the ledger's sums of that */
    struct lost_info lost_nodes; /* since this node took part */
};

/* The state of a job's planner on this node. */
struct plan_info {
    bool automatic;       /* the policy leaves choices to it */
    bool replan;          /* it may change the plan */
    uint16_t coordinator; /* the node where it decides */
    uint64_t bucket_bytes;
    const char *text; /* the plan in force, "" if there is none; valid until the next event */
    const char *why;  /* the reason of the last decision here; valid until the next event */
    uint64_t decisions, proposals; /* decisions for other plans, on this node */
    double predicted_us;           /* for the plan that was put in force here; 0: none was */
    uint32_t steps;                /* steps measured on this node, under this plan */
    double step_us;                /* their median time; 0: none was measured */
    double gamma;                  /* entries of a sum divided by those of one contribution */
    double link_us_byte;           /* time of the link per byte */
    double round_trip_us;          /* of a packet; 0: not known */
};

/* A rank. Its pace is the time from a step's last update to its last push in the next step. Ranks
 * whose pace is longer than that of others keep those waiting. */
struct rank_info {
    uint32_t number;
    uint32_t pid;          /* 0: another machine's, or not in the pid namespace of its daemon */
    const char *state;     /* "registering", "ready", "left", ... */
    uint64_t step;         /* the step that it works on */
    bool pushed;           /* it pushed something in this step */
    bool ended;            /* it has ended this step */
    uint64_t pace_steps;   /* over which its pace was measured */
    double pace_us;        /* its mean over about the last 64 of them */
    uint64_t pace_last_us; /* in the last of them */
};

/* The ranks of another node, as it answered when a client asked for them. */
struct node_ranks {
    uint16_t node;
    bool asked;    /* its answer is awaited, or did not come in time */
    bool answered; /* false: its ranks are not known */
    uint32_t most; /* how many it has in the view in force */
    uint32_t ranks;
    struct rank_info *rank;
};

#endif
