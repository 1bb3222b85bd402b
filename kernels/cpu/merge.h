/*
 * The sum of several sparse lists of one view, as a sparse list.
 *
 * A position that is in some of the lists is in the sum, once, with scale * (((a + b) + c) + ...)
 * in f32, over the lists that have it in the order of the array; one list's value alone is not
 * touched before it is scaled. So the same lists give the same bits, whatever the number of parts
 * and threads.
 *
 * The positions are cut into windows that fit the L1 cache, and windows are grouped in parts. In a
 * window, a bit for each position says whether it is there, and the values are added up where they
 * lie; up to two lists are merged without windows. One sweep over the lists counts the positions of
 * each part, a second one writes them where they belong; a single part needs no counting. The work
 * is O(entries + lists * positions / 8192), the memory one window a thread.
 */
#ifndef ADTOPK_KERNELS_MERGE_H
#define ADTOPK_KERNELS_MERGE_H

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
    struct sparse *out; /* overlaps no list; capacity for what comes out of it, see merge_run() */
    size_t *cursor;     /* scratch: `lists` for each part */
    unsigned parts;     /* 1..MERGE_PARTS: merge_parts() says how many pay */
    size_t first[MERGE_PARTS + 1]; /* where in `out` each part begins */
};

/** How many parts pay for this many entries in all lists. */
unsigned merge_parts(uint64_t positions, uint64_t entries, const struct parallel *parallel);

/**
 * Writes the sum into merge->out. All fields but `first` are filled in by the caller.
 *
 * out: room for as many entries as all lists have, or for `positions`, whichever is less.
 * Cannot fail; uses about 40 KiB of stack. Two threads may merge into different lists.
 */
void merge_run(struct merge *merge, const struct parallel *parallel);

#endif
