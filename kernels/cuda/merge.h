/*
 * The sum of several lists of one view, as a list, as a dense array, or as both, for many tensors
 * at once. The bits are those of kernels/cpu/merge.h: the lists are added in their order.
 *
 * The positions are cut into windows, which are numbered through; a block has a window at a time.
 * merge_count counts the positions of each window, merge_place adds the counts up, merge_write
 * writes. All may be killed and repeated.
 */
#ifndef ADTOPK_KERNELS_CUDA_MERGE_H
#define ADTOPK_KERNELS_CUDA_MERGE_H

#include "kernels/cuda/entries.h"

enum { MERGE_WINDOW = 4096 }; /* positions */

struct merge_order {
    uint64_t first;             /* number of its first window in the batch */
    const struct entries *list; /* in the order in which they are added */
    uint32_t lists;
    uint64_t positions; /* of the view */
    float scale;
    uint32_t *place;    /* scratch, one per window */
    uint64_t *count;    /* found: positions that are in some list */
    uint32_t *position; /* found: the list; as much room as all lists have entries, or the view
                         * positions. NULL: not wanted */
    float *value;
    float *dense; /* found: `positions` elements; the view's stride is 1. NULL: not wanted */
};

/* The parameter of all kernels here. */
struct merge_batch {
    const struct merge_order *order;
    uint32_t orders;
    uint64_t windows; /* of all orders */
};

/** Windows of an order. */
BASE_INLINE uint64_t merge_windows(uint64_t positions)
{
    return (positions + MERGE_WINDOW - 1) / MERGE_WINDOW;
}

#endif
