/*
 * The planner: which choices (choices.h) make the steps of a job shortest, from what its nodes
 * measure (estimate.h).
 *
 * The model (forecast.h) predicts every candidate (candidate.h). One that promises
 * enough beside the best measured so far is tried for some steps; what was measured stays with it
 * and corrects the model for others of its kind; the best measured one stays in force. When nothing
 * is worth a trial the planner rests, until step times or the link differ by so much from what they
 * were that what was measured means nothing any more: then it starts again; where that happens
 * again and again, it waits ever longer before it believes it.
 *
 * Every trial must promise something, a plan is tried once, and trials are limited, so that noise
 * cannot make it flip for ever. Deterministic: decisions are a function of the calls.
 *
 * One thread at a time. A decision takes some milliseconds for thousands of tensors: planning.c has
 * workers make them.
 */
#ifndef ADTOPK_PLANNER_H
#define ADTOPK_PLANNER_H

#include "daemon/core/estimate.h"

#define PLANNER_WHY_SIZE 240

struct planner_tensor {
    uint64_t numel;
    uint64_t count;   /* entries that one node contributes where it is sparse */
    uint32_t allowed; /* bit 1 << choice; at least one. One bit alone: nothing to choose */
};

struct planner_config {
    const struct planner_tensor *tensor; /* in order of registration; copied */
    uint32_t tensors;                    /* at least 1 */
    unsigned nodes;
    unsigned threads;      /* workers of a node, at least 1; nodes are taken to be alike */
    uint64_t bucket_bytes; /* 0: the planner chooses, too */
};

struct planner;

struct planner_decision {
    bool change;                /* false: the plan in force stays */
    const struct choices *plan; /* change: the next one; the planner's, until its next call */
    char why[PLANNER_WHY_SIZE]; /* one sentence, with numbers; also for staying */
};

/* One line of `adtopkctl plan`. */
struct planner_candidate {
    const struct choices *plan; /* the planner's, until its next call */
    char name[48];              /* such as "partial: allgather, dense bf16" */
    double predicted_us; /* with what the estimates say now, corrected by what was measured */
    double measured_us;  /* median; 0: never tried, or forgotten */
    double finish_us;    /* of that prediction: when the last exchange ends ... */
    double select_us, link_us, reduce_us; /* ... and how long workers and link are busy */
    uint64_t bytes;                       /* that a node receives */
    bool in_force;
};

/** NULL without memory (*err says for how many tensors). */
struct planner *planner_create(const struct planner_config *config, struct error *err);
void planner_free(struct planner *planner);

/**
 * Asks whether another plan would be better. estimates: merged from all nodes; their steps are
 * those of the plan in force. in_force: it, for all tensors; it need not be one that this planner
 * proposed. Call it every few steps, and not while a switch is under way: if the plan in force is
 * not the proposed one, then that was refused, and will not be proposed again soon.
 */
void planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision);

/** What the last decision wanted was not proposed: all is as before, and it may be wanted again. */
void planner_withdraw(struct planner *planner);

/** The index-th candidate of the last decision, best first; false behind the last. */
bool planner_candidate(
    const struct planner *planner, unsigned index, struct planner_candidate *candidate);

#endif
