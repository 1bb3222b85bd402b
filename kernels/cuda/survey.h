/*
 * What a rule asks of a complete residual (kernels/base/survey.h), for many tensors at once. The
 * bits are those of kernels/cpu/survey.h.
 *
 * Happy path: ADD that selects nothing. Then survey_stats, survey_total and survey_list with two
 * orders per tensor: one of all elements that are not zero (`least` 1), and one of those that reach
 * the rule's guess, with a list of them. The list answers questions about thresholds from the guess
 * up. Other questions are orders like the second one: survey_count() is the count of its total,
 * survey_tail() its total, survey_take() its list. survey_ranked() has a kernel of its own.
 * survey_top() is ADD with mode TOP and the stamp of the pass, which adds nothing.
 *
 * Positions that all nodes know (mode KNOWN) need no survey: they are ADD that selects nothing,
 * then entries_gather (entries.h).
 */
#ifndef ADTOPK_KERNELS_CUDA_SURVEY_H
#define ADTOPK_KERNELS_CUDA_SURVEY_H

#include "kernels/base/stats.h"
#include "kernels/cuda/slots.h"

/* Elements whose key, the bits of the magnitude, is at least `least`. */
struct survey_order {
    uint64_t first;        /* number of its first chunk in the batch */
    const uint64_t *entry; /* of the residual's chunks */
    uint64_t numel;
    uint32_t least;      /* above 0 */
    struct stats *chunk; /* scratch, one per chunk */
    uint32_t *place;     /* scratch, one per chunk */
    struct stats *total; /* found */
    uint32_t *position;  /* found: the elements, ascending; NULL: not wanted */
    float *value;
    uint64_t room; /* entries that the list can hold. There may be more: see total->count */
};

/* survey_ranked: the rank-th largest magnitude of every stride-th element from `start` on. */
struct survey_rank {
    const uint64_t *entry;
    uint64_t numel;
    uint64_t start, stride;
    uint32_t rank;
    float *magnitude; /* found */
};

/* The parameter of all kernels here. */
struct survey_batch {
    const struct survey_order *order;
    const struct survey_rank *ranked;
    uint32_t orders, rankeds;
    uint64_t chunks; /* of all orders */
    struct slots slots;
};

#endif
