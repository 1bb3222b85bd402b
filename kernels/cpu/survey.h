/*
 * What a rule can ask of a residual that is complete: statistics of all of it, how many entries
 * reach a threshold, and those entries.
 *
 * A fused pass in mode RULE (fused.h) gathers both while the elements are in the cache: the
 * statistics, and as candidates what reaches a guess. Questions about thresholds from the guess up
 * are answered from the candidates, others by reading the residual; the answers are the same.
 * Reading is shared by the threads of survey->parallel. Everything is deterministic: sums are
 * formed in a written-out order (stats.h), whatever ranges, threads, implementation or guess.
 *
 * Magnitudes compare as in select_top(): NaN ranks above infinity, and so reaches every threshold.
 * The residual must not change while it is surveyed. Functions that take the survey as const may
 * run on several threads at once, the others use its scratch.
 */
#ifndef ADTOPK_KERNELS_SURVEY_H
#define ADTOPK_KERNELS_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sparse.h"

struct chunk_ops;
struct stats;
struct stats_ops;

/* Which statistics of all elements a rule needs, ORed; each costs time. The kernels are made for
 * the combinations below. */
enum survey_need {
    SURVEY_NO_STATS = 0,    /* none but n */
    SURVEY_SUM = 1,         /* sum */
    SURVEY_MAGNITUDES = 2,  /* sum_abs, most */
    SURVEY_SQUARES = 4,     /* sum_squares */
    SURVEY_ZEROS = 8,       /* zeros */
    SURVEY_LOGARITHMS = 16, /* sum_log */
    SURVEY_MEANS = SURVEY_MAGNITUDES | SURVEY_ZEROS,
    SURVEY_MOMENTS = SURVEY_SUM | SURVEY_SQUARES | SURVEY_ZEROS,
    SURVEY_SPREAD = SURVEY_MAGNITUDES | SURVEY_SQUARES | SURVEY_ZEROS,
    SURVEY_ALL = 31
};

/* Of all elements; logarithms of those that are not zero. What is not needed is 0. */
struct survey_stats {
    uint64_t n;
    uint64_t zeros;
    double sum;
    double sum_abs;
    double sum_squares;
    double sum_log; /* natural logarithm of magnitudes */
    float most;     /* largest magnitude; 0 if there is no element */
};

/* Of the elements whose magnitude reaches a threshold. */
struct survey_tail {
    uint64_t count;
    double sum_abs;
    double sum_squares; /* if asked for; else 0 */
    float least;        /* smallest magnitude among them; 0 if there are none */
};

/* No key reaches it: there are no candidates. */
#define SURVEY_NOTHING UINT32_MAX

struct survey {
    const float *x; /* n elements in memory order: rules may look at single ones */
    struct survey_stats stats;
    struct parallel parallel; /* the caller may lend threads once the survey is made */

    /* The survey's own. */
    const struct stats_ops *ops;
    const struct chunk_ops *pick;
    struct stats *chunk;            /* room for those of every chunk */
    const struct sparse *candidate; /* lists of one part of the tensor after the other */
    unsigned lists;
    uint32_t complete; /* the lists hold all elements whose key is at least this */
    void *scratch;
};

/** Bytes of scratch for survey_read(), aligned to 8: 300 KiB and a fiftieth of the residual. */
size_t survey_scratch(uint64_t n);

/** Surveys n elements, at most VIEW_MAX_ELEMENTS, by reading them. x and scratch stay the caller's
 * and have to outlive the survey. ops: NULL for the best. need: enum survey_need. */
void survey_read(struct survey *survey, const struct stats_ops *ops, unsigned need, const float *x,
    uint64_t n, void *scratch);

/** The smallest float t for which |x| >= t means |x| >= threshold, or with `strict` |x| >
 * threshold, for every finite x. Infinity where no finite x does, and for NaN; 0 where every x
 * does. */
float survey_threshold(double threshold, bool strict);

/** How many magnitudes are at least threshold (> 0); `most` + 1 if they are more than `most`, which
 * is found out without looking at all of them. */
uint64_t survey_count(const struct survey *survey, float threshold, uint64_t most);

/** ... all of them, and their sums; that of their squares costs time. */
struct survey_tail survey_tail(struct survey *survey, float threshold, bool squares);

/** The rank-th largest magnitude, rank > 0, of every stride-th element from number `start` < n on,
 * which are at least `rank`. */
float survey_ranked(struct survey *survey, uint64_t start, uint64_t stride, uint64_t rank);

/** All entries of magnitude >= threshold (> 0), in memory order, if they are at most `most`; else
 * the `most` largest of them, ties to the lower position. out: capacity `most`. */
void survey_take(struct survey *survey, float threshold, uint64_t most, struct sparse *out);

/** The k largest magnitudes, exact, as select_top(). out: capacity at least k. */
void survey_top(struct survey *survey, uint64_t k, struct sparse *out);

/** The magnitude that somewhat more than so many elements reach, as far as the candidates tell:
 * from where on the next turn's pass had better collect. 0 if they tell nothing. */
float survey_hint(const struct survey *survey, uint64_t entries);

/** For the fused pass: the statistics of n elements. */
struct survey_stats survey_describe(uint64_t n, unsigned need, const struct stats *stats);

#endif
