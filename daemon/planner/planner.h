/*
 * The planner finds the choices (choices.h) that make the steps of a job shortest, from the
 * measurements of its nodes (estimate.h).
 *
 * The model (forecast.h) predicts every candidate (candidate.h). The planner tries a candidate for
 * some steps if it promises enough, compared with the best measured plan. It keeps the measured
 * time and corrects the model for plans of the same kind. The best measured plan stays in force.
 * When no trial is worth its cost, the planner rests. It starts again when step times or the link
 * change so much that the measurements no longer hold. If that happens again and again, it waits
 * ever longer first.
 *
 * Every trial must promise something, a plan is tried once, and trials are limited, so that noise
 * cannot make the plan flip for ever. Deterministic: decisions are a function of the calls.
 *
 * One thread at a time. A decision takes some milliseconds for thousands of tensors, so planning.c
 * runs it on workers.
 */
#ifndef ADTOPK_PLANNER_H
#define ADTOPK_PLANNER_H

#include "daemon/planner/estimate.h"

#define PLANNER_WHY_SIZE 240

struct planner_tensor {
    uint64_t numel;
    uint64_t count;   /* entries that one node contributes where it is sparse */
    uint32_t allowed; /* bit 1 << choice; at least one. One bit alone: nothing to choose */
    double saved;     /* bytes by which the value of an entry is narrower than two */
};

struct planner_config {
    const struct planner_tensor *tensor; /* in order of registration; copied */
    uint32_t tensors;                    /* at least 1 */
    unsigned nodes;
    unsigned threads;      /* workers of a node, at least 1; all nodes are assumed to have as
                            * many */
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
    const struct choices *plan;           /* the planner's, until its next call */
    char name[48];                        /* such as "partial: dense bf16, allgather" */
    double predicted_us;                  /* from the latest estimates, corrected by measurements */
    double measured_us;                   /* median; 0: never tried, or forgotten */
    double finish_us;                     /* of that prediction: when the last exchange ends */
    double select_us, link_us, reduce_us; /* how long workers and link are busy in a step */
    uint64_t bytes;                       /* bytes that a node receives */
    bool in_force;
};

/** NULL without memory (*err says for how many tensors). */
struct planner *planner_create(const struct planner_config *config, struct error *err);
void planner_free(struct planner *planner);

/**
 * Asks whether another plan would be better. estimates: merged from all nodes; their steps are
 * those of the plan in force. in_force: the choices in force, for all tensors, which need not come
 * from this planner. Call it every few steps, but not during a switch. If the plan in force is not
 * the proposed one, the proposal was refused and will not be repeated soon.
 */
void planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision);

/** Call it if the plan of the last decision was not proposed: the state is as before, and the
 * planner may choose that plan again. */
void planner_withdraw(struct planner *planner);

/** The index-th candidate of the last decision, best first; false behind the last. */
bool planner_candidate(
    const struct planner *planner, unsigned index, struct planner_candidate *candidate);

#endif
