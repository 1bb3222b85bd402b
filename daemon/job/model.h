/*
 * The things the core thinks about, for the files of this folder only.
 *
 * A core has jobs. A job has local ranks, members (the nodes that have ranks of it), tensors,
 * and one round for every bucket. Ownership goes down this list; pointers up are borrowed.
 */
#ifndef ADTOPK_JOB_MODEL_H
#define ADTOPK_JOB_MODEL_H

#include "daemon/engine/engine.h"
#include "daemon/job/config.h"
#include "daemon/job/id_table.h"
#include "daemon/job/info.h"
#include "daemon/job/membership.h"
#include "daemon/job/states.h"
#include "daemon/job/store.h"
#include "daemon/policy/choices.h"
#include "daemon/policy/policy.h"
#include "kernels/kernels.h"
#include "proto/local.h"

struct estimates;
struct job;
struct measure;
struct round;

/* What a payload frame between nodes is. */
enum frame_kind { FRAME_STEP = 0, FRAME_OP = 1, FRAME_STEP_COPY = 2, FRAME_OP_COPY = 3 };

struct rank {
    session_id session;
    uint32_t number;
    struct job *job;
    unsigned index; /* among the local ranks; from RANK_READY on */
    struct machine machine;
    uint32_t registered;                        /* tensors described so far */
    unsigned committed, mapped, ready;          /* batches of them */
    const uint8_t *gradients[CORE_MAX_BATCHES]; /* its arenas; the driver's memory */
    uint64_t *pushed;                           /* per tensor: step + 1 of its last push */
    uint64_t *next_pushed; /* the same for when the batch that it has committed is in force */
    uint64_t ended;        /* step + 1 of its last step_end */
    uint64_t submitted;    /* number + 1 of its last plain operation */
    enum op_kind op_kind;
    uint32_t op_root;
    uint32_t op_size;
    uint32_t pid;   /* of its process; 0: not known */
    uint32_t waits; /* tensor + 1 that it blocks on, until that can be acted on; 0: none */
};

/* A member's answer to the running proposal; only the coordinator uses it. */
struct answer {
    bool answered;
    bool fresh; /* its store is new */
    uint64_t steps_done;
    uint64_t ops_done;
    uint32_t *delivered; /* rounds of its open step */
    uint32_t delivered_count;
    struct store_policy *newer; /* a policy newer than ours, or NULL */
    uint32_t holds;             /* the version for which it holds; 0: none */
    uint32_t batches;           /* of tensors that are in force there */
};

/* A node that has ranks of the job. */
struct member {
    uint16_t node;
    uint64_t incarnation; /* of the daemon that sent the join; 0: it restarted since */
    uint64_t job;         /* the number of the job on that node */
    uint64_t run;         /* the run that the node knows of; 0: none */
    uint64_t policy_hash;
    uint32_t exchanges; /* EXCHANGE_VERSION of its daemon */
    uint32_t world_size;
    uint32_t view;
    uint32_t ranks;
    uint32_t *rank;
    uint32_t tensors;
    uint64_t *tensor; /* hashes */
    uint32_t batches; /* that all its ranks have mapped */
    bool anew;        /* its join is newer than the view in force */
    bool left;        /* all its ranks left */
    uint64_t left_step;
    struct answer answer;
    uint32_t *copied; /* per round, then the operations: the view in which it got a copy */
    bool held;        /* it holds at the step of the policy switch under way */
    struct estimates *estimates; /* as it sent them last, for replan.c; NULL: never */
    uint64_t estimated_step;     /* they were sent when so many steps were done */
    uint32_t has;                /* the version in force there, as far as is known */
    unsigned early;              /* frames of it that wait in job->early.frames */
    struct waiting told;         /* what the member said last that it waits for */
    uint64_t told_us;            /* when it said so */
    uint64_t excused_us;         /* it had a reason to be late, as of then; see overdue.h */
    uint64_t frame_bytes;        /* in all of its frames that came whole */
    uint64_t moved_bytes;        /* overdue_moved(), as of the last look */
};

/* What a verification found: plain and sign-hashed sums of one moment. */
struct verified {
    double input[2];
    double applied[2];
    double residual[2];
    double magnitude; /* of the residual */
};

struct tensor {
    struct tensor_spec spec;
    uint64_t numel;
    uint64_t hash;          /* of the description */
    uint64_t verified_step; /* UINT64_MAX: never */
    struct verified verified;
    struct verified found; /* by a verification that may be running */
    double most_magnitude; /* of its residual, that any of them has found */
    struct tensor_layout layout;
    uint64_t list_capacity;           /* entries of an update; a longer one comes dense */
    struct store_tensor *store;       /* a compute of its round may be writing it */
    struct store_tensor at_rest;      /* the record when the open step began */
    float *slot;                      /* progress and states of the node's residual */
    uint64_t rank_slots;              /* floats of a rank's slots before this one */
    enum engine_owner residual_owner; /* of its residuals, and of what they select */
    enum engine_owner update_owner;
    float lookahead; /* by this the last rank that pushed it looked ahead */
};

/* What a plan keeps of a residual, in the store. */
struct kept {
    struct store_kept *header;
    struct sparse list; /* positions, and the residual's values there */
    float *momentum;    /* an element each; NULL: no momentum correction */
};

/* What this node takes back of what was rounded, in the store. */
struct returned {
    struct store_returned *header; /* NULL: nothing */
    struct sparse list;
    float *kept; /* what the node's residual (by_rank: the first) was there */
};

/* What the plan says of one tensor. */
struct plan_tensor {
    struct tensor_policy policy; /* with what the plan chose */
    enum choice choice;
    uint32_t allowed;      /* choices, a bit 1 << choice each */
    uint64_t sparse_count; /* `count` where it travels sparse; 0: it never does */
    bool dense;            /* travels dense */
    bool by_rank;          /* every local rank has a residual of its own */
    bool known;            /* all nodes know the positions: the values travel as a dense vector */
    bool rounded;          /* the residual is in bf16 */
    bool narrow;           /* ranks see its update in 16 bits */
    void *residual;  /* the node's, which is the first local rank's too: see layout_residual() */
    uint32_t bucket; /* the round it belongs to while that is not split */
    uint64_t count;  /* sparse: most entries of one turn of one residual */
    /* What each residual selected in this step, in the store, and what this node sends of it: the
     * sum, with values as the others will decode them. Valid if sent_step is the open step + 1. */
    struct kept *kept; /* one a residual */
    uint64_t sent_step;
    struct sparse sent;
    struct returned returned;  /* of the sums that this node rounded */
    struct returned rests;     /* narrow: of those, and of the update; see rests.h */
    uint8_t *accepted, *taken; /* while it is settled: of `sent` and of `returned`, one bit per
                                * entry that is in the sum; NULL: all are */
    uint64_t rest_place,
        rest_room; /* dense: where in plan->rest its rests have room, for so many */
    struct exchange_memory memory;
    uint32_t *positions; /* sent.position, where it is not that of kept[0] */
    float *values;       /* sent.value, where it is not that of kept[0] */
    float *known_sum;    /* known: the sum of all nodes' values */
    uint64_t fibres;     /* most fibres of a turn that selects from each */
    uint64_t summed;     /* entries of the last update, if it is sparse */
    float *hints; /* where the selection looks first: for each residual one of the tensor, then one
                   * a fibre */
};

struct work_kind;

/* Work on a thread, and what to do with its result. */
struct work {
    struct compute compute; /* first: the driver hands this back */
    struct job *job;
    struct round *round; /* NULL: it is of the whole job */
    void (*done)(struct work *work);
    enum adtopk_status status;
    struct error error;
    /* Work in stages (work.h); kind NULL: it has none. */
    const struct work_kind *kind;
    struct engine_batch batch[2]; /* by turns: of the stage that ran last, and of the one before */
    unsigned filling;             /* the former */
    unsigned read_from, read;     /* results of the latter that are the stage's tensor's */
    unsigned at;                  /* the stage that comes next */
    uint32_t first, end;          /* the window: tensors that go through the stages together */
    bool ordered;                 /* a far engine is to have the batch before the stage runs */
    uint64_t submitted_us;        /* it has had the batch since; 0: it has none */
};

/* What a policy means for the job's tensors. A job has one in force, and while it switches to
 * another policy (switch.c) also the next. */
struct plan {
    struct work work; /* makes it, or frees what it holds, on a worker */
    bool busy;        /* a worker has the plan now */
    void (*then)(struct job *job, struct plan *plan); /* it is made, or cannot be */
    struct error fault;                               /* why it cannot; OK: it is made */
    struct plan *discarded;                           /* the next one that nobody needs any more */
    bool unwanted;                                    /* it is one of those */
    struct policy policy;
    bool unreserved;             /* its updates may find no memory */
    struct policy_change change; /* since when, and who made it; version 0: the ranks brought it */
    char text[POLICY_TEXT_SIZE]; /* canonical */
    /* From here on empty until the local ranks are known. */
    struct plan_tensor *tensor;
    uint32_t tensors;
    uint32_t matching;   /* rules that match some tensor: a bit each */
    unsigned ranks;      /* local ones */
    unsigned nodes;      /* for so many it is laid out */
    uint64_t kept_bytes; /* of its part of the job's store */
    uint8_t *store;      /* that part */
    unsigned kept_part;  /* number of that part */
    int16_t *rest;       /* there: rests of dense sums; NULL: none are rounded */
    uint64_t rests;      /* room for so many rests */
    uint32_t residuals;  /* which of the store's two parts has the residuals */
    uint64_t bucket_bytes;
    uint64_t sparse_elements; /* of tensors that do not travel dense */
    uint32_t buckets;
    bool split;      /* some bucket is, or was: its tensors travel alone */
    uint32_t rounds; /* buckets, then one for every tensor alone */
    struct round *round;
};

/* Somebody waits for the outcome of a request. */
struct ticket {
    uint64_t number;
    struct failure *failure; /* room for why it failed */
};

/* Why a job has failed; its actions outlive it. Made with the job, so that failing needs no memory.
 */
struct failure {
    unsigned references;
    struct error error;
};

/* What a round was measured to take so far; measure.c. */
struct round_times {
    uint64_t compute_us;     /* its computes after the first */
    uint64_t link_us;        /* its exchange, without what the link did for others meanwhile */
    uint64_t sent, received; /* bytes of frames */
    uint64_t awaited;        /* bytes of frames that were waited for */
    bool unknown;            /* some compute did not tell */
};

/* A frame that came before its round could take it. */
struct parked {
    struct parked *next;
    uint16_t node;
    struct payload_header header;
    struct buffer *frame;
};

struct round {
    struct work work;
    struct job *job;
    struct machine machine;
    bool op; /* the job's plain operations */
    uint32_t bucket;
    uint64_t split_step; /* from this step on its tensors travel alone; UINT64_MAX: never */
    unsigned tensors;
    uint32_t *tensor; /* numbers */
    uint64_t place;   /* in the order in which the job wants them, lowest first; see share.h */
    uint32_t *pushes; /* per local rank: its pushes in the open step; only kept for buckets */
    struct exchange exchange;
    struct exchange_op exchange_op;
    unsigned phase;
    unsigned phases;
    struct buffer **received; /* [phase * members + member] */
    struct parked *parked;
    uint32_t view;     /* in which the exchange began */
    uint64_t since_us; /* of the current state */
    struct round_times times;
};

/* A node asks for a copy that this one cannot give before its own commit is there. */
struct fetch {
    struct fetch *next;
    uint32_t view; /* in which it asks */
    uint64_t number;
    uint32_t bucket;
    uint16_t node;
    bool op;
};

/* A split of a bucket of a plan that is not in force here yet. */
struct split {
    struct split *next;
    uint32_t policy;
    uint32_t bucket;
    uint64_t step;
};

/* What jobs are found by. */
enum job_index { BY_NUMBER, BY_KEY, BY_RUN, JOB_INDEXES };
#define JOB_BUCKETS 1024u

/* Where a job is in one of the tables. */
struct job_place {
    struct job *next; /* of those in its list */
    uint64_t hash;
    bool in;
};

/* Where a name leads. It keeps the name's hash, so that the table grows without a look at names. */
struct name_slot {
    uint32_t hash;
    uint32_t tensor; /* number + 1; 0: the slot is empty */
};

/* The lists that a job is in. */
struct places {
    struct job *next; /* the next job of the core */
    struct job_place in[JOB_INDEXES];
};

/* What all nodes of a run have alike. */
struct run {
    uint64_t id;   /* agreed on by the first commit; 0: none yet */
    uint64_t seed; /* of random choices; the same in every run of the key */
    uint32_t world_size;
};

/* What a node registers its tensors with: register.c. Tensors of the first batch become the job's
 * at once, those of a later one when it is put in force (agree/batch.c). */
struct registering {
    bool fixed;             /* a rank committed the batch: its tensors are final */
    struct tensor *next;    /* the tensors of the next batch */
    uint32_t nexts, room;   /* so many; there is room for */
    uint32_t moving;        /* so many are behind the job's, and their plan is being made */
    uint64_t since_us;      /* some rank, here or elsewhere, has committed the batch; 0: none */
    uint32_t capacity;      /* room for so many tensors; a power of two, or 0 */
    struct name_slot *slot; /* a hash table by name, of 2 * capacity slots */
};

/* What the nodes are agreeing on: view.c and coordinate.c. */
struct agreement {
    uint64_t run;              /* the number that is proposed for the run; 0: none yet */
    uint32_t promised;         /* the highest number prepared */
    uint32_t proposed;         /* as coordinator: waiting for answers to this one; 0: none */
    bool owes_state;           /* a prepare is to be answered: see view.c, can_answer() */
    struct membership members; /* of the view that is prepared; empty once that is in force */
};

/* What came before this node could take it. */
struct early {
    struct parked *frames; /* of a view that is not in force here yet */
    struct split *splits;  /* of a policy that is not in force here yet */
    struct fetch *fetches; /* from members that have heard of the commit before this node */
};

/* The change of the policy that is under way: switch.c and switch_ask.c. */
struct switching {
    struct machine machine;
    struct plan *next;    /* proposed: this node holds at its step; NULL: none */
    struct ticket *asked; /* this node asked for a change */
    struct turn *turn;    /* as coordinator: asked for while the last one was ending */
    unsigned late;        /* proposals of this change that came too late for some node */
    uint16_t asker;       /* the node that asked for the change */
    uint32_t attempts;    /* proposals that this coordinator has made */
    uint32_t attempt;     /* number of the proposal under way; 0: none is */
    uint32_t accepted;    /* the number that the coordinator gave to `next` */
};

/* The policies until now. */
struct history {
    uint64_t brought;                            /* hash of the policy that the ranks brought */
    struct plan *discarded;                      /* plans that a worker frees, or makes in vain */
    struct policy_change change[POLICY_CHANGES]; /* version v is at (v - 1) % POLICY_CHANGES */
};

/* A comparison of the ledgers: verify.c. */
struct verification {
    struct ticket *ticket; /* somebody waits for one; NULL: nobody does */
    bool running;          /* no residual is changed meanwhile */
    struct work work;
};

/* Tensors that were committed together, and arenas that only they are in. */
struct batch {
    uint32_t first, end; /* numbers */
    uint8_t *results;
    uint8_t *more; /* STORE_RANKS; NULL: no tensor is by rank */
    bool shown;    /* ranks may map its residuals: one of its tensors asks for that */
};

/* Where everything of the job lies: layout.c. */
struct layout {
    bool fresh; /* the store is new */
    struct batch batch[CORE_MAX_BATCHES];
    unsigned batches;        /* that are laid out */
    unsigned reserved_nodes; /* the results are reserved for a first view of so many */
    bool table_begun;        /* the table of where updates lie is written, or about to be */
    unsigned reserving;      /* reservations that have not ended */
    void (*reserved)(struct job *job, const struct error *error); /* called after the last one */
    struct error unreserved; /* what the first of them that failed said; code OK: none did */
    uint64_t op_gradient_offset;
    uint64_t op_result_offset;
    struct journal *journal;     /* one for each of config.threads */
    struct engine_memory arenas; /* where all of that is, for the engine */
};

/* The open step: step.c. */
struct step {
    struct machine machine;
    struct work settle;
    uint32_t undelivered; /* rounds */
    uint64_t since_us;    /* its first push; 0: none yet */
    float loss_scale;     /* of the local ranks' pushes; 0: none yet */
    uint32_t loss_rank;   /* the rank that pushed first */
    uint64_t settle_since_us;
};

/* The plain operations. */
struct operations {
    struct round round;
    uint64_t since_us; /* the first call of the next one; 0: none yet */
};

/* How the job ends: job.c and job_fail.c. */
struct ending {
    struct failure *failure;
    uint64_t last_steps;    /* it fails when every node has done so many steps; 0: at once */
    uint64_t too_long;      /* bytes of a frame that links do not take; 0: none */
    bool out_of_memory;     /* something could not be sent: it fails when the event is over */
    bool dropped;           /* it has ended, and its frames were taken out of the links */
    bool untold;            /* it has failed, and the peers could not be told yet */
    uint64_t leaving_us;    /* the first rank, here or elsewhere, left; 0: none has */
    uint64_t left_since_us; /* all local ranks have left since; 0: they have not */
    uint32_t left_view;     /* the view, or proposal, in which the others were told; 0: none */
};

/* Since when the job waits, and what is known of that elsewhere: waiting.c and job_wait.c. */
struct waits {
    uint64_t forming_since_us;
    uint64_t lost_since_us;  /* a peer of the view is down since; 0: none is */
    uint64_t moved_us;       /* the last event that brought the job on */
    uint64_t looked_us;      /* the last look at what it waits for */
    uint64_t heard_us;       /* another member's last word about its waiting; 0: none lately */
    uint64_t stuck_since_us; /* the job is stuck, and the log says so; 0: it is not */
    bool told;               /* the other members know that this node waits */
};

/* What an event leaves for advance.c to go on with. */
struct advance {
    struct job *next;   /* the next job in core->touched */
    bool touched;       /* the job is in core->touched */
    bool all_hold;      /* every member holds for the next policy: a view is to put it in force */
    bool opened;        /* what waited for the step to open has not been looked at yet */
    unsigned computing; /* computes and reservations that are under way */
};

/* What the job took until now, and what the planner makes of it. */
struct figures {
    struct job_info counters;  /* only the counting fields */
    struct measure *measure;   /* NULL: nothing is "auto", or there was no memory */
    struct planning *planning; /* as coordinator; NULL: nothing was decided yet */
};

struct job {
    struct core *core;
    struct places places;
    struct job_key key;
    uint64_t number; /* on this node: jobs that are opened later have higher ones */
    struct run run;
    struct machine machine;
    struct rank **rank; /* local ranks by ascending number */
    unsigned ranks;
    struct tensor *tensor;
    uint32_t tensors; /* in force; before the first view, those that are registered */
    unsigned batches; /* of them in force; 0: before the first view */
    struct registering registering;
    struct member **member; /* known nodes by ascending id, this one included */
    unsigned members;
    uint32_t view;              /* in force; 0: none yet */
    struct membership in_force; /* of the view; empty before the first */
    struct agreement agreement;
    struct early early;
    struct plan *plan; /* in force */
    struct switching switching;
    struct history history;
    struct store_header *store;
    struct layout layout;
    struct step step;
    struct operations op;
    struct verification verification;
    struct ending ending;
    struct waits waits;
    struct advance advance;
    struct figures figures;
};

struct peer {
    uint16_t node;
    bool up;
    uint64_t incarnation; /* the last one that was heard of; 0: none */
};

/* The latest job of another node that had a part in a job with this key that ended here. */
struct former {
    uint64_t key; /* job.seed */
    uint64_t incarnation;
    uint64_t number;
    uint64_t failed; /* the latest whose end this node told the other one, or heard from it */
    uint16_t node;
};

#define FORMER_JOBS 1024u

struct core {
    struct core_config config;
    struct machine_trace trace;
    struct links *links;
    struct peer *peer;
    unsigned peers;
    struct job *jobs;
    struct job *touched; /* jobs that the event has changed; advance.c */
    struct job **job_at; /* the same by index */
    uint32_t job_count;
    struct job *index[JOB_INDEXES][JOB_BUCKETS]; /* the same, see job_index.c */
    struct id_table ranks;                       /* by session, of all jobs */
    bool starved;                                /* some job could not send */
    unsigned ended;                              /* jobs that have ended and are not freed yet */
    bool due_known;                              /* no event came since `due_us` was found */
    uint64_t due_us;                             /* the first of the jobs' deadlines */
    struct policy policy;
    uint64_t now_us;
    uint64_t stuck_us;
    uint64_t bad_messages;  /* from peers: malformed, foreign, or of a step that is over */
    uint64_t late_messages; /* from peers: of a run or a job that is over */
    uint64_t opened_jobs;
    struct former former[FORMER_JOBS]; /* a ring; former.c */
    uint64_t formers;                  /* so many were put into it */
    struct action *queue;              /* ring of `queue_size` slots */
    unsigned queue_size, queue_head, queue_count;
    struct failure *told; /* of the action that was taken last */
    bool stopping;        /* every job ends at its next step boundary */
};

static inline bool job_ended(const struct job *job)
{
    return job->machine.state == JOB_ENDED;
}

#endif
