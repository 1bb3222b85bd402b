/*
 * What a rule can ask of a complete residual: statistics of all of it, how many entries reach a
 * threshold, and those entries.
 *
 * A survey is a table of questions, so that the residual may lie in any memory: whoever holds it
 * answers. kernels/cpu/survey.c is the first row of the table. The answers are the same bits,
 * whoever gives them.
 *
 * Magnitudes compare as in select_top(): NaN ranks above infinity, and so reaches every threshold.
 * The residual must not change while it is surveyed.
 */
#ifndef ADTOPK_KERNELS_BASE_SURVEY_H
#define ADTOPK_KERNELS_BASE_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/sparse.h"

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

/* Of all elements, and logarithms of those that are not zero. Statistics that were not requested
 * are 0. */
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
    double sum_squares; /* if requested; else 0 */
    float least;        /* smallest magnitude among them; 0 if there are none */
};

struct survey;

/* The questions, as the functions below document them. */
struct survey_ops {
    uint64_t (*count)(struct survey *survey, float threshold, uint64_t most);
    struct survey_tail (*tail)(struct survey *survey, float threshold, bool squares);
    float (*ranked)(struct survey *survey, uint64_t start, uint64_t stride, uint64_t rank);
    void (*take)(struct survey *survey, float threshold, uint64_t most, struct sparse *out);
    void (*top)(struct survey *survey, uint64_t k, struct sparse *out);
    float (*hint)(const struct survey *survey, uint64_t entries);
};

struct survey {
    const struct survey_ops *ops;
    struct survey_stats stats;
};

/** The smallest float t for which |x| >= t means |x| >= threshold, or with `strict` |x| >
 * threshold, for every finite x. Infinity where no finite x does, and for NaN; 0 where every x
 * does. */
float survey_threshold(double threshold, bool strict);

/** How many magnitudes are at least threshold (> 0). Returns `most` + 1 if they are more than
 * `most`, which needs no reading of all of them. */
static inline uint64_t survey_count(struct survey *survey, float threshold, uint64_t most)
{
    return survey->ops->count(survey, threshold, most);
}

/** Counts and sums all magnitudes of at least threshold (> 0). The sum of their squares costs time.
 */
static inline struct survey_tail survey_tail(struct survey *survey, float threshold, bool squares)
{
    return survey->ops->tail(survey, threshold, squares);
}

/** The rank-th largest magnitude, rank > 0, of every stride-th element from number `start` < n on,
 * which are at least `rank`. */
static inline float survey_ranked(
    struct survey *survey, uint64_t start, uint64_t stride, uint64_t rank)
{
    return survey->ops->ranked(survey, start, stride, rank);
}

/** All entries of magnitude >= threshold (> 0), in memory order, if they are at most `most`.
 * Otherwise the `most` largest of them, ties to the lower position. out: capacity `most`. */
static inline void survey_take(
    struct survey *survey, float threshold, uint64_t most, struct sparse *out)
{
    survey->ops->take(survey, threshold, most, out);
}

/** The k largest magnitudes, exact, as select_top(). out: capacity at least k. */
static inline void survey_top(struct survey *survey, uint64_t k, struct sparse *out)
{
    survey->ops->top(survey, k, out);
}

/** A magnitude that somewhat more than so many elements reach, as far as the candidates tell. The
 * next turn's pass should collect from there on. 0 if the candidates tell nothing. */
static inline float survey_hint(const struct survey *survey, uint64_t entries)
{
    return survey->ops->hint(survey, entries);
}

#endif
