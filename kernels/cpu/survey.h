/*
 * A survey of a residual: the first row of kernels/base/survey.h. Some questions are answered from
 * candidates, which are in this process's memory. For the others a *reader* reads the residual,
 * which may lie elsewhere; the first reader reads this process's memory.
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

struct cpu_survey;

/* Reads the residual for questions that the candidates leave open. `least` is a key, above 0: the
 * bits of a magnitude. A reader may bring the survey new candidates. */
struct survey_reader {
    /* How many keys are at least `least`, or any number above `most` if more than `most` are. */
    uint64_t (*count)(struct cpu_survey *survey, uint32_t least, uint64_t most);
    /* The same, and if they are at most `most` the list of them, for which `out` has room. */
    uint64_t (*take)(struct cpu_survey *survey, uint32_t least, uint64_t most, struct sparse *out);
    struct stats (*tail)(struct cpu_survey *survey, uint32_t least, bool squares);
    float (*ranked)(struct cpu_survey *survey, uint64_t start, uint64_t stride, uint64_t rank);
    void (*top)(struct cpu_survey *survey, uint64_t k, struct sparse *out);
};

struct cpu_survey {
    struct survey base; /* first: what rules see */
    const struct survey_reader *reader;
    const float *x;           /* for the first reader: n elements in memory order */
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
extern const struct survey_reader survey_memory; /* the first reader */

/** Bytes of scratch for a survey, aligned to 8: 300 KiB and a fiftieth of the residual. */
size_t survey_scratch(uint64_t n);

/** A survey of n elements, at most VIEW_MAX_ELEMENTS. No statistics and no candidates are there
 * yet: the caller sets base.stats, and candidate, lists and complete, and x for the first reader.
 * scratch is the caller's and has to outlive the survey. */
void survey_open(
    struct cpu_survey *survey, const struct survey_reader *reader, uint64_t n, void *scratch);

/** The statistics of n elements, of the sums of those that are not 0. */
struct survey_stats survey_describe(uint64_t n, unsigned need, const struct stats *stats);

#endif
