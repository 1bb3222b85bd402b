/* A survey of kernels/cpu/survey.h without a fused pass: it reads all elements. */
#ifndef ADTOPK_TESTS_HOST_SURVEY_READ_H
#define ADTOPK_TESTS_HOST_SURVEY_READ_H

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/stats.h"
#include "kernels/cpu/survey.h"

/** Surveys n elements. x and scratch have to outlive the survey. ops: NULL for the best. */
static inline void survey_read(struct cpu_survey *survey, const struct stats_ops *ops,
    unsigned need, const float *x, uint64_t n, void *scratch)
{
    struct stats total = stats_none();

    survey_open(survey, &survey_memory, n, scratch);
    survey->x = x;
    survey->stats_ops = ops != NULL ? ops : survey->stats_ops;
    for (uint64_t i = 0; need != SURVEY_NO_STATS && i < n; i += CHUNK) {
        struct stats_lanes lanes = stats_lanes_none();

        stats_add(
            survey->stats_ops, &lanes, x + i, n - i < CHUNK ? (unsigned)(n - i) : CHUNK, need);
        const struct stats part = stats_fold(&lanes);
        stats_join(&total, &part);
    }
    if (need != SURVEY_NO_STATS) {
        survey->base.stats = survey_describe(n, need, &total);
    }
}

#endif
