/*
 * The structures of the core, for the files of this folder, of daemon/compute and of daemon/core.
 *
 * A core has jobs. A job has local ranks, members (the nodes that have ranks of it), tensors, and
 * one round per bucket. Ownership goes down this list; pointers up are borrowed.
 */
#ifndef ADTOPK_JOB_MODEL_H
#define ADTOPK_JOB_MODEL_H

#include "daemon/engine/engine.h"
#include "daemon/job/config.h"
#include "daemon/job/id_table.h"
#include "daemon/job/images.h"
#include "daemon/job/info.h"
#include "daemon/job/membership.h"
#include "daemon/job/places.h"
#include "daemon/job/rank.h"
#include "daemon/job/recorder.h"
#include "daemon/job/states.h"
#include "daemon/job/store.h"
#include "daemon/job/views.h"
#include "daemon/policy/choices.h"
#include "daemon/policy/policy.h"
#include "kernels/kernels.h"
#include "proto/local.h"

struct estimates;
struct job;
struct measure;
struct round;

/* The kinds of payload frames between nodes. */
enum frame_kind { FRAME_STEP = 0, FRAME_OP = 1, FRAME_STEP_COPY = 2, FRAME_OP_COPY = 3 };

/* A member's answer to the present proposal, for the coordinator. */
struct answer {
    bool answered;
    bool fresh; /* its store is new */
    uint64_t steps_done;
    uint64_t ops_done;
    uint32_t *delivered; /* delivered rounds of its open step */
    uint32_t delivered_count;
    struct store_policy *newer; /* a policy newer than this node's, or NULL */
    uint32_t holds;             /* the policy version for which it holds; 0: none */
    uint32_t batches;           /* batches of tensors that are in force there */
    uint8_t *newcomer;          /* what nodes that join must know, a packed PeerNewcomer; or NULL */
    size_t newcomer_size;
    uint64_t checkpoint; /* as in a PeerState, like the next two */
    bool wants_checkpoint;
    bool kept;
};

/* Whether a job can go on with a node: compute/shrink.c. */
struct member_loss {
    uint64_t since_us; /* since when it does not answer, or has not joined again; 0: it is there */
    bool keeps;        /* its store outlives its daemon */
    bool trains;       /* its join was of a run that takes newcomers */
    bool gone;         /* it cannot come back with what it had */
    bool dropped;      /* the next view is to begin without it */
};

/* A node that was lost: job/absent.h. */
struct absent {
    struct absent *next;
    uint16_t node;
    bool spoiled;    /* a step in which it took part last was withdrawn, which it may not know */
    uint64_t step;   /* that was open when the job went on without it */
    uint32_t policy; /* version of the policy in force then */
    uint32_t count;  /* rounds of that step that are complete */
    uint32_t delivered[];
};

/* This node was lost, and joins its run again: compute/comeback.c. */
struct comeback {
    uint64_t run;        /* that it returns to; 0: none, or nothing is known of it */
    uint64_t step;       /* as in a PeerAbsent */
    uint32_t policy;     /* as in a PeerAbsent */
    uint32_t *delivered; /* as in a PeerAbsent */
    size_t count;
    bool settled; /* everything that others applied has left the residuals */
    bool kept;    /* it has the residuals from before */
};

/* How much has come from a member, by which core/overdue.h sees whether it moves. */
struct member_bytes {
    uint64_t frames; /* bytes of all its frames that have come whole */
    uint64_t moved;  /* overdue_moved() at the last look */
};

/* What moves values beside frames on a node. */
struct member_carrier {
    uint32_t version; /* 0: it has no carrier */
    uint32_t devices; /* GPUs on which it has the job's tensors */
};

/* A node that has ranks of the job. */
struct member {
    uint16_t node;
    uint64_t incarnation; /* of the daemon that sent the join; 0: it has restarted since */
    uint64_t job;         /* the number of the job on that node */
    uint64_t run;         /* the run that the node knows; 0: none */
    uint64_t policy_hash;
    uint32_t exchanges; /* EXCHANGE_VERSION of its daemon */
    struct member_carrier carrier;
    uint32_t world_size;
    uint32_t view;
    uint32_t ranks;
    uint32_t *rank;
    uint32_t tensors;
    uint64_t *tensor; /* hashes */
    uint32_t batches; /* batches that all its ranks have mapped */
    bool anew;        /* its join is newer than the view in force */
    bool left;        /* all its ranks have left */
    uint64_t left_step;
    struct answer answer;
    uint32_t *copied; /* per round, then the operations: the view in which it got a copy */
    bool holds;       /* at the step of the policy switch under way */
    struct estimates *estimates; /* the last ones that it sent, for core/replan.c; NULL: none */
    uint64_t estimated_step;     /* steps that were done when it sent them */
    uint32_t policy;             /* the policy version in force there, as far as this node knows */
    unsigned early;              /* its frames that wait in job->early.frames */
    struct waiting told;         /* the reason for waiting that it reported last */
    uint64_t told_us;            /* when it reported that */
    uint64_t excused_us;         /* until then it had a reason to be late; see core/overdue.h */
    struct member_bytes bytes;
    struct member_loss loss;
    struct member_residual residual;
};

struct tensor {
    struct tensor_spec spec;
    uint64_t numel;
    uint64_t hash, seed; /* of the description; of random choices, whatever the forms of updates */
    struct verified verified;
    struct verified found; /* the sums of a verification that may still run */
    struct residual_read read;
    struct tensor_bytes bytes;
    struct tensor_layout layout;
    uint64_t list_capacity;      /* most entries of an update as a list; a longer one comes dense */
    struct store_tensor *store;  /* a compute of its round may be writing it */
    struct store_tensor at_rest; /* the record when the open step began */
    float *slot;                 /* progress and states of the node's residual */
    uint64_t rank_slots;         /* floats of a rank's slots that come before this one */
    enum engine_owner residual_owner; /* of its residuals, and of the selections from them */
    enum engine_owner update_owner;
    float lookahead; /* the share by which the last rank that pushed it looked ahead */
    bool measured;   /* the magnitude of its residual was read: job/declare.h */
    double magnitude;
};

/* A plan's records of a residual, in the store. */
struct selection {
    struct store_selection *header;
    struct sparse list; /* positions, and the residual's values there */
    float *momentum;    /* the velocity, in a part of its own; NULL: no momentum correction */
};

/* The rests of rounded values that come back to this node, in the store. */
struct rest_list {
    struct store_rest_list *header; /* NULL: nothing */
    struct sparse list;
    float *before; /* the values there of the node's residual (by_rank: of the first) */
};

/* The plan for one tensor. */
struct plan_tensor {
    struct tensor_policy policy; /* with the plan's choices */
    enum choice choice;
    uint32_t allowed;      /* choices that it may have, a bit 1 << choice each */
    uint64_t sparse_count; /* `count` if it is sent sparse; 0: it never is */
    bool dense;            /* it is sent dense */
    bool by_rank;          /* every local rank has a residual of its own */
    bool known;   /* all nodes know the positions, so the values are sent as a dense vector */
    bool rounded; /* the residual is in bf16 */
    bool narrow;  /* ranks see its update in 16 bits */
    /* The node's residual, which is also the first local rank's: see layout_residual(). */
    void *residual;
    uint32_t bucket; /* its round, while that bucket is not split */
    uint64_t count;  /* sparse: most entries per turn and residual */
    /* Each residual's selection in this step, in the store, and the sum that this node sends of
     * them, with the values that others will decode. Valid if sent_step is the open step + 1. */
    struct selection *selection; /* one per residual */
    uint64_t sent_step;
    struct sparse sent;
    struct rest_list sum_rests; /* of the sums that this node rounded */
    struct rest_list
        update_rests; /* narrow: rests of those sums, and of the update; see compute/rests.h */
    /* While the tensor is settled: one bit per entry of `sent` and of the rests, set if the entry
     * is in the sum. NULL: all are. */
    uint8_t *accepted, *rests_accepted;
    uint64_t rest_place,
        rest_room; /* dense: the place of its rests in plan->rest, and their number */
    struct exchange_memory memory;
    uint32_t *positions; /* sent.position, if it is not that of selection[0] */
    float *values;       /* sent.value, if it is not that of selection[0] */
    float *known_sum;    /* known: the sum of all nodes' values */
    uint64_t fibres;     /* most fibres of a turn that selects from each fibre */
    uint64_t summed;     /* entries of the last update, if it is sparse */
    /* Guesses with which the selection begins: per residual one for the tensor, then one per fibre.
     */
    float *hints;
};

struct work_kind;

/* Work on a thread, and the use of its result. */
struct work {
    struct compute compute; /* first, because the driver hands this back */
    struct job *job;
    struct round *round; /* NULL: the work is for the whole job */
    void (*done)(struct work *work);
    enum adtopk_status status;
    struct error error;
    /* Work in stages (compute/work.h); kind NULL: it has none. */
    const struct work_kind *kind;
    struct engine_batch batch[2]; /* in turn: of the stage that ran last, and of the one before */
    unsigned filling;             /* the batch of the stage that ran last */
    unsigned read_from, read; /* the results in the other batch that belong to the stage's tensor */
    unsigned at;              /* the next stage */
    uint32_t first, end;      /* the window: tensors that go through the stages together */
    bool ordered;             /* a far engine must have the batch before the stage runs */
    uint64_t spent_us;        /* by the stages and a far engine so far */
    bool spent_unknown;       /* some of them have not told */
    uint64_t submitted_us;    /* since when the engine has had the batch; 0: it has none */
    uint64_t excused_us; /* until then a carrier's operation was before it (compute/launch.h) */
    uint32_t losses;     /* residuals that it has declared as lost */
    bool asks_all;  /* all tensors for their sums, because the job has lost some since `heard` */
    uint64_t heard; /* the job's losses when it closed a step last */
    double lost[2]; /* the ledger's sums of these */
    uint32_t measure, measure_end;   /* it reads these tensors' residuals: job/declare.h */
    struct member_residual residual; /* of a closed step: what the ledger says of all residuals */
};

/* The meaning of a policy for the job's tensors. A job has one plan in force. While it switches to
 * another policy (core/agree/switch.c) it also has the next. */
struct plan {
    struct work work; /* makes it, or frees its content, on a worker */
    bool busy;        /* a worker has the plan */
    void (*then)(struct job *job, struct plan *plan); /* called when it is made, or cannot be */
    struct error fault;                               /* why it cannot be made; OK: it is made */
    struct plan *discarded;                           /* the next discarded plan */
    bool unwanted;                                    /* it is discarded */
    struct policy policy;
    bool unreserved;             /* its updates may find no memory */
    struct policy_change change; /* its origin; version 0: the ranks brought it */
    char text[POLICY_TEXT_SIZE]; /* canonical */
    /* The fields from here on are empty until the local ranks are known. */
    struct plan_tensor *tensor;
    uint32_t tensors;
    uint32_t matching;       /* rules that match some tensor, a bit each */
    unsigned ranks;          /* number of local ranks */
    unsigned nodes;          /* number of nodes for which it is laid out */
    uint64_t store_bytes;    /* size of its part of the job's store */
    uint8_t *store;          /* that part */
    unsigned store_part;     /* number of that part */
    uint64_t velocity_bytes; /* size of the part with its velocities */
    unsigned velocity_part;  /* number of that part */
    struct moving moving;    /* of the next plan: where its residuals move to */
    int16_t *rest;           /* in that part: rests of dense sums; NULL: none are rounded */
    uint64_t rests;          /* how many rests have room */
    uint32_t residuals;      /* which of the store's two parts holds the residuals */
    uint64_t bucket_bytes;
    uint64_t sparse_elements; /* of tensors that are not sent dense */
    uint32_t buckets;
    bool split;      /* some bucket is, or was, split: its tensors are sent alone */
    uint32_t rounds; /* buckets, then one for every tensor alone */
    struct round *round;
};

/* A request whose outcome a client awaits. */
struct ticket {
    uint64_t number;
    struct failure *failure; /* room for the reason of a failure */
    struct ticket *next;     /* another one for the same outcome */
};

/* The reason why a job has failed, which its actions outlive. It is made with the job, so that
 * failing needs no memory. */
struct failure {
    unsigned references;
    struct error error;
};

/* The measured times of a round so far; measure.c. */
struct round_times {
    uint64_t compute_us;     /* its computes after the first */
    uint64_t link_us;        /* of its exchange, without the link's time for others */
    uint64_t sent, received; /* bytes of frames */
    uint64_t awaited;        /* bytes of frames for which it waited */
    bool unknown;            /* the driver did not tell the time of some compute */
};

/* The operation of a round that a carrier makes: compute/launch.c. */
struct launch {
    struct round *next; /* the next one in core->launches */
    uint64_t number;    /* its number, on which all nodes agree; 0: not yet */
    bool waits;         /* it is in that list */
    bool started;
    bool done, failed; /* the carrier has brought it back */
    bool follows;      /* it has failed because an earlier one has */
    uint64_t ends_us;  /* it has failed: when the job ends because of that */
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
    uint64_t split_step; /* from this step on its tensors are sent alone; UINT64_MAX: never */
    unsigned tensors;
    uint32_t *tensor; /* numbers */
    uint64_t place;   /* its place in the job's order, lowest first; see share.h */
    uint32_t *pushes; /* per local rank: its pushes in the open step; only kept for buckets */
    struct exchange exchange;
    struct exchange_op exchange_op;
    struct launch launch;
    unsigned phase;
    unsigned phases;
    struct buffer **received; /* [phase * members + member] */
    struct parked *parked;
    uint32_t view;     /* the view in which the exchange began */
    uint64_t since_us; /* when the current state began */
    struct round_times times;
};

/* A node asks for a copy that this one cannot give before it has the commit. */
struct fetch {
    struct fetch *next;
    uint32_t view; /* the view in which it asks */
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

/* A slot of the table of names. It keeps the name's hash, so that the table can grow without
 * reading names. */
struct name_slot {
    uint32_t hash;
    uint32_t tensor; /* number + 1; 0: the slot is empty */
};

/* The groups in which a carrier makes the job's operations: compute/launch.c. */
struct carrying {
    uint64_t seen;   /* the highest number of a group that this node knows */
    uint64_t broken; /* the highest number of one that is of no use any more */
    uint32_t since;  /* groups that were told before this view are of no use */
    bool left_out;   /* the node has left out an operation that others may have started */
    uint64_t made;   /* the one that the carrier has, or is about to make; 0: none */
    /* On the leader: the group that it tells the others, and the name for the next one. */
    struct cargo_group group;
    uint32_t told;       /* the view in which it did so first */
    struct cargo *asked; /* the carrier makes a name; NULL: it does not */
    bool named;
    uint8_t name[CARGO_DEVICES][CARGO_NAME_SIZE];
};

/* Values that all nodes of a run share. */
struct run {
    uint64_t id;              /* agreed on by the first commit; 0: none yet */
    uint64_t seed;            /* seed of random choices; the same in every run of the key */
    uint32_t world_size;      /* ranks with which the run began */
    uint32_t ranks;           /* that take part in the next step; before the first view, all */
    uint32_t root;            /* the lowest of them that took part in the step before */
    struct carrying carrying; /* this node's part in the groups of a carrier */
};

/* A node's state of registering tensors: register.c. Tensors become the job's at once until the
 * store is open. Then those of batches that are not in force are parted from them, and become the
 * job's when their batch is put in force (core/agree/batch.c). */
struct registering {
    /* Batches that a rank committed, whose tensors are final, and how many tensors there are up to
     * the end of each. */
    unsigned fixed;
    uint32_t end[CORE_MAX_BATCHES];
    bool parted;          /* the job's tensors are known; others are in `next` */
    struct tensor *next;  /* the tensors of the next batch */
    uint32_t nexts, room; /* their number; room for how many, until then in the job's */
    uint32_t moving;      /* how many of them lie behind the job's while their plan is being made */
    uint64_t since_us;    /* when some rank, here or elsewhere, committed the batch; 0: none has */
    uint32_t capacity;    /* room for tensors; a power of two, or 0 */
    struct name_slot *slot; /* a hash table by name, of 2 * capacity slots */
};

/* The checkpoint that an operator asks for: job/due.c. */
struct due {
    uint64_t step;          /* the ranks save it after so many steps; 0: none is known */
    struct ticket *tickets; /* of those who wait until the ranks of this node hear of it */
    bool asked;             /* a node asks this one, as coordinator, for a view that says when */
};

/* The agreement of the nodes that is under way: core/agree/view.c and coordinate.c. */
struct agreement {
    uint64_t run;      /* the number that is proposed for the run; 0: none yet */
    uint32_t promised; /* the highest view number promised */
    uint32_t proposed; /* as coordinator: the proposal that awaits answers; 0: none */
    bool owes_state;   /* it has yet to answer a prepare: see can_answer() of core/agree/view.c */
    uint64_t newcomers_us;     /* when one joined last; 0: none did in the view in force */
    bool newcomers_taken;      /* they were there long enough: the next view is to have them */
    struct membership members; /* of the view that is prepared; empty once it is in force */
    struct views *views;       /* in the store, once that is open; before, in memory of its own */
    struct absent *absent;     /* nodes that were lost */
    struct comeback comeback;
    struct due due;
    bool awaits_all; /* until the store is open: its policy is to go on with all nodes only */
};

/* Messages that came before this node could take them. */
struct early {
    struct parked *frames; /* of a view that is not in force here yet */
    struct split *splits;  /* of a policy that is not in force here yet */
    struct fetch *fetches; /* from members that had the commit before this node */
};

/* The change of the policy that is under way: core/agree/switch.c and switch_ask.c. */
struct switching {
    struct machine machine;
    struct plan *next;    /* the proposed plan, for which this node holds at its step; NULL: none */
    struct ticket *asked; /* this node asked for a change */
    struct postponed *postponed; /* as coordinator: a request that waits for the last change */
    unsigned late;               /* proposals of this change that were too late for some node */
    uint16_t asker;              /* the node that asked for the change */
    uint32_t attempts;           /* proposals that this coordinator has made */
    uint32_t attempt;            /* number of the present proposal; 0: none */
    uint32_t accepted;           /* the number that the coordinator gave to `next` */
};

/* The policies so far. */
struct history {
    uint64_t brought;                        /* hash of the policy that the ranks brought */
    struct plan *discarded;                  /* plans that a worker still frees or makes */
    struct policy_past past[POLICY_CHANGES]; /* version v is at (v - 1) % POLICY_CHANGES */
};

/* The work outside the rounds that has all residuals: a comparison of the ledgers (core/verify.c),
 * a checkpoint, a rank that reads, images that outlive the daemon, or what a restart settles. */
struct lending {
    struct ticket *ticket; /* the request for a comparison; NULL: none */
    bool running;          /* they are lent: meanwhile no residual may change */
    struct work work;
    struct keeping keeping;
    struct leaving leaving;
};

/* Tensors that were committed together, and the arenas that only they use. */
struct batch {
    uint32_t first, end; /* numbers */
    uint8_t *results;
    uint8_t *more; /* STORE_RANKS; NULL: no tensor has a residual per rank */
    bool shown;    /* ranks may map its residuals: one of its tensors asks for that */
};

/* The places of all memory of the job: compute/layout.c. */
struct layout {
    struct store_header *found; /* the store as it is mapped; job->store when it is open */
    bool fresh;                 /* the store is new */
    struct batch batch[CORE_MAX_BATCHES];
    unsigned batches;        /* how many are laid out */
    unsigned reserved_nodes; /* of a first view, for which the results are reserved */
    bool table_begun;        /* the table of the updates' places is written, or about to be */
    unsigned reserving;      /* reservations that have not ended */
    unsigned stale; /* those of them that a later results_reserve() made useless: the first ones */
    /* Called after the last of them. */
    void (*reserved)(struct job *job, const struct error *error);
    struct error unreserved; /* the first error of a reservation; code OK: none */
    uint64_t op_result_offset;
    struct journal *journal;     /* one per thread of config.threads */
    struct engine_memory arenas; /* all these arenas, for the engine */
};

/* The open step: core/step.c. */
struct step {
    struct machine machine;
    struct work settle;
    uint32_t undelivered; /* rounds that are not delivered */
    uint64_t since_us;    /* its first push; 0: none yet */
    uint64_t took_us[2];  /* how long the last two steps took from their first push */
    float loss_scale;     /* of the local ranks' pushes; 0: none yet */
    uint32_t loss_rank;   /* the rank that pushed first */
    uint64_t settle_since_us;
};

/* The plain operations. */
struct operations {
    struct round round;
    uint64_t since_us; /* the first call of the next operation; 0: none yet */
};

/* The end of the job: core/job.c and job_fail.c. */
struct ending {
    struct failure *failure;
    uint64_t last_steps; /* the job fails when every node has done this many steps; 0: at once */
    uint64_t too_long;   /* bytes of a frame that is too long for links; 0: none */
    uint64_t control_too_long; /* the same of a control message */
    bool out_of_memory;  /* a message could not be sent: the job fails when the event is over */
    bool aborted;        /* the job has ended, and so have its operations of a carrier */
    bool dropped;        /* the job has ended, and its frames were removed from the links */
    bool untold;         /* the job has failed, and the peers could not be told yet */
    bool alone;          /* it fails for a reason of this node: the others may go on without it */
    bool over;           /* other nodes say that the run is over, or goes on without this node */
    uint64_t doubt_us;   /* when it fails, unless others say that they train; 0: not in doubt */
    struct error doubt;  /* what it says then */
    uint64_t leaving_us; /* when the first rank, here or elsewhere, left; 0: none has */
    uint64_t left_since_us; /* when the last local rank left; 0: some are there */
    uint32_t left_view;     /* the view, or proposal, in which the others were told; 0: none */
};

/* How long the job has waited, and what other members say: core/waiting.c and job_wait.c. */
struct waits {
    uint64_t forming_since_us;
    uint64_t lost_since_us;  /* since when a peer of the view is down; 0: none is */
    uint64_t moved_us;       /* the last event that brought the job forward */
    uint64_t looked_us;      /* the last time that the reason for waiting was examined */
    uint64_t heard_us;       /* another member's last report about its waiting; 0: none lately */
    uint64_t stuck_since_us; /* since when the job is stuck, as the log says; 0: it is not */
    bool told;               /* the other members know that this node waits */
};

/* The work that an event leaves for core/advance.c. */
struct advance {
    struct job *next; /* the next job in core->touched */
    bool touched;     /* the job is in core->touched */
    bool all_hold;    /* every member holds for the next policy, so a view is to put it in force */
    bool regroup;     /* there may be reason for a view with other nodes or another tie-breaker */
    bool opened;      /* the step has opened, and work that waited for it has yet to go on */
    bool frozen;      /* the daemon leaves: the job begins nothing more (compute/leaving.h) */
    unsigned computing; /* computes and reservations under way */
};

/* A client has asked for the records of all members: job/recording.c. */
struct recording {
    struct ticket *ticket;    /* NULL: none has */
    struct recorded *records; /* the answers so far */
    uint64_t due_us;          /* then those that are missing are given up */
    uint64_t last_us;         /* the latest that this may be */
    uint32_t number;          /* of the last trace */
    uint32_t room;            /* for records of each node */
    unsigned awaited;         /* nodes that have not sent all of theirs */
};

/* Clients have asked for the ranks of all nodes: job/roster.c. */
struct roster {
    struct ticket *tickets;  /* of those who wait; NULL: nobody does */
    struct node_ranks *node; /* the other nodes, and their answers to the last question */
    unsigned nodes;
    unsigned awaited; /* nodes that have not answered */
    uint64_t due_us;  /* then those are given up */
    uint32_t number;  /* of the last question */
};

/* The job's measurements, and the planner's state. */
struct figures {
    struct job_info counters; /* only the counting fields */
    struct residual_info residual;
    struct measure *measure;   /* NULL: nothing is "auto", or memory was short */
    struct planning *planning; /* as coordinator; NULL: no decision yet */
    struct recorder recorder;
    struct recording recording;
    struct roster roster;
    uint64_t told_us; /* when it told the others the sums of its residuals; 0: not in this view */
    bool tells;       /* it does so when the open step is closed */
    uint32_t measure_next; /* the tensor whose residual is read next; all: the first */
    uint64_t measured_us, measured_bytes; /* time and size of the last reading; 0: none */
};

struct job {
    struct core *core;
    struct places places;
    struct job_key key;
    uint64_t number; /* number on this node: a job that is opened later has a higher one */
    struct run run;
    struct machine machine;
    struct rank **rank; /* local ranks, in ascending order */
    unsigned ranks;
    struct tensor *tensor;
    uint32_t tensors; /* tensors in force; before the first view, the registered ones */
    unsigned batches; /* batches of them in force; 0: the store is not open yet */
    struct registering registering;
    struct member **member; /* known nodes, in ascending order, with this one */
    unsigned members;
    uint32_t view;              /* the view in force; 0: none yet */
    struct membership in_force; /* members of that view; empty before the first */
    struct agreement agreement;
    struct early early;
    struct plan *plan; /* the plan in force */
    struct switching switching;
    struct history history;
    struct store_header *store;
    struct layout layout;
    struct step step;
    struct operations op;
    struct lending lending;
    struct ending ending;
    struct waits waits;
    struct advance advance;
    struct figures figures;
};

struct peer {
    uint16_t node;
    bool up;
    uint64_t incarnation; /* the last one that this node heard of; 0: none */
};

/* The latest job of another node that took part in a job with this key which ended here. */
struct former {
    uint64_t key; /* job.seed */
    uint64_t incarnation;
    uint64_t number;
    /* The latest whose end this node reported to the other one, or heard from it. */
    uint64_t failed;
    uint64_t left_out; /* the latest without which this node's part went on */
    uint16_t node;
};

#define FORMER_JOBS 1024u

#define OVER_RUNS 16u

/* Rings of what ended on this node: former.c. */
struct formers {
    struct former job[FORMER_JOBS];
    uint64_t jobs; /* how many were put into it so far */
    uint64_t run[OVER_RUNS];
    char why[OVER_RUNS][136]; /* it ended: ": " and a sentence */
    uint64_t runs;
};

/* The operations of a carrier, of all jobs. */
struct launches {
    struct round *waiting; /* rounds that wait for their turn */
    struct cargo *cargos;  /* operations that the carrier has */
    uint64_t clock;        /* the highest number that this node has seen */
};

/* What belongs to the action that was taken last. */
struct taken {
    struct failure *told;
    struct recorded *given;
};

enum core_stop {
    CORE_GOES_ON,
    CORE_STOPS, /* no job begins; jobs end at their next step boundary */
    CORE_LEAVES /* as CORE_STOPS, except jobs that the next daemon of this node can go on with */
};

struct core {
    struct core_config config;
    struct machine_trace trace;
    struct links *links;
    struct peer *peer;
    unsigned peers;
    struct job *jobs;
    struct job *touched; /* jobs that the event has changed; core/advance.c */
    struct job **job_at; /* all jobs by index */
    uint32_t job_count;
    struct job *index[JOB_INDEXES][JOB_BUCKETS]; /* all jobs, see job_index.c */
    struct id_table ranks;                       /* by session, of all jobs */
    bool starved;                                /* some job could not send a message */
    unsigned ended;                              /* jobs that have ended and are not freed yet */
    bool due_known;                              /* no event has come since `due_us` was found */
    uint64_t due_us;                             /* the first deadline of a job */
    struct policy policy;
    uint64_t now_us;
    uint64_t stuck_us;
    uint64_t bad_messages;  /* from peers: malformed, foreign, or of a step that is over */
    uint64_t late_messages; /* from peers: of a run or a job that is over */
    uint64_t opened_jobs;
    struct formers formers;
    struct action *queue; /* ring of `queue_size` slots */
    unsigned queue_size, queue_head, queue_count;
    struct taken taken;
    struct launches launches;
    enum core_stop stopping;
};

static inline bool job_ended(const struct job *job)
{
    return job->machine.state == JOB_ENDED;
}

#endif
