/*
 * The model: how long a step takes under given choices, from estimates.
 *
 * Buckets are formed as the plan of a job forms them (plan.c). Bucket l is selected when its last
 * gradient is there and a worker is free. Workers that become free share large computes. The
 * exchange of the bucket begins at
 *
 *     max(link free after bucket l - 1, selection of l over)
 *
 * It is summed when the exchange is over and a worker is free. The step is accepted when all sums
 * are there and settled. All costs are those of the slowest node. (Source: the overlap recurrence
 * of partial sparsification; workers and the sums are our addition.)
 *
 * A choice that was not observed yet gets derived costs. Its computes are the reference costs
 * (cost.h) times the slowness of observed computes, of the same sort (dense or sparse) if there are
 * any. Its exchanges come from the link.
 */
#ifndef ADTOPK_FORECAST_H
#define ADTOPK_FORECAST_H

#include "daemon/planner/cost.h"
#include "daemon/planner/estimate_line.h"
#include "daemon/planner/planner.h"

/* The costs from the estimates, with missing ones derived: nothing is unknown any more. */
struct forecast_costs {
    struct line select[CHOICES], reduce[CHOICES]; /* over reference costs, us on one worker */
    struct line exchange[CHOICES];                /* over bytes: how long the link is busy */
    double latency_us[CHOICES];                   /* how long after the end of the exchange the last
                                                   * frame arrives */
    double volume[CHOICES];                       /* bytes by formula */
    struct line settle;
    double gamma;
    double link_us_byte;
};

struct forecast_result {
    double step_us;
    double finish_us; /* the last sum is there */
    double select_us, link_us, reduce_us;
    uint64_t bytes;
    uint32_t buckets;
};

/* When a gradient is there. */
struct forecast_arrival {
    double us;
    uint32_t tensor;
};

struct forecast {
    const struct planner_config *config; /* borrowed */
    struct forecast_costs costs;
    struct forecast_arrival *arrival; /* [tensors], ascending */
    uint32_t *rank;                   /* [tensors]: place of the tensor in that order */
    uint32_t *bucket_at;              /* [tensors], by rank of a bucket's last gradient: scratch */
    struct forecast_bucket *bucket;   /* [tensors]: scratch */
};

/** Room for the config's tensors; false without memory. Freed by forecast_free(). */
bool forecast_init(struct forecast *forecast, const struct planner_config *config);
void forecast_free(struct forecast *forecast);

/** Takes over the estimates; they are of the config's tensors and nodes. */
void forecast_set(struct forecast *forecast, const struct estimates *estimates);

/** Predicts a step. Takes some ten ns per tensor and some hundred per bucket. */
void forecast_run(
    struct forecast *forecast, const struct choices *choices, struct forecast_result *result);

#endif
