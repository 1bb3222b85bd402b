/*
 * Finds the k largest of all nodes' sums without gathering them. Every node tells how many of its
 * sums have which size, and all nodes draw the same line.
 *
 * Magnitudes are counted in cells: a cell is the upper 16 bits of the magnitude's 31, and an octave
 * has 256 cells. A node's vote has the counts of its octaves, and of the cells in a window around
 * the last line. If the line is not in the window, a second vote has the counts of the octave where
 * it must be. The line does not depend on how it was found. All sums above one cell are taken, and
 * of that cell the first entries in the order of the nodes, so that k are taken in all (or all, if
 * there are fewer). Magnitudes in one cell differ by less than 0.4 %.
 */
#ifndef ADTOPK_VOTE_H
#define ADTOPK_VOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/sparse.h"

#define VOTE_OCTAVES 256
#define VOTE_OCTAVE_CELLS 256u
#define VOTE_WINDOW 64u
#define VOTE_BYTES 2600 /* at most, written */

struct vote {
    uint64_t sent;                 /* entries that the node contributed */
    uint64_t octave[VOTE_OCTAVES]; /* its sums, by octave */
    uint32_t first, cells;         /* the window: at most VOTE_OCTAVE_CELLS cells from `first` on */
    uint64_t above;                /* sums above the window */
    uint64_t cell[VOTE_OCTAVE_CELLS];
};

/* All above `cell` is taken, and `quota` entries in it. */
struct vote_line {
    uint32_t cell;
    uint64_t quota;
};

/** The cell of a sum; 0 is the cell of sums that are never taken. */
uint32_t vote_cell(float sum);

/** Counts sums. Window, and `sent`, are the caller's. */
void vote_count(struct vote *vote, const struct sparse *sums);

/** Writes octaves, or only the window. Returns the number of bytes. */
size_t vote_write(const struct vote *vote, bool octaves, uint8_t out[VOTE_BYTES]);

/** Reads a vote with this window, as vote_write() wrote it. Returns false if the bytes are no such
 * vote, or have counts in cell 0. */
bool vote_read(struct vote *vote, bool octaves, const uint8_t *bytes, size_t size);

/** total += vote. Neither can overflow: 2^16 votes of 32 bit counts. */
void vote_add(struct vote *total, const struct vote *vote);

/** How many sums of this vote lie above an octave, and how many in it. */
void vote_split_octave(const struct vote *vote, uint32_t octave, uint64_t *above, uint64_t *in);

/** Whether a second vote, whose window is an octave, has the same counts above the window and in
 * it. */
bool vote_agrees(const struct vote *vote, uint64_t above, uint64_t in);

/** The octave in which the line for the k > 0 largest is. False: there are fewer, and the line is
 * that of cell 0. */
bool vote_octave(const struct vote *total, uint64_t k, uint32_t *octave);

/** The line for the k > 0 largest; false if it is not in the window. */
bool vote_find(const struct vote *total, uint64_t k, struct vote_line *line);

/** How many sums of this vote lie above the line's cell, and how many in it, which is in its
 * window. */
void vote_split(
    const struct vote *vote, const struct vote_line *line, uint64_t *above, uint64_t *in);

#endif
