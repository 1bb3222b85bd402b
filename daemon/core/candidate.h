/*
 * The plans that are worth predicting: everything dense, everything sparse by one collective, and
 * in between the set of dense tensors with which the model's step is shortest; each with a few
 * sizes of buckets, and each tensor only as its `allowed` says.
 *
 * Partial sets: with up to CANDIDATE_EXHAUSTIVE tensors to choose for (in a job of up to
 * 600) all sets are predicted, for one size of buckets, so the model has no better one. With more,
 * the smallest, the largest, the first or the last to arrive become dense, as many as is best; then
 * single tensors (or groups of them) and pairs change sides as long as that helps, within a bounded
 * number of predictions. Only one dense and one sparse choice are mixed: those that alone promise
 * most.
 */
#ifndef ADTOPK_CANDIDATE_H
#define ADTOPK_CANDIDATE_H

#include "daemon/core/forecast.h"

#define CANDIDATE_EXHAUSTIVE 8
#define CANDIDATE_NAME_SIZE 48
#define CANDIDATE_BUCKETS 5 /* sizes of buckets */

/* How a plan is made: a choice alone, or one dense and one sparse choice. */
enum {
    KIND_PARTIAL = CHOICES,   /* + 4 * dense choice + sparse choice - CHOICE_ALLGATHER */
    KIND_OTHER = CHOICES + 8, /* what somebody else thought out */
    KINDS
};

#define CANDIDATES_MAX ((CHOICES + 1) * CANDIDATE_BUCKETS)

struct candidate {
    struct choices plan;
    unsigned kind;
    struct forecast_result result;
};

struct candidates {
    struct candidate item[CANDIDATES_MAX];
    unsigned count;
    struct candidate_search *search; /* scratch */
};

/** False without memory. Freed by candidates_free(). */
bool candidates_init(struct candidates *candidates, const struct planner_config *config);
void candidates_free(struct candidates *candidates);

/**
 * Makes all candidates and predicts them. weight[kind]: what predictions of that kind are off, for
 * the choice of which two to mix; all are above 0.
 */
void candidates_make(
    struct candidates *candidates, struct forecast *forecast, const double weight[KINDS]);

/** Whether two plans, predicted with the same estimates, are the same but for a number: buckets of
 * one size or the other do not differ. */
bool candidate_same(const struct choices *a, const struct forecast_result *predicted_a,
    const struct choices *b, const struct forecast_result *predicted_b);

/** The kind of any plan. */
unsigned candidate_kind(const struct planner_config *config, const struct choices *plan);

/** Its dense and its sparse choice; CHOICES where it has none or more than one. */
enum choice candidate_dense(unsigned kind);
enum choice candidate_sparse(unsigned kind);

/** Such as "partial: dense bf16, allgather". */
void candidate_name(unsigned kind, char name[CANDIDATE_NAME_SIZE]);

#endif
