/*
 * A local rank: its place in the job, and what its process has done. A part of model.h.
 */
#ifndef ADTOPK_JOB_RANK_H
#define ADTOPK_JOB_RANK_H

#include "daemon/job/events.h"
#include "daemon/job/machine.h"

struct job;

/* How long a rank takes from a step's last update to its last push in the next step. Steps that
 * were withdrawn, and steps in which it pushed nothing, do not count. */
struct pace {
    uint64_t pushed_us; /* time of its last push; 0: none since the last step was closed */
    uint64_t ready_us;  /* when the last update of the open step was there; 0: none is yet */
    uint64_t from_us;   /* the same of the step before, or when that was closed; 0: there is none */
    uint64_t steps;     /* that counted */
    uint64_t last_us;   /* in the last of these */
    double mean_us;     /* over about the last 64 */
};

/* The place of a rank whose process ended, VACANT: compute/successor.c. */
struct vacancy {
    uint64_t since_us;
    struct rank *successor; /* the process that is on its way to the place; NULL: none is */
};

/* A step in which a rank pushes again what counts already: compute/successor.c. */
struct repeat {
    uint64_t step;            /* its number + 1; 0: nothing counts already */
    session_id session;       /* of the process that pushed before; 0: its gradients are not used */
    const uint8_t *gradients; /* the arena of that process */
    bool *pushed;             /* tensors whose gradients are there; NULL: the step is closed */
};

/* The rank's process. */
struct rank_client {
    uint32_t pid;   /* 0: not known */
    bool returns;   /* it can come back to the next daemon of this node */
    bool here;      /* it is on this node: another process may take its place */
    bool succeeded; /* it took the place of a process that ended */
};

struct rank {
    session_id session;
    uint32_t number;
    struct job *job;
    unsigned index; /* its place among the local ranks; from RANK_READY on */
    struct machine machine;
    uint32_t registered;               /* tensors described so far */
    bool on_gpu;                       /* its gradients are in memory of a GPU */
    enum core_shown shown_on_gpu;      /* what it sees of updates there */
    unsigned committed, mapped, ready; /* batches of them */
    unsigned brings;                   /* how many it commits before it can be ready; 0: one */
    const uint8_t *gradients[CORE_MAX_BATCHES]; /* its arenas, in the driver's memory */
    uint64_t *pushed;                           /* per tensor: step + 1 of its last push */
    bool *waits;      /* per tensor: it blocks on it, and the core cannot act on that yet */
    uint32_t waiting; /* how many these are */
    /* `pushed` and `waits` for the time when the batch that it has committed is in force. */
    uint64_t *next_pushed;
    bool *next_waits;
    uint64_t ended;     /* step + 1 of its last step_end */
    uint64_t submitted; /* number + 1 of its last plain operation */
    enum op_kind op_kind;
    uint32_t op_root;
    uint32_t op_size;
    struct rank_client client;
    uint32_t place; /* among the ranks that take part in the next step */
    struct pace pace;
    struct vacancy vacancy;
    bool succeeds;        /* it is on its way to the vacant place of another rank */
    uint64_t first_step;  /* of a process that takes a place: the step that it pushes first */
    struct repeat repeat; /* what it pushes although the process before it did */
};

#endif
