/*
 * The plans that are worth a prediction. Everything is dense; or everything is sparse through one
 * collective; or some tensors are dense, those with which the model's step is shortest. Each comes
 * with a few sizes of buckets. A tensor only gets choices that its `allowed` has.
 *
 * Partial sets. With up to CANDIDATE_EXHAUSTIVE tensors to choose for (in a job of up to 600) all
 * sets are predicted, for one size of buckets, so the model has no better one. With more, the
 * smallest, the largest, the first or the last tensors to arrive become dense, in the best number.
 * Then single tensors (or groups of them) and pairs change sides as long as that helps, within a
 * bounded number of predictions. Only one dense and one sparse choice are mixed: the two that
 * promise most alone, of equal ones the first.
 */
#ifndef ADTOPK_CANDIDATE_H
#define ADTOPK_CANDIDATE_H

#include "daemon/planner/forecast.h"

#define CANDIDATE_EXHAUSTIVE 8
#define CANDIDATE_NAME_SIZE 48
#define CANDIDATE_BUCKETS 5 /* sizes of buckets */

/* How a plan is made: a choice alone, or one dense and one sparse choice. */
enum {
    KIND_PARTIAL = CHOICES,   /* + 4 * dense choice + sparse choice - CHOICE_ALLGATHER */
    KIND_OTHER = CHOICES + 8, /* a plan that the planner did not make */
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
 * Makes all candidates and predicts them. weight[kind], above 0, corrects predictions of that kind
 * when the two choices to mix are picked.
 */
void candidates_make(
    struct candidates *candidates, struct forecast *forecast, const double weight[KINDS]);

/** Whether two plans, predicted with the same estimates, only differ in a number: buckets of two
 * sizes that give the same buckets. */
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
