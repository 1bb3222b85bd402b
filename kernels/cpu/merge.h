/*
 * The sum of several sparse lists of one view, as a sparse list, as a dense array, or as both.
 *
 * A position that is in some of the lists is in the sum, once, with scale * (((0 + a) + b) + ...)
 * in f32, over the lists that have it in the order of the array: one list's value alone is only
 * scaled, but for -0, which becomes 0. Where no list has it the dense array is 0. So the same lists
 * give the same bits, in either form, whatever the number of parts and threads.
 *
 * The positions are cut into windows that fit the L1 cache, and windows are grouped in parts. In a
 * window the values are added up where they lie, and a bit for each position says whether it is
 * there; up to two lists are merged into a list without windows. A window of the dense array is
 * written once, past the caches where much is written. For a list, one sweep over the lists counts
 * the positions of each part, a second one writes them where they belong; a single part, or the
 * dense array alone, needs no counting. The work is O(entries + lists * positions / 8192 + what is
 * written), the memory one window a thread.
 */
#ifndef ADTOPK_KERNELS_MERGE_H
#define ADTOPK_KERNELS_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sparse.h"

#define MERGE_PARTS 64u /* at most */

struct merge {
    const struct sparse *list; /* of strictly ascending positions below `positions` */
    unsigned lists;            /* may be 0 */
    uint64_t positions;        /* view_size() */
    float scale;
    struct sparse *out; /* overlaps no list; capacity for what comes out of it, see merge_run();
                         * NULL: only the dense array is wanted */
    float *dense; /* `positions` elements that overlap no list and not `out`: the view's stride is
                   * 1; NULL: only the list is wanted */
    uint64_t written; /* elements that are written together with those of `dense`, if more */
    size_t *cursor;   /* scratch: `lists` for each part */
    unsigned parts;   /* 1..MERGE_PARTS: merge_parts() says how many pay */
    size_t first[MERGE_PARTS + 1]; /* where in `out` each part begins */
    size_t count; /* without `out`: how many positions came out, but that an entry counts again
                   * where those before it add up to 0 */
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
