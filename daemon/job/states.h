/*
 * The states and events of jobs, ranks, steps, rounds and switches. The tables say which moves
 * there are.
 */
#ifndef ADTOPK_JOB_STATES_H
#define ADTOPK_JOB_STATES_H

#include "daemon/job/machine.h"

enum job_state { JOB_FORMING, JOB_PREPARED, JOB_ACTIVE, JOB_ENDED, JOB_STATES };
enum job_event { JOB_ON_PREPARE, JOB_ON_COMMIT, JOB_ON_FAIL, JOB_ON_LEAVE, JOB_EVENTS };

enum rank_state {
    RANK_OPEN,
    RANK_COMMITTED,
    RANK_MAPPED,
    RANK_READY,
    RANK_LEFT,
    RANK_VACANT, /* its process has ended, and the job waits for another one in its place */
    RANK_STATES
};
enum rank_event {
    RANK_ON_REGISTER,
    RANK_ON_COMMIT,
    RANK_ON_MAPPED,
    RANK_ON_READY,
    RANK_ON_PUSH,
    RANK_ON_STEP_END,
    RANK_ON_OP,
    RANK_ON_LEAVE,
    RANK_ON_LOSS,
    RANK_EVENTS
};

enum step_state { STEP_IDLE, STEP_OPEN, STEP_SETTLE, STEP_WITHDRAW, STEP_STATES };
enum step_event { STEP_ON_OPEN, STEP_ON_DELIVERED, STEP_ON_DONE, STEP_ON_HOLD, STEP_EVENTS };

enum switch_state {
    SWITCH_NONE,
    SWITCH_PROPOSED, /* accepted here; the step of the next plan is not reached yet */
    SWITCH_HELD,     /* its step is reached; it opens when all nodes are there */
    SWITCH_MOVING,   /* agreed; the residuals are being converted */
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
    ROUND_FETCH,     /* another node delivered it in an earlier view: waits for a copy */
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

extern const struct machine_table job_machine, rank_machine, step_machine, round_machine,
    switch_machine;

/** Every table of the core, for coverage; NULL-terminated. */
extern const struct machine_table *const core_machines[];

#endif
