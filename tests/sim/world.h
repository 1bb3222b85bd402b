/*
 * The simulator: nodes with the real core, joined by a virtual network, clock and memory, and
 * driven by scripted trainers. Everything is a function of the scenario and its seed.
 *
 * world.c moves time and makes faults; network.c carries packets; node.c gives each core its
 * memory; trainer.c plays the ranks. check.c holds the invariants and checks them after every
 * single event.
 */
#ifndef ADTOPK_SIM_WORLD_H
#define ADTOPK_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "daemon/job/store.h"
#include "tests/sim/carrier.h"

#define SIM_MAX_NODES 64
#define SIM_MAX_RANKS 256
#define SIM_MAX_TENSORS 12
#define SIM_MAX_JOBS 16
#define SIM_MAX_TICKETS 64
#define SIM_TEXT 256
#define SCENARIO_TEXT 1024
#define SIM_SEGMENTS 200u /* dense segments have up to as many elements */
#define SIM_MAX_BODY (1u << 20)

enum node_memory {
    MEMORY_ALL = 0,
    MEMORY_NO_GRADIENTS,
    MEMORY_NO_STORE,
    MEMORY_NO_RESULTS,
    MEMORY_NO_UPDATES /* the results are there, but nothing can be reserved */
};

struct scenario {
    uint64_t seed;
    unsigned nodes;
    unsigned ranks_per_node;
    bool uneven;   /* nodes have 1 to ranks_per_node ranks, in a pattern */
    unsigned jobs; /* that run beside each other, with as many ranks each; 0 counts as 1 */
    bool mixed;    /* jobs have tensors and policies of their own */
    unsigned steps;
    unsigned tensors;           /* bit t: the t-th of the simulator's tensors; 0: the first five */
    unsigned operations;        /* plain operations each rank calls before the first step */
    bool calls;                 /* each rank calls one at the beginning of every step, too */
    const char *default_policy; /* of the daemons, which `policy` completes; NULL: `policy` is it */
    bool loses; /* nodes may be left out: job 0 has one history, and ranks may fail */
    bool sums;  /* they only call sums, because any root may be lost */
    bool grows; /* ranks whose node was left out come back while the others train */
    const char *policy;
    double scale;                                          /* of gradients, a power of two; 0: 1 */
    enum { SCALES_NONE, SCALES_EXACT, SCALES_ANY } scales; /* loss scales, another in each step */
    unsigned forms; /* in which ranks see updates; 0: the seed chooses them, tensor by tensor */
    unsigned half;  /* tensors with gradients and updates in 16 bits: a bit each */
    bool changed;   /* policies change gradients before they are added, or round the rest of sums:
                     * sums only agree to rounding */
    double loss, duplicate;  /* of packets */
    double refuse;           /* of transmissions: the transport is full */
    uint64_t rate;           /* bytes per ms of each direction between two nodes; 0: no limit */
    uint64_t delay_us;       /* packets take 10 us to this, independently: they reorder */
    uint64_t compute_us;     /* a compute takes 1 us to this; 0: 300 */
    uint64_t crash_every_us; /* mean time between crashes of some node; 0: none */
    unsigned max_crashes;
    uint64_t away_us;         /* a crash, cut or pause lasts up to this; 0: 30 ms */
    uint64_t pause_every_us;  /* mean time between pauses of some node; 0: none */
    uint64_t slow_us;         /* a store or an arena takes up to this to reserve */
    enum node_memory refuses; /* some node has no such memory for job 0 */
    uint64_t cut_every_us;    /* mean time between partitions of one node; 0: none */
    uint64_t storm_every_us; /* mean time from a storm to the next, the first is at once; 0: none */
    double storm_loss;       /* of packets of both lanes, while a storm lasts, up to 3 s */
    uint64_t operator_every_us; /* mean time between requests of an operator; 0: none */
    double nonfinite;           /* chance that a pushed gradient holds NaN or Inf */
    double skip;                /* chance that a rank does not push a tensor */
    bool later;                 /* half of the tensors are registered while training runs */
    double idle;                /* chance that no rank of a node does; half of it: of no node */
    double wait;                /* chance that a rank blocks on a tensor right after its push */
    double mutate;              /* chance that a packet from `hostile` is changed */
    unsigned hostile;           /* the node whose packets are changed */
    bool reseal;                /* changed packets get a right checksum again */
    uint64_t max_message;       /* bytes; 0: no limit that is reached */
    uint64_t max_control;       /* the same of control messages */
    bool whole;                 /* messages are not cut into several packets */
    uint64_t pace_us;           /* ranks begin a step up to this after the last one; 0: 100 us */
    uint64_t linger_us;         /* ranks leave up to this after their last step; 0: at once */
    double
        ends; /* chance, at each of its turns, that a rank's process ends; another one comes back */
    bool fleeting;   /* no store outlives its daemon; then none may die */
    bool forsakes;   /* daemons may die although some of their ranks have left a job that goes on */
    bool again;      /* every key is used again when its first job has ended */
    bool dies;       /* the first run ends by the death of a rank */
    uint64_t gap_us; /* and so long after */
    uint64_t max_us; /* virtual time after which something hangs */
};

/* Where a trainer stops for ever, without a word. */
enum trainer_hold {
    HOLD_NEVER,
    HOLD_OUT,
    HOLD_OPEN,
    HOLD_COMMITTED,
    HOLD_STEP /* in step hold_step, after hold_pushes pushes */
};

struct world;

/* One scripted rank. Its arena belongs to it, not to the daemon: it survives the daemon. */
struct trainer {
    struct world *world;
    unsigned node;
    uint32_t rank;
    session_id session; /* 0: not connected */
    enum {
        TRAINER_OUT,
        TRAINER_FORMING,
        TRAINER_RUNNING,
        TRAINER_LEAVING,
        TRAINER_DONE,
        TRAINER_FAILED
    } state;
    uint8_t *arena[CORE_MAX_BATCHES];
    uint64_t arena_size[CORE_MAX_BATCHES];
    unsigned batches; /* of tensors that are in force beside the first */
    bool committing;  /* it waits for another one */
    uint64_t step;
    unsigned next_push; /* position in this step's order */
    int blocked_on;     /* tensor it waits for, or -1 */
    bool ended;
    uint64_t run; /* in which it was ready last; 0: none yet */
    uint64_t operation;
    bool op_pending;
    uint64_t called;  /* step + 1 at whose beginning it called an operation last */
    uint64_t grown;   /* the step from which the ranks that joined last take part; 0: none joined */
    unsigned returns; /* how often it came back as a newcomer */
    bool newcomer;    /* it waits to be taken in */
    uint64_t since;   /* the step in which it began as a newcomer; 0: it never did */
    uint64_t absent_from, absent_to;     /* steps in which it took no part; equal: none */
    uint64_t delivered[SIM_MAX_TENSORS]; /* step + 1 */
    bool awake;                          /* an event is queued for it */
    bool lingered;
    struct error error;

    unsigned job;
    /* The description in its join; a test may change it before. */
    uint32_t says_rank, says_world_size, says_owner;
    const char *says_policy; /* NULL: the daemon's default */
    unsigned tensors;
    struct tensor_spec tensor[SIM_MAX_TENSORS];
    bool lost;            /* its process is gone */
    bool comes_back;      /* its process takes the place of one that ended, with the present step */
    uint64_t back;        /* step + 1 in which it came back last; 0: it never did */
    float other_scale;    /* its pushes have so many times the loss scale; 0: 1 */
    bool other_operation; /* it calls its plain operations with another size */
    enum { JOINED_OPEN, JOINED_COMMITTED, JOINED_MAPPED } joined; /* while FORMING */
    enum trainer_hold hold;
    uint64_t hold_step;
    unsigned hold_pushes;
};

/* The memory of one node for one job, whether its daemon runs or not. */
struct node_job {
    uint64_t *store[CORE_STORE_PARTS];
    uint64_t store_size[CORE_STORE_PARTS];
    uint64_t *far[CORE_STORE_PARTS];   /* a far engine's own */
    uint8_t *image[CORE_STORE_PARTS];  /* what a core has saved of that before it left */
    bool image_open[CORE_STORE_PARTS]; /* a core has it */
    uint8_t emptied[SIM_MAX_TENSORS];  /* bits: what a far engine has yet to tell, and to add */
    bool forgot;                       /* a far engine lost the content of its memory */
    bool failed;                       /* its part of the job failed */
    bool torn; /* the daemon died while the engine had orders: no ledger fits before a step ends */
    uint8_t *results[CORE_MAX_BATCHES];
    uint64_t results_size[CORE_MAX_BATCHES];
    bool results_old[CORE_MAX_BATCHES]; /* a core has mapped it before */
    uint64_t group;                     /* that the carrier has for it; 0: none */
    uint64_t number;                    /* that the core gave the job which uses it; 0: none does */
    bool store_old[CORE_STORE_PARTS];
    bool store_shown[CORE_STORE_PARTS];
    bool left;                          /* its part of the job ended, and its store stayed */
    double brought[SIM_MAX_TENSORS][2]; /* the ledger's input when it came back with that store */
    double fades[SIM_MAX_TENSORS][2];   /* what velocities of before still added in the last step */
    uint64_t fault_mark;                /* world.faults when its open step began */
    uint64_t step_mark;                 /* 1 + the last step that was checked */
    uint32_t policy_seen;               /* the newest version it had */
    bool in_host;                       /* its residuals were in host memory then */
    bool moved;    /* the daemon died while it made residuals of another plan of them */
    float *before; /* residuals when step_mark was set: of all slots, one after the other */
};

struct node {
    struct world *world;
    unsigned number;
    struct core *core;
    uint64_t incarnation;
    bool cut;              /* its packets are lost for now */
    uint64_t paused_until; /* it is stopped, and its events wait */
    uint64_t prepares;     /* proposals of views that it heard, or made */
    uint64_t timer_us;
    struct node_job memory[SIM_MAX_JOBS];
    enum node_memory refuses; /* to job 0 */
    unsigned reservations;    /* of results, that it made so far */
    unsigned computing;       /* computes that the core requested and that are not back */
    bool computed;            /* a compute has run since the node was checked */
    uint64_t bulk_packets;    /* that it sent */
    uint64_t bulk_last;       /* no more of them leave */
    bool quiet;               /* no control packets leave */
    char warning[SIM_TEXT];   /* the last one that its core logged */
    struct ghost *ghost;      /* plays this node instead of a core; see ghost.h */
    bool far;                 /* its engine is a far one; see far.h */
    struct far_batch *far_batches;
    unsigned far_ending; /* batches that are done, and the core was not told yet */
    bool leaves;       /* its daemon was told to stop: the core shows ledgers of the step before */
    uint64_t far_life; /* counts the engine's deaths */
    uint64_t far_draws;
    bool far_deaf;            /* it carries nothing out any more */
    bool far_forgets;         /* it may come back without the content of its memory */
    struct sim_cargo *cargos; /* operations of its carrier, in the order of their starts */
    uint64_t carrier_draws;
    unsigned carrier_members; /* of the group that its carrier made last */
    enum carrier_fault carrier_fault;
};

enum sim_event_type {
    SIM_PACKET,
    SIM_COMPUTE,
    SIM_RESERVED,
    SIM_ENGINE,  /* a far engine has carried a batch out */
    SIM_CARRIED, /* a carrier brings an operation back; failed: with an error */
    SIM_TIMER,
    SIM_TRAINER,
    SIM_ORDER, /* a far engine carries an order out */
    SIM_CRASH,
    SIM_RESTART,
    SIM_CUT,
    SIM_HEAL,
    SIM_PAUSE,
    SIM_STORM,
    SIM_CALM,
    SIM_OPERATOR
};

struct sim_event {
    uint64_t at_us, order;
    enum sim_event_type type;
    unsigned node;
    uint64_t incarnation; /* of the node when it was made; 0: any */
    uint16_t from;
    enum link_lane lane;
    uint8_t *bytes;
    size_t size;
    struct compute *compute;
    bool ran;
    uint64_t job; /* SIM_RESERVED: the job of the results */
    bool failed;  /* SIM_CARRIED; SIM_RESERVED: they cannot be reserved */
    struct trainer *trainer;
    struct engine_batch *batch;
    struct cargo *cargo;
    struct far_batch *far; /* SIM_ORDER: which order, in which life of the engine */
    unsigned at;
    uint64_t life;
};

#define MANY_NODES 16u

/* Summed over a run, and over runs. */
struct sim_stats {
    uint64_t runs, fleeting, events, packets, lost, duplicated, crashes, cuts, pauses, storms,
        deaths, moves;
    uint64_t rounds, faulted_rounds, steps, withdrawn;
    uint64_t carried; /* operations of carriers */
    uint64_t switched, called_off, verified, recorded, recorded_late, replanned;
    uint64_t due;        /* checkpoints for which operators asked, and ranks heard of */
    uint64_t listed;     /* ranks of other nodes that operators were told of */
    uint64_t selections; /* residuals compared with the largest entries */
    uint64_t unpushed;   /* updates of tensors that no rank pushed */
    uint64_t spoiled;    /* updates that are NaN, as the policy passes that on */
    uint64_t unmoved;    /* residuals compared with those before a step without their pushes */
    uint64_t left_out, taken_in;           /* ranks whose node the others lost, and took in again */
    uint64_t many_left_out, many_taken_in; /* those of jobs with more than MANY_NODES */
    uint64_t nodes;                        /* in the largest run */
    uint64_t virtual_us;
};

/* The traffic from one node to another. */
struct flow {
    unsigned cuts;                   /* while there are any, all is lost */
    uint64_t busy_until[LINK_LANES]; /* when the line has sent its packets */
    /* The connection, as the sender knows it. */
    uint64_t source, destination;
    uint64_t credit;           /* the bulk position up to which it may send */
    uint64_t next[LINK_LANES]; /* the position behind its last new part */
    /* All that was sent, over all connections. */
    uint64_t packets, parts[LINK_LANES], messages[LINK_LANES];
};

/* One job, and the checks' memory of it: per step the bits of its update, and the sum of all
 * updates. */
struct sim_job {
    struct job_key key;
    unsigned first, trainers;                                      /* in world.trainer */
    unsigned node_first[SIM_MAX_NODES], node_ranks[SIM_MAX_NODES]; /* the ranks of each node */
    unsigned tensors;
    struct tensor_spec tensor[SIM_MAX_TENSORS];
    uint64_t numel[SIM_MAX_TENSORS];
    uint64_t elements;
    unsigned first_batch; /* tensors of the first batch; the others are committed later */
    uint64_t later_step;  /* before this step; UINT64_MAX: all are in the first */
    unsigned after;       /* 1 + the job that had this key before; 0: none */
    uint64_t over_us;     /* when its last rank ended; 0: not yet */
    const char *brings;   /* the policy of its ranks */
    bool bent;     /* a policy that was in force makes something else of gradients than their sum */
    bool spoiled;  /* an accepted step had an update that is NaN */
    bool may_fail; /* the test checks the errors itself */
    bool forged;   /* a hostile node takes part: nodes need not agree */
    uint64_t astray; /* a bit per node: it may close a step that the others make without it */
    uint64_t *update_hash;
    uint32_t *policy; /* per step: 1 + the version in force; 0: not seen */
    uint8_t *due; /* per step: 1 + whether ranks heard before it that they save; 0: none heard */
    uint8_t *update_status; /* 0: not seen; 1 + status */
    uint64_t
        *outcome;    /* [nodes * (steps + 1)]: what each node saw, for a test to compare; or NULL */
    double *applied; /* [elements], sums over ranks of accepted updates */
    double *residual;          /* [nodes * elements], the residuals when a node's ranks left */
    struct sim_loaded *loaded; /* NULL: its ranks loaded no checkpoint */
};

/* What a checkpoint brought. */
struct sim_loaded {
    double input[SIM_MAX_NODES][SIM_MAX_TENSORS][2]; /* the ledger's */
    uint64_t turn[SIM_MAX_TENSORS];
    double *residual; /* [elements], of all nodes together */
};

/* The arena of a process that ended, which the core may still read. */
struct sim_orphan {
    session_id session; /* 0: it is free */
    uint8_t *arena;
};

/* A request of the operator that waits for its answer. */
struct sim_ticket {
    uint64_t number;
    unsigned node;
};

/* The answer to an operator. */
struct sim_answer {
    uint64_t ticket;
    struct error error; /* code OK: it was done */
};

#define SIM_ANSWERS 8u /* remembered */

struct world {
    struct scenario scenario;
    uint64_t random;
    uint64_t now_us;
    uint64_t order;
    uint64_t next_session;
    uint64_t next_incarnation;
    uint64_t next_name; /* of a group */
    struct node node[SIM_MAX_NODES];
    struct trainer trainer[SIM_MAX_RANKS];
    unsigned trainers;
    struct sim_orphan orphan[SIM_MAX_RANKS];
    struct flow *flow;  /* [nodes * nodes] */
    uint64_t heap_base; /* bytes that the program had when the world began */
    struct sim_event *heap;
    size_t heap_size, heap_capacity;
    uint64_t faults;
    unsigned storms; /* that last */
    struct sim_stats stats;

    bool flooded;  /* a test sends messages of its own through the cores */
    bool forsaken; /* a daemon died although some of its ranks had left */
    bool rounded;  /* some policy had, or may have had, residuals in bf16 */
    unsigned jobs;
    struct sim_job job[SIM_MAX_JOBS];
    struct sim_ticket ticket[SIM_MAX_TICKETS];
    unsigned tickets;
    uint64_t next_ticket;
    struct sim_answer answer[SIM_ANSWERS]; /* the n-th is at n % SIM_ANSWERS */
    uint64_t answers;

    bool violated;
    char violation[SIM_TEXT];
};

/** A world with all its daemons started and nothing done. A test may change trainers now. */
struct world *world_create(const struct scenario *scenario);
void world_destroy(struct world *world);

/** Runs until every trainer is done or failed, or an invariant is violated. True if nothing was
 * violated and only trainers failed whose job may; otherwise world->violation has the fault. */
bool world_run(struct world *world);

/** Runs until the condition holds; false, and a violation, if it never does. */
bool world_until(struct world *world, bool (*holds)(const struct world *world));

/** One event; false when none is left. */
bool world_turn(struct world *world);

void world_violate(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t world_random(struct world *world, uint64_t below);
bool world_chance(struct world *world, double chance);
void world_wake(struct world *world, struct trainer *trainer, uint64_t after_us);
void world_at(struct world *world, uint64_t after_us, struct sim_event event);

/* node.c */
void node_start(struct world *world, unsigned node);
void node_crash(struct world *world, unsigned node);
/** The node's memory of a job is gone: its machine was restarted. */
void node_forget(struct world *world, unsigned node, unsigned job);
/** Stops a node for so long. */
void node_pause(struct world *world, unsigned node, uint64_t for_us);
/** Hands one event to a node's core, carries out the core's actions, and checks. */
enum adtopk_status node_event(
    struct world *world, unsigned node, struct event *event, struct error *err);

/** Frees the arenas that processes of this session left behind; 0: of all. */
void node_free_orphans(struct world *world, session_id session);

/* network.c */
struct flow *flow_of(struct world *world, unsigned from, unsigned to);
/** Sends a packet into the network, with all that can happen to it there. */
bool node_transmit(void *node, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);

/* bounds.c: how much there may be of everything */
/** A packet that a node's core hands to the network. */
void bounds_sent(struct world *world, unsigned from, unsigned to, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size);
/** A packet that a node's core is about to get. */
void bounds_received(struct world *world, unsigned to, const uint8_t *packet, size_t size);
void bounds_moved(struct node *node, const struct machine_table *table, unsigned event);
void bounds_check(struct world *world, unsigned node);
uint64_t bounds_heap(void);

/* queue.c: the events to come, a heap by time, then by order of creation */
void queue_push(struct world *world, struct sim_event event);
struct sim_event queue_pop(struct world *world);
void *sim_must(void *pointer); /* aborts on NULL */
/* Zeroed memory. A failure that a test injects was meant for the core, so they ask again. */
void *sim_alloc(size_t size);

/* trainer.c */
void trainer_init(struct trainer *trainer, struct world *world);
void trainer_turn(struct trainer *trainer);
void trainer_action(struct trainer *trainer, const struct action *action);
void trainer_disconnected(struct trainer *trainer);
/** A lost or failed rank is started again, and knows nothing of the run. */
void trainer_come_back(struct trainer *trainer, uint64_t after_us);
/** The rank's process ends, and another one comes back in its place so long after. */
void trainer_end(struct trainer *trainer, uint64_t back_after_us);
/** Whether the rank takes part in the step. */
bool trainer_takes_part(const struct world *world, unsigned job, uint64_t step, uint32_t rank);
/** Sends one request, as a test likes; the trainer does not count it. */
enum adtopk_status trainer_request(struct trainer *trainer, struct event *event, struct error *err);
float trainer_gradient(const struct world *world, unsigned job, uint64_t step, uint32_t rank,
    unsigned tensor, uint64_t element);
/** Adds it to every element of a sum. */
void trainer_add_gradient(const struct world *world, unsigned job, uint64_t step, uint32_t rank,
    unsigned tensor, float *sum);
/** The loss scale of a step's pushes; 1 if no rank pushes anything. */
float trainer_scale(const struct world *world, unsigned job, uint64_t step);
bool trainer_pushes(
    const struct world *world, unsigned job, uint64_t step, uint32_t rank, unsigned tensor);
/** The tensors that are in force in this step. */
unsigned trainer_tensors(const struct world *world, unsigned job, uint64_t step);
/** Whether some rank of the node pushes the tensor; of any node. */
bool trainer_node_pushes(
    const struct world *world, unsigned job, uint64_t step, unsigned node, unsigned tensor);
bool trainer_any_pushes(const struct world *world, unsigned job, uint64_t step, unsigned tensor);
/** Whether some rank pushes the tensor with an element that is not finite. */
bool trainer_spoils(const struct world *world, unsigned job, uint64_t step, unsigned tensor);

/** A number that is drawn from the job's seed and these. */
uint64_t trainer_draw(
    const struct trainer *trainer, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

/* operation.c: plain operations */
/** Describes the rank's next operation, and writes what the rank brings. */
void operation_begin(const struct trainer *trainer, struct event *event);
/** Compares the result with what the ranks brought. */
void operation_check(const struct trainer *trainer);

/* selection.c: the values that left a node's residuals in a step are those that its sparsifier had
 * to select */
void selection_check(struct world *world, unsigned node, unsigned job, uint64_t step,
    enum adtopk_status status, bool follows);

/* check.c */
bool check_find(const struct world *world, unsigned node, unsigned job, struct job_info *info);
void check_node(struct world *world, unsigned node);
/** Whether two sums are equal; those of a scenario that is `changed`, to rounding. */
bool check_equal(const struct world *world, double a, double b);
void check_step(
    struct world *world, unsigned node, unsigned job, uint64_t step, enum adtopk_status status);
void check_residuals(struct world *world, unsigned node, unsigned job);
/** Nodes that saw a step of job 0, since they began, saw the same update. */
void history_check(struct world *world);

/** The node is lost for ever. A step that only lost nodes have closed will have another outcome.
 * lost: one bit for each of them. */
void check_forget_step(struct world *world, unsigned node, unsigned job, uint64_t lost);
void check_end(struct world *world, unsigned job);

/* operator.c: changes policies, verifies ledgers */
void operator_turn(struct world *world, unsigned node);
/** Asks a node for this policy on top of the one in force. Returns the ticket; 0, and err, if it is
 * refused. */
uint64_t operator_change(
    struct world *world, unsigned node, unsigned job, const char *policy, struct error *err);
/** The answer to the ticket's request, or NULL: there is none yet, or it is forgotten. */
const struct error *operator_answer(const struct world *world, uint64_t ticket);
/** Asks for the records (EVENT_RECORDS) or the ranks (EVENT_RANKS) of all nodes. */
void operator_look(struct world *world, unsigned node, unsigned job, enum event_type what);
/** Asks a node for a checkpoint. The ticket; 0: it was refused. */
uint64_t operator_checkpoint(struct world *world, unsigned node, unsigned job, struct error *err);
void operator_action(struct world *world, unsigned node, const struct action *action);
void operator_watch(struct world *world, unsigned node);
void operator_crashed(struct world *world, unsigned node);
void operator_check_step(struct world *world, unsigned node, unsigned job, uint64_t step);
void operator_check_due(const struct trainer *trainer, const struct action *action);
/** One of the policies that the world's scenario may use. */
const char *scenario_policy(const struct world *world, uint64_t index);
/** Tensors for a job: bits as in scenario.tensors. */
unsigned scenario_tensors(struct world *dice);
/** Whether a policy has residuals in bf16. */
bool scenario_is_rounded(const char *policy);

/** Whether all ranks of a job are done or failed; notes when that was so first. */
bool world_job_over(struct world *world, unsigned job);

/* coverage.c */
void coverage_move(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to);
/** Moves are not counted while it is off: states that bugs and hostile peers reach prove nothing.
 */
void coverage_count(bool on);
/** Prints reached / declared moves of every table; returns the number not reached. */
unsigned coverage_print(void);

/* half.c: the sum has a random half of the sent entries; collective_find("half") */
extern const struct collective_ops collective_half;

/* fickle.c: the planner may want any plan, not only the best; true */
extern bool fickle_planner;

/* planted.c: bugs that the checks must find */
enum planted {
    PLANTED_NONE,
    PLANTED_RESIDUAL,  /* an entry that was not sent is cleared as well */
    PLANTED_DOUBLE,    /* a node's contribution is added twice */
    PLANTED_VIEW,      /* a round goes on in the old view when a new one is proposed */
    PLANTED_GRADIENT,  /* a retry adds the gradient again */
    PLANTED_UNPUSHED,  /* a node does not read who pushed, and takes it that the others did */
    PLANTED_SCALE,     /* a retry adds gradients with their loss scale */
    PLANTED_NONFINITE, /* a copy loses the flag that its step is not finite */
    PLANTED_SETTLE,    /* a round that a copy completes does not settle */
    PLANTED_ROUNDING,  /* a retry rounds values with another seed */
    PLANTED_MEAN,      /* the mean divides by nodes x local ranks */
    PLANTED_CREDIT,    /* a sender ignores the credit of the receiver */
    PLANTED_STORM,     /* every leave is answered to all */
    PLANTED_TWICE,     /* some frames are delivered twice */
    PLANTED_STRICT,    /* the heaviest job always goes first, whatever it had */
    PLANTED_LIVELOCK,  /* every join makes a new proposal, and that begins all patience anew */
    PLANTED_QUORUM,    /* a coordinator commits a view after the first answer */
    PLANTED_HALVES,    /* any nodes may go on without the others */
    PLANTED_PROMISE,   /* a node forgets the views that it promised */
    PLANTED_HEADER,    /* a daemon that restarts does not find the views in its store */
    PLANTED_DIVISOR,   /* the mean divides by the ranks of the first view */
    PLANTED_COMEBACK,  /* a node that comes back does not settle what others applied */
    PLANTED_SINCE,     /* nodes that join take part in the step in which they should watch */
    PLANTED_RUN,       /* a frame of a run that is over counts for the next */
    PLANTED_OWNER,     /* jobs are only compared by name and run id */
    PLANTED_UNTOLD,    /* no node passes on that a job has failed */
    PLANTED_PATIENT,   /* round_timeout never ends a wait */
    PLANTED_PAST,      /* a residual is read past the engine that has it */
    PLANTED_ORDER,     /* operations of carriers start in the order in which a node hears of them */
    PLANTED_STOLEN,    /* the core takes a residual back while a compute has it */
    PLANTED_RESTS,     /* what 16 bits cut off an update's entries is in no residual */
    PLANTED_RESTS_DENSE, /* the same of a dense update */
    PLANTED_SUCCESSOR    /* what a process pushed before it ended is read where it is not */
};
extern enum planted planted_bug;

/* scenario.c: random scenarios */
struct scenario scenario_of(uint64_t seed);
/** One of more than MANY_NODES nodes, of which some are lost. */
struct scenario scenario_of_many(uint64_t seed);
extern struct sim_stats scenario_total;
/** The draws of a random scenario, in one line. */
void scenario_describe(const struct scenario *scenario, char text[SCENARIO_TEXT]);
/** Runs a scenario; prints the violation, if any. */
bool scenario_run(const struct scenario *scenario, bool print);

#endif
