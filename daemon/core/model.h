/*
 * The things the core thinks about, for the files of this folder only.
 *
 * A core has jobs. A job has local ranks, members (the nodes that have ranks of it), tensors,
 * and one round for every bucket. Ownership goes down this list; pointers up are borrowed.
 *
 * Functions of the files that have no header of their own are declared here.
 */
#ifndef ADTOPK_MODEL_H
#define ADTOPK_MODEL_H

#include "daemon/core/choices.h"
#include "daemon/core/core.h"
#include "daemon/core/id_table.h"
#include "daemon/core/inspect.h"
#include "daemon/core/machine.h"
#include "daemon/core/policy.h"
#include "daemon/core/store.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/rounded.h"
#include "proto/local.h"

struct estimates;
struct job;
struct measure;
struct round;

enum job_state { JOB_FORMING, JOB_PREPARED, JOB_ACTIVE, JOB_ENDED, JOB_STATES };
enum job_event { JOB_ON_PREPARE, JOB_ON_COMMIT, JOB_ON_FAIL, JOB_ON_LEAVE, JOB_EVENTS };

enum rank_state { RANK_OPEN, RANK_COMMITTED, RANK_MAPPED, RANK_READY, RANK_LEFT, RANK_STATES };
enum rank_event {
    RANK_ON_REGISTER,
    RANK_ON_COMMIT,
    RANK_ON_MAPPED,
    RANK_ON_READY,
    RANK_ON_PUSH,
    RANK_ON_STEP_END,
    RANK_ON_OP,
    RANK_ON_LEAVE,
    RANK_EVENTS
};

enum step_state { STEP_IDLE, STEP_OPEN, STEP_SETTLE, STEP_WITHDRAW, STEP_STATES };
enum step_event { STEP_ON_OPEN, STEP_ON_DELIVERED, STEP_ON_DONE, STEP_EVENTS };

enum switch_state {
    SWITCH_NONE,
    SWITCH_PROPOSED, /* accepted here: the step of the next plan is not reached yet */
    SWITCH_HELD,     /* reached: it opens when all nodes are there */
    SWITCH_MOVING,   /* agreed: the residuals are being made to fit */
    SWITCH_STATES
};
enum switch_event {
    SWITCH_ON_PROPOSE,
    SWITCH_ON_HOLD,
    SWITCH_ON_COMMIT,
    SWITCH_ON_ABORT,
    SWITCH_ON_DONE,
    SWITCH_EVENTS
};

enum round_state {
    ROUND_IDLE,      /* not part of the open step */
    ROUND_COLLECT,   /* waits for the local ranks and for an active view */
    ROUND_SELECT,    /* computing: accumulate, select, encode */
    ROUND_EXCHANGE,  /* waits for the frames of a phase */
    ROUND_COMBINE,   /* computing: the frames of the next phase */
    ROUND_REDUCE,    /* computing: decode, sum, write the update */
    ROUND_FETCH,     /* delivered elsewhere in an earlier view: waits for a copy */
    ROUND_DELIVERED, /* the update is there */
    ROUND_STATES
};
enum round_event {
    ROUND_ON_OPEN,
    ROUND_ON_COLLECTED,
    ROUND_ON_COMPUTED,
    ROUND_ON_PHASE,
    ROUND_ON_FREEZE,
    ROUND_ON_HELD,
    ROUND_ON_COPY,
    ROUND_ON_SPLIT,
    ROUND_ON_CLOSE,
    ROUND_EVENTS
};

/* What a payload frame between nodes is. */
enum frame_kind { FRAME_STEP = 0, FRAME_OP = 1, FRAME_STEP_COPY = 2, FRAME_OP_COPY = 3 };

struct rank {
    session_id session;
    uint32_t number;
    struct job *job;
    unsigned index; /* among the local ranks; from RANK_READY on */
    struct machine machine;
    uint32_t registered;      /* tensors described so far */
    const uint8_t *gradients; /* its arena; the driver's memory */
    uint64_t *pushed;         /* per tensor: step + 1 of its last push */
    uint64_t ended;           /* step + 1 of its last step_end */
    uint64_t submitted;       /* number + 1 of its last plain operation */
    enum op_kind op_kind;
    uint32_t op_root;
    uint32_t op_size;
    uint32_t pid;   /* of its process; 0: not known */
    uint32_t waits; /* tensor + 1 that it blocks on, until that can be acted on; 0: none */
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
    bool anew;        /* its join is newer than the view in force */
    bool left;        /* all its ranks left */
    uint64_t left_step;
    /* Its answer to the running proposal; only the coordinator uses these. */
    bool answered;
    bool fresh;
    uint64_t steps_done;
    uint64_t ops_done;
    uint32_t *delivered; /* rounds of its open step */
    uint32_t delivered_count;
    uint32_t *copied; /* per round, then the operations: the view in which it got a copy */
    bool held;        /* it holds at the step of the policy switch under way */
    struct estimates *estimates; /* as it sent them last, for replan.c; NULL: never */
    uint64_t estimated_step;     /* ... when so many steps were done */
    struct store_policy *newer;  /* in its answer: a policy newer than ours, or NULL */
    uint32_t holds;              /* in its answer: the version for which it holds */
    uint32_t has;                /* the version in force there, as far as is known */
    unsigned early;              /* frames of it that wait in job->early */
    struct waiting told;         /* what the member said last that it waits for */
    uint64_t told_us;            /* when it said so */
    uint64_t excused_us;         /* it had a reason to be late, as of then; see waiting.c */
    uint64_t moved_bytes;        /* between it and this node, as of the last look */
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
    struct tensor_layout layout;
    uint64_t list_capacity;      /* entries of an update; a longer one comes dense */
    struct store_tensor *store;  /* a compute of its round may be writing it */
    struct store_tensor at_rest; /* ... as it was when the open step began */
    float *slot;                 /* progress and states of the node's residual */
    uint64_t rank_slots;         /* floats of a rank's slots before this one */
};

/* What a plan keeps of a residual, in the store. */
struct kept {
    struct store_kept *header;
    struct sparse list; /* positions, and the residual's values there */
    float *momentum;    /* an element each; NULL: no momentum correction */
};

/* What this node takes back of the sums that it rounded, in the store. */
struct returned {
    struct store_returned *header; /* NULL: it rounds none */
    struct sparse list;
    float *kept; /* what the node's residual (by_rank: the first) was there */
};

/* What the plan says of one tensor. */
struct planned {
    struct tensor_policy policy; /* with what the plan chose */
    enum choice choice;
    uint32_t allowed;      /* choices, a bit 1 << choice each */
    uint64_t sparse_count; /* `count` where it travels sparse; 0: it never does */
    bool dense;            /* travels dense */
    bool by_rank;          /* every local rank has a residual of its own */
    bool known;            /* all nodes know the positions: the values travel as a dense vector */
    bool rounded;          /* the residual is in bf16 */
    void *residual;  /* the node's, which is the first local rank's too: see layout_residual() */
    uint32_t bucket; /* the round it belongs to while that is not split */
    uint64_t count;  /* sparse: most entries of one turn of one residual */
    /* What each residual selected in this step, in the store, and what this node sends of it: the
     * sum, with values as the others will decode them. Valid if sent_step is the open step + 1. */
    struct kept *kept; /* one a residual */
    uint64_t sent_step;
    struct sparse sent;
    struct returned returned;
    uint64_t rest_place,
        rest_room; /* dense: where in plan->rest its rests have room, for so many */
    struct exchange_memory memory;
    uint32_t *positions; /* sent.position, where it is not that of kept[0] */
    float *values;       /* sent.value, where it is not that of kept[0] */
    float *known_sum;    /* known: the sum of all nodes' values */
    uint64_t fibres;     /* ... of the turns that select from each */
    uint64_t summed;     /* entries of the last update, if it is sparse */
    float *hints; /* where the selection looks first: for each residual one of the tensor, then one
                   * a fibre */
};

/* What a policy means for the job's tensors. A job has one in force, and while it switches to
 * another policy (switch.c) also the next. */
struct plan {
    struct policy policy;
    bool unreserved;             /* its updates may find no memory */
    struct policy_change change; /* since when, and who made it; version 0: the ranks brought it */
    char text[POLICY_TEXT_SIZE]; /* canonical */
    /* From here on empty until the local ranks are known. */
    struct planned *tensor;
    uint32_t tensors;
    uint32_t matching;  /* rules that match some tensor: a bit each */
    unsigned ranks;     /* local ones */
    uint8_t *store;     /* its part of the job's store */
    int16_t *rest;      /* there: rests of dense sums; NULL: none are rounded */
    uint64_t rests;     /* ... so many */
    uint32_t residuals; /* which of the store's two parts has the residuals */
    uint64_t bucket_bytes;
    uint32_t buckets;
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

/* Work on a thread, and what to do with its result. */
struct work {
    struct compute compute; /* first: the driver hands this back */
    struct job *job;
    struct round *round; /* NULL: the job's settle */
    void (*done)(struct work *work);
    enum adtopk_status status;
    struct error error;
};

/* What a round was measured to take so far; measure.c. */
struct round_times {
    uint64_t compute_us;     /* its computes after the first */
    uint64_t link_us;        /* its exchange, without what the link did for others meanwhile */
    uint64_t sent, received; /* bytes of frames */
    uint64_t awaited;        /* ... of those that came while they were waited for */
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

struct job {
    struct core *core;
    struct job *next;
    struct job_key key;
    uint64_t number;   /* on this node: jobs that are opened later have higher ones */
    uint64_t run;      /* agreed on by the first commit; 0: none yet */
    uint64_t next_run; /* proposed for the first view; 0: none yet */
    uint64_t seed;     /* of random choices that all nodes make alike; the key's */
    struct machine machine;
    uint32_t world_size;
    struct plan *plan;      /* in force */
    struct plan *next_plan; /* proposed: this node holds at its step; NULL: none */
    uint64_t policy_hash;   /* of the policy that the ranks brought */
    struct policy_change change[POLICY_CHANGES]; /* version v is at (v - 1) % POLICY_CHANGES */
    struct machine policy_switch;
    struct ticket *asked;  /* this node asked for a change */
    struct turn *turn;     /* as coordinator: asked for while the last one was ending */
    unsigned late;         /* proposals of the change under way that came too late for some node */
    uint16_t asker;        /* the node that asked for the change under way */
    uint32_t attempts;     /* proposals that this coordinator has made */
    uint32_t attempt;      /* number of the proposal under way; 0: none is */
    uint32_t accepted;     /* the number that the coordinator gave to next_plan */
    struct ticket *verify; /* wanted at the next step boundary */
    bool verifying;        /* no residual is changed meanwhile */
    struct work verification;
    struct parked *early;       /* frames of a view that is not in force here yet */
    struct split *early_splits; /* ... of a policy */

    struct rank **rank; /* local ranks by ascending number */
    unsigned ranks;
    bool fixed; /* the first rank committed: the tensors are final */
    uint32_t tensors;
    struct tensor *tensor;
    uint32_t tensor_capacity; /* a power of two, or 0 */
    uint32_t *name_slot;      /* hash table by name: 2 * tensor_capacity slots of number + 1 */

    struct member **member; /* known nodes by ascending id, this one included */
    unsigned members;
    uint32_t view;     /* in force; 0: none yet */
    uint32_t promised; /* the highest number prepared */
    uint32_t proposed; /* as coordinator: waiting for answers to this one; 0: none */
    bool owes_state;   /* a prepare is to be answered: see view.c, can_answer() */
    uint16_t coordinator;
    uint16_t *next_node; /* members of the view that is prepared, ascending */
    uint64_t *next_incarnation;
    uint64_t *next_job; /* their numbers of the job */
    unsigned next_nodes;
    uint16_t *view_node; /* members of the view in force, ascending */
    unsigned view_nodes;
    unsigned self; /* index in view_node */

    struct store_header *store;
    bool store_fresh;
    uint8_t *results;
    unsigned reserved_nodes; /* they are reserved for a first view of so many */
    bool table_begun;        /* what says where updates lie is written, or about to be */
    unsigned reserving;      /* reservations that have not ended */
    void (*reserved)(struct job *job, const struct error *error); /* for the last one */
    uint64_t op_gradient_offset;
    uint64_t op_result_offset;

    struct journal *journal; /* one for each of config.threads */
    uint8_t *more;           /* STORE_RANKS; NULL: no tensor is by rank */

    uint32_t undelivered; /* rounds of the open step */
    struct round op_round;
    struct machine step;
    struct work settle;
    unsigned computing;
    bool out_of_memory; /* something could not be sent: fails when the event is over */
    uint64_t too_long;  /* bytes of a frame that links do not take: the same; 0: none */
    bool dropped;       /* it has ended, and its frames were taken out of the links */
    bool untold;        /* it has failed, and the peers could not be told yet */
    struct failure *failure;
    uint64_t
        last_steps; /* it fails when so many steps are done, on the other nodes too; 0: at once */

    struct fetch *fetches;

    uint64_t forming_since_us;
    uint64_t waiting_since_us; /* a peer of the view is down since; 0: none is */
    uint64_t step_since_us;    /* the first push of the open step; 0: none yet */
    uint64_t op_since_us;      /* the first call of the next plain operation; 0: none yet */
    uint64_t leaving_us;       /* the first rank, here or elsewhere, left; 0: none has */
    uint64_t left_since_us;    /* all local ranks have left since; 0: they have not */
    uint32_t left_view;        /* the view in which the others were told so; 0: none */
    uint64_t settle_since_us;
    uint64_t moved_us;       /* the last event that brought the job on */
    uint64_t looked_us;      /* the last waiting_look() */
    uint64_t heard_us;       /* the last word of another member about its waiting; 0: none lately */
    uint64_t stuck_since_us; /* stuck, and the log says so; 0: it is not */
    bool told;               /* the other members know that this node waits */
    struct job_info counters;  /* only the counting fields */
    struct measure *measure;   /* NULL: nothing is "auto", or there was no memory */
    struct planning *planning; /* as coordinator; NULL: nothing was decided yet */
};

struct peer {
    uint16_t node;
    bool up;
    uint64_t incarnation; /* the last one that was heard of; 0: none */
};

struct core {
    struct core_config config;
    struct machine_trace trace;
    struct links *links;
    struct peer *peer;
    unsigned peers;
    struct job *jobs;
    struct job **job_at; /* the same by index */
    uint32_t job_count;
    struct id_table ranks; /* by session, of all jobs */
    bool starved;          /* some job could not send */
    unsigned ended;        /* jobs that have ended and are not freed yet */
    bool due_known;        /* no event came since `due_us` was found */
    uint64_t due_us;       /* the first of the jobs' deadlines */
    struct policy policy;
    uint64_t now_us;
    uint64_t stuck_us;
    uint64_t bad_messages;  /* from peers: malformed, foreign, or of a step that is over */
    uint64_t late_messages; /* from peers: of a run or a job that is over */
    uint64_t opened_jobs;
    struct action *queue; /* ring of `queue_size` slots */
    unsigned queue_size, queue_head, queue_count;
    struct failure *told; /* of the action that was taken last */
    bool stopping;        /* every job ends at its next step boundary */
};

extern const struct machine_table job_machine, rank_machine, step_machine, round_machine,
    switch_machine;

static inline bool job_ended(const struct job *job)
{
    return job->machine.state == JOB_ENDED;
}

/* core.c */
void core_act(struct core *core, const struct action *action);
enum adtopk_status core_reserve_actions(struct core *core, struct error *err);
void core_compute(
    struct work *work, void (*run)(struct compute *), void (*done)(struct work *), uint64_t bytes);
void core_send_frame(const struct round *round, uint16_t node, struct buffer *frame);
void core_note(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_warn(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_trace(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* job.c */
/* The job of this key that was opened last, or NULL. One whose ranks have left may still be there
 * beside it. */
struct job *job_find(struct core *core, const struct job_key *key);
bool job_is_left(const struct job *job); /* all its ranks on this node have left */
struct job *job_by_number(struct core *core, uint64_t number);
/* The job whose frames carry this number; NULL: none. */
struct job *job_find_run(struct core *core, uint64_t run);
/* Whether a job of this key has ended but still computes. */
bool job_is_ending(const struct core *core, const struct job_key *key);
/* The plan of the policy that a rank brings, on top of the daemon's. */
struct plan *job_first_plan(struct core *core, const struct event *event, struct error *err);
struct job *job_create(struct core *core, const struct event *event, struct error *err);
void job_fail(struct job *job, const struct error *error, bool tell_peers);
/* When so many steps are done; at once if that can never be. The peers know. */
void job_fail_later(struct job *job, const struct error *error, uint64_t steps);
void job_fail_due(struct job *job); /* a step is done, or never will be */
void job_tell_failure(struct job *job);
void job_end(struct job *job);
void job_stop(struct job *job); /* ends it, unless a step or operation is under way */
/* What becomes of a job whose peer does not answer (SILENT: it waits, if the policy says so), whose
 * daemon was restarted, or that is gone for good. */
enum peer_loss { PEER_SILENT, PEER_RESTARTED, PEER_GONE };
void job_peer_lost(struct job *job, uint16_t node, enum peer_loss loss);
/* Whether the ranks of that node have left after steps that are all done here too: nothing under
 * way needs the node any more. */
bool job_is_done_with(const struct job *job, uint16_t node);
void job_tell_leave(struct job *job);
void job_reap(struct job *job); /* frees it if it has ended and nothing computes */
void job_free(struct job *job);
void job_drop_failure(struct failure *failure);
struct rank *job_rank(const struct job *job, uint32_t number);
void job_try_leave(struct job *job);
void job_peer_left(struct job *job, uint16_t node, uint64_t steps_done);

/* job_wait.c */
bool job_peer_is_up(const struct job *job, uint16_t node); /* or it is this one */
void job_check_time(struct job *job);
uint64_t job_deadline(const struct job *job);

/* rank.c */
enum adtopk_status rank_event(struct core *core, const struct event *event, struct error *err);
struct rank *rank_find(const struct core *core, session_id session);
void rank_ready(struct rank *rank);
/* If the rank blocks on a tensor: splits its bucket if the rank has not pushed all of it. While the
 * view changes, or the step is held, it has to wait. */
void rank_split(struct rank *rank);
void rank_free(struct rank *rank);

/* register.c */
enum adtopk_status register_tensor(
    struct rank *rank, const struct tensor_spec *spec, struct error *err);
enum adtopk_status register_disagree(
    struct rank *rank, const char *what, const char *name, struct error *err);

/* layout.c: where everything lies */
enum adtopk_status layout_gradients(struct job *job, uint64_t *size, struct error *err);
enum adtopk_status layout_store(struct job *job, struct error *err);
/* Opens the results before the first view, and reserves what a view of the nodes that were prepared
 * takes of them. The job computes until that is done. */
enum adtopk_status layout_results(struct job *job, struct error *err);
enum adtopk_status layout_more(struct job *job, struct error *err); /* opens STORE_RANKS */
void layout_drop_more(
    struct job *job); /* ... is given back if the plan in force has no use of it */
/* Opens the plan's STORE_PLAN and points its tensors' kept lists there; `switches`: those that were
 * made when the plan is in force. */
enum adtopk_status layout_kept(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err);
/* Puts back what computes were just changing when the daemon was killed, and ends the joining of
 * residuals: they fit either plan then. */
enum adtopk_status layout_recover(struct job *job, struct error *err);
/* Gives back the part that the plan in force does not use. */
void layout_drop_kept(struct job *job);
/* Reserves what updates need of the results under this plan. Calls `then` when that is done or has
 * failed, unless another call for the job comes first, or the job ends; the job computes until
 * then.
 */
enum adtopk_status layout_reserve(struct job *job, const struct plan *plan,
    void (*then)(struct job *job, const struct error *error), struct error *err);
void layout_reserved(
    struct core *core, uint64_t id, const struct error *error); /* EVENT_RESERVED */
struct local_update *layout_update(const struct job *job, uint32_t tensor);
/* The residual of a tensor: the node's is also the first local rank's. NULL if it is in bf16; */
float *layout_residual(const struct job *job, uint32_t tensor, unsigned rank);
/* then it is here, else nothing. */
struct rounded layout_rounded(const struct job *job, uint32_t tensor);
/* One in bf16 in this memory. */
struct rounded layout_rounded_in(const struct job *job, uint32_t tensor, void *memory);
/* ... and the progress of the passes over it. */
struct progress *layout_progress(const struct job *job, uint32_t tensor, unsigned rank);
/* ... and what its sparsifier remembers. */
struct store_states *layout_states(const struct job *job, uint32_t tensor, unsigned rank);
uint64_t layout_number(uint32_t tensor, unsigned rank); /* the residual's, in journals */

/* switch.c: from one policy to another */
enum adtopk_status switch_request(struct core *core, const struct event *event, struct error *err);
bool switch_hold(
    struct job *job); /* whether the step that would open now waits for the next plan */
void switch_drop(struct job *job, const struct error *error); /* the job is over */
void switch_drop_turn(struct job *job);                       /* what waits its turn is off */

/* ticket.c */
struct ticket *ticket_create(uint64_t number);
void ticket_free(struct ticket *ticket); /* without an answer */
/* Acts with `outcome`, filling in ticket, status and error, and frees the ticket, if there is one.
 * error NULL: it was done. */
void ticket_answer(struct job *job, struct ticket **ticket, const struct action *outcome,
    const struct error *error);

/* verify.c */
enum adtopk_status verify_request(struct core *core, const struct event *event, struct error *err);
void verify_try(struct job *job);
void verify_drop(struct job *job, const struct error *error);

/* join.c */
void join_announce(struct job *job); /* a local rank has mapped its arena */
void join_peer_up(struct core *core, uint16_t node);
void join_missing_ranks(const struct job *job, char *text, size_t size);
struct member *join_member(const struct job *job, uint16_t node);

/* view.c */
void view_opened(struct job *job); /* the step is open: what waited for it goes on */
void view_try_answer(struct job *job);
int view_index(const struct job *job, uint16_t node); /* in view_node, or -1 */

/* fetch.c */
void fetch_drop(struct job *job);

/* dispatch.c */
void dispatch_control(struct core *core, uint16_t node, const struct buffer *message);

/* peer.c */
void peer_send_split(struct job *job, uint64_t step, uint32_t bucket);
void peer_send_fail(struct job *job, const struct error *error);
void peer_send_leave(struct job *job);
void peer_send_fetch(struct job *job, uint16_t holder, uint64_t number, uint32_t bucket, bool op);

/* step.c */
void step_open(struct job *job, bool recover); /* recover: the store may know more of the step */
void step_check(struct job *job);
struct round *step_round(struct job *job, uint32_t tensor); /* the round it travels in now */
void step_start(struct job *job);                           /* tries all rounds */
bool step_round_active(const struct job *job, const struct round *round);
uint64_t step_number(const struct job *job);
bool step_begun(const struct job *job); /* some local rank began it, so that it must be ended */

/* round.c */
enum adtopk_status round_init(struct round *round, struct job *job, uint32_t bucket,
    const uint32_t *tensor, unsigned tensors);
void round_free(struct round *round);
void round_open(struct round *round);
void round_recover(struct round *round); /* opens it as the store says; nothing may be computing */
void round_push(struct round *round, unsigned rank); /* the rank-th local rank pushed */
void round_try(struct round *round);
int round_late_node(const struct round *round); /* whose frame it waits for; -1: nobody's */
bool round_relays(const struct round *round);   /* ... which may wait for others itself */
void round_advance(struct round *round);        /* if all frames of the phase are there */
void round_freeze(struct round *round);
void round_fetch(struct round *round, uint16_t holder);
void round_split(struct round *round, uint64_t step);
void round_close(struct round *round);
void round_copy(struct round *round, const struct buffer *frame);
void round_send_copy(const struct round *round, uint16_t node, uint64_t number);
uint64_t round_number(const struct round *round);
bool round_delivered(const struct round *round); /* what the store says of the open step */

/* round_exchange.c */
enum adtopk_status round_begin_exchange(struct round *round); /* in the view in force */
void round_drop_exchange(struct round *round);                /* and all its frames */
void round_drop_inputs(struct round *round, unsigned phase);  /* only the frames of a phase */
enum adtopk_status round_send_frames(struct round *round);    /* those that left a compute */

/* frame.c */
void frame_receive(struct job *job, uint16_t node, struct buffer *frame);
void frame_take_parked(struct round *round);
/* Drops what was parked for views before `view` and for numbers before `number`. */
void frame_drop_parked(struct round *round, uint32_t view, uint64_t number);
void frame_release_early(struct job *job); /* gives job->early to the rounds */
void frame_drop_early(struct job *job);

/* work.c: what runs on worker threads */
void work_select(struct compute *compute);
void work_combine(struct compute *compute);
void work_reduce(struct compute *compute);
void work_settle(struct compute *compute);
void work_switch(struct compute *compute);
void work_verify(struct compute *compute);
/* For the loops of a compute. */
struct parallel work_parallel(const struct work *work);
/* What the settling of a tensor needs: what it sent, selected again or read from what is kept. */
enum adtopk_status work_sent(struct work *work, uint32_t tensor);

/* settle.c */
enum adtopk_status settle_tensor(struct work *work, uint32_t tensor);
/* The ranks' residuals of the tensor become the node's. */
enum adtopk_status settle_join(struct work *work, uint32_t tensor);

/* copy.c */
struct buffer *copy_encode(const struct round *round, uint64_t number);
enum adtopk_status copy_decode(struct round *round, const struct buffer *frame, struct error *err);

#endif
