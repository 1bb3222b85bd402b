/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A row's candidates are what reaches a guess: the row's threshold of the last turn, or that of the
 * row before it, less a margin that adapts itself from row to row. If they are too few, the row is
 * looked at again with a lower guess, then with all that is not zero; the first zeros make up for
 * what is missing even then. A list that grows long keeps the best so far. A range selects the rows
 * that lie wholly in it; those on a border of two ranges wait for rows_finish(). Row f's entries
 * have their place in the list, k * f, whoever selects it.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 128 };

/* A range on its way through its rows, piece by piece. */
struct rows {
    struct fused *pass;
    struct sparse *candidate;
    uint32_t *histogram;
    float last;     /* threshold of the row before, 0 if unknown */
    float expected; /* threshold of the row at hand, 0 if unknown */
    float margin;   /* how far below that the guess is, relative */
    uint64_t end;   /* element behind the piece at hand */

    /* How to collect the piece at hand. */
    struct sparse *list; /* NULL: not at all, its row begins in another range */
    uint32_t least;
    uint32_t position;
};

/** Entries of a range's list of candidates. */
size_t rows_capacity(uint64_t length, uint64_t k);

struct rows rows_begin(struct fused *pass, unsigned range);

/** Goes to the piece at `element`: the rest of its row, or `most` elements of it. Returns its
 * length. */
unsigned rows_open(struct rows *rows, uint64_t element, unsigned most);

/** The piece is added and collected: selects the row if it ends here. */
void rows_close(struct rows *rows);

/** Selects the rows on the borders of ranges. */
void rows_finish(struct fused *pass);

#endif
