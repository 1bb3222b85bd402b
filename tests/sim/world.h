/*
 * The simulator: nodes with the real core, joined by a virtual network, clock and memory, and
 * driven by scripted trainers. Everything is a function of the scenario and its seed.
 *
 * world.c moves time, packets and computes; trainer.c plays the ranks; check.c holds the
 * invariants, which are looked at after every single event.
 */
#ifndef ADTOPK_SIM_WORLD_H
#define ADTOPK_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "daemon/core/store.h"

#define SIM_MAX_NODES 16
#define SIM_MAX_RANKS 32
#define SIM_MAX_TENSORS 8
#define SIM_TEXT 256

struct scenario {
    uint64_t seed;
    unsigned nodes;
    unsigned ranks_per_node;
    unsigned steps;
    unsigned operations; /* plain operations each rank calls before the first step */
    const char *policy;
    double loss, duplicate;  /* of packets */
    double refuse;           /* of transmissions: the transport is full */
    uint64_t delay_us;       /* packets take 10 us to this, independently: they reorder */
    uint64_t crash_every_us; /* mean time between crashes of some node; 0: none */
    unsigned max_crashes;
    uint64_t cut_every_us; /* mean time between partitions of one node; 0: none */
    double nonfinite;      /* chance that a pushed gradient holds NaN or Inf */
    double skip;           /* chance that a rank does not push a tensor */
    double wait;           /* chance that a rank blocks on a tensor right after its push */
    uint64_t max_us;       /* virtual time after which something hangs */
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
    uint8_t *arena;
    uint64_t arena_size;
    uint64_t step;
    unsigned next_push; /* position in this step's order */
    int blocked_on;     /* tensor it waits for, or -1 */
    bool ended;
    uint64_t operation;
    bool op_pending;
    uint64_t delivered[SIM_MAX_TENSORS]; /* step + 1 */
    bool awake;                          /* an event is queued for it */
    struct error error;
};

struct node {
    struct world *world;
    unsigned number;
    struct core *core;
    uint64_t incarnation;
    bool cut; /* its packets are lost for now */
    uint64_t timer_us;
    uint64_t *store;
    uint64_t store_size;
    uint8_t *results;
    uint64_t results_size;
    bool results_old; /* a core has mapped it before */
    bool store_old;
    uint64_t fault_mark; /* world.faults when its open step began */
    uint64_t step_mark;
};

enum sim_event_type {
    SIM_PACKET,
    SIM_COMPUTE,
    SIM_TIMER,
    SIM_TRAINER,
    SIM_CRASH,
    SIM_RESTART,
    SIM_CUT,
    SIM_HEAL
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
    struct trainer *trainer;
};

/* Summed over a run, and over runs. */
struct sim_stats {
    uint64_t runs, events, packets, lost, duplicated, crashes, cuts;
    uint64_t rounds, faulted_rounds, retried_rounds, steps, withdrawn;
};

struct world {
    struct scenario scenario;
    uint64_t random;
    uint64_t now_us;
    uint64_t order;
    uint64_t next_session;
    uint64_t next_incarnation;
    struct node node[SIM_MAX_NODES];
    struct trainer trainer[SIM_MAX_RANKS];
    unsigned trainers;
    struct sim_event *heap;
    size_t heap_size, heap_capacity;
    uint64_t faults;
    struct sim_stats stats;

    unsigned tensors;
    struct tensor_spec tensor[SIM_MAX_TENSORS];
    uint64_t numel[SIM_MAX_TENSORS];
    uint64_t elements;

    /* What the checks remember: per step the bits of its update, and the sum of all updates. */
    uint64_t *update_hash;
    uint8_t *update_status; /* 0: not seen; 1 + status */
    double *applied;        /* [elements], accepted updates added up */
    double *residual;       /* [nodes * elements], what was left when a node's ranks left */

    bool violated;
    char violation[SIM_TEXT];
};

/* Changes before a run what world_run() would do by itself; for single scenarios. */
struct world *world_create(const struct scenario *scenario);
void world_destroy(struct world *world);

/** Runs until every trainer is done or failed, or an invariant is violated. True if all are done
 * and nothing was violated; otherwise world->violation says what. */
bool world_run(struct world *world);

/** One event; false when none is left. */
bool world_turn(struct world *world);

void world_violate(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void world_crash(struct world *world, unsigned node);
void world_restart(struct world *world, unsigned node);
uint64_t world_random(struct world *world, uint64_t below);
bool world_chance(struct world *world, double chance);
enum adtopk_status world_core_event(
    struct world *world, unsigned node, struct event *event, struct error *err);
void world_wake(struct world *world, struct trainer *trainer, uint64_t after_us);

/* trainer.c */
void trainer_turn(struct trainer *trainer);
void trainer_action(struct trainer *trainer, const struct action *action);
void trainer_disconnected(struct trainer *trainer);
float trainer_gradient(
    const struct world *world, uint64_t step, uint32_t rank, unsigned tensor, uint64_t element);
bool trainer_pushes(const struct world *world, uint64_t step, uint32_t rank, unsigned tensor);

/* check.c */
void check_event(struct world *world);
void check_step(struct world *world, unsigned node, uint64_t step, enum adtopk_status status);
void check_residuals(struct world *world, unsigned node);
void check_end(struct world *world);

/* coverage.c */
void coverage_move(
    void *context, const struct machine_table *table, unsigned from, unsigned event, unsigned to);
/** Prints reached / declared moves of every table; returns the number not reached. */
unsigned coverage_print(void);

/* half.c: accepts a random half of what was sent; collective_find("half") */
extern const struct collective_ops collective_half;

/* planted.c: bugs that the checks must find */
enum planted { PLANTED_NONE, PLANTED_RESIDUAL, PLANTED_DOUBLE, PLANTED_VIEW };
extern enum planted planted_bug;

#endif
