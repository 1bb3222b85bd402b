/*
 * The sum of several sparse lists of one view, as a sparse list, as a dense array, or as both.
 *
 * The sum has every position that is in some of the lists, once, with scale * (((0 + a) + b) + ...)
 * in f32. It adds the lists that have the position in the order of the array. A value of one list
 * alone is only scaled, and -0 becomes 0. Where no list has a position the dense array is 0. So the
 * same lists give the same bits, in either form, with any number of parts and threads.
 *
 * The positions are cut into windows that fit the L1 cache, and parts consist of windows. In a
 * window the values are added in place, and a bit for each position says whether it is present.
 * Where entries are few, a second level of bits finds the words that have some, and up to two lists
 * are merged into a list without windows, two parts side by side. A window of the dense array is
 * written once, past the caches if the array is large.
 *
 * To write a list, a first sweep over the lists counts the positions of each part, and a second one
 * writes them to their places. A single part, or the dense array alone, needs no counting. The work
 * is O(entries + lists * positions / 8192 + output), the memory one window per thread.
 */
#ifndef ADTOPK_KERNELS_MERGE_H
#define ADTOPK_KERNELS_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/parallel.h"
#include "kernels/base/sparse.h"

#define MERGE_PARTS 64u /* at most */

struct merge {
    const struct sparse *list; /* of strictly ascending positions below `positions` */
    unsigned lists;            /* may be 0 */
    uint64_t positions;        /* view_size() */
    float scale;
    struct sparse *out; /* overlaps no list; capacity as merge_run() says. NULL: only the dense
                         * array is wanted. */
    float *dense; /* `positions` elements that overlap no list and not `out`: the view's stride is
                   * 1; NULL: only the list is wanted */
    uint64_t written; /* elements that are written together with those of `dense`, if more */
    size_t *cursor;   /* scratch: `lists` for each part */
    unsigned parts;   /* 1..MERGE_PARTS: merge_parts() says how many pay */
    size_t first[MERGE_PARTS + 1]; /* where in `out` each part begins */
    size_t count; /* without `out`: the number of positions of the sum. An entry counts again where
                   * the entries before it add up to 0. */
};

/** How many parts pay for this many entries in all lists; dense: with the dense array. */
unsigned merge_parts(
    uint64_t positions, uint64_t entries, bool dense, const struct parallel *parallel);

/**
 * Writes the sum into merge->out and merge->dense. All fields but `first` and `count` are
 * filled in by the caller.
 *
 * out: room for as many entries as all lists have, or for `positions`, whichever is less.
 * Cannot fail; uses about 40 KiB of stack. Two threads may merge into different lists.
 */
void merge_run(struct merge *merge, const struct parallel *parallel);

#endif
