/*
 * A survey of a residual in this process's memory: the first row of kernels/base/survey.h.
 *
 * A fused pass in mode RULE (fused.h) gathers statistics and candidates while the elements are in
 * the cache; a candidate reaches a guess. Questions about thresholds from the guess up are answered
 * from the candidates, others by reading the residual; the answers are the same. The threads of
 * survey->parallel share the reading. Everything is deterministic: sums are formed in a written-out
 * order (stats.h), whatever the ranges, threads, implementation or guess.
 */
#ifndef ADTOPK_KERNELS_SURVEY_H
#define ADTOPK_KERNELS_SURVEY_H

#include "kernels/base/parallel.h"
#include "kernels/base/survey.h"

struct chunk_ops;
struct stats;
struct stats_ops;

/* No key reaches it: there are no candidates. */
#define SURVEY_NOTHING UINT32_MAX

struct cpu_survey {
    struct survey base;       /* first: what rules see */
    const float *x;           /* n elements in memory order: rules may look at single ones */
    struct parallel parallel; /* the caller may lend threads once the survey is made */

    /* The survey's own. */
    const struct stats_ops *stats_ops;
    const struct chunk_ops *pick;
    struct stats *chunk;            /* room for the statistics of every chunk */
    const struct sparse *candidate; /* lists of one part of the tensor after the other */
    unsigned lists;
    uint32_t complete; /* the lists hold all elements whose key is at least this */
    void *scratch;
};

extern const struct survey_ops survey_cpu;

/** Bytes of scratch for survey_read(), aligned to 8: 300 KiB and a fiftieth of the residual. */
size_t survey_scratch(uint64_t n);

/** Surveys n elements, at most VIEW_MAX_ELEMENTS, by reading them. x and scratch belong to the
 * caller and have to outlive the survey. ops: NULL for the best. need: enum survey_need. */
void survey_read(struct cpu_survey *survey, const struct stats_ops *ops, unsigned need,
    const float *x, uint64_t n, void *scratch);

/** For the fused pass: the statistics of n elements. */
struct survey_stats survey_describe(uint64_t n, unsigned need, const struct stats *stats);

#endif
